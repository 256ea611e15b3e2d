"""mailserver.store.sqlite.schema: what its migrations make, by plain SQLite."""

import contextlib
import sqlite3
from collections.abc import Iterator

import pytest

from mailserver.store.sqlite.schema import (
    APPLICATION_ID,
    HASH_PREFIX_BYTES,
    MIGRATIONS,
    PAGE_BYTES,
    SCHEMA_VERSION,
    STORE_FILE,
)
from mailserver.units import SECONDS_PER_DAY


@pytest.fixture
def migrated() -> Iterator[sqlite3.Connection]:
    """An empty database of the newest version."""
    with contextlib.closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
        for migration in MIGRATIONS:
            for statement in migration:
                connection.execute(statement)
        yield connection


def insert(connection: sqlite3.Connection, *, created: int, name: bytes, topic: bytes = b"news") -> None:
    connection.execute(
        "INSERT INTO envelopes (received, created, topic, hash, raw) VALUES (1, ?, ?, ?, x'00')", (created, topic, name)
    )


def test_version_is_the_number_of_migrations() -> None:
    assert len(MIGRATIONS) == SCHEMA_VERSION >= 1


def test_application_id_spells_waku_and_fits_the_header() -> None:
    assert APPLICATION_ID.to_bytes(4, "big") == b"WAKU"
    assert APPLICATION_ID < 2**31


def test_page_size_is_one_that_sqlite_takes() -> None:
    assert 512 <= PAGE_BYTES <= 65536
    assert PAGE_BYTES.bit_count() == 1


def test_store_is_one_file_in_the_data_folder() -> None:
    assert "/" not in STORE_FILE


def test_tables_have_the_columns_that_the_export_reads(migrated: sqlite3.Connection) -> None:
    columns = {
        table: [(name, kind) for _, name, kind, *_ in migrated.execute(f"PRAGMA table_info({table})")]
        for (table,) in migrated.execute(
            "SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE '%\\_%'"
        )
    }

    assert columns["envelopes"] == [
        ("seq", "INTEGER"),
        ("received", "INTEGER"),
        ("created", "INTEGER"),
        ("topic", "BLOB"),
        ("hash", "BLOB"),
        ("raw", "BLOB"),
    ]
    assert columns["days"] == [("day", "INTEGER"), ("envelopes", "INTEGER"), ("bytes", "INTEGER")]
    assert columns["identity"] == [("id", "TEXT")]
    assert columns["reception_days"] == [
        ("day", "INTEGER"),
        ("envelopes", "INTEGER"),
        ("bytes", "INTEGER"),
        ("first_seq", "INTEGER"),
        ("last_seq", "INTEGER"),
    ]
    assert columns["day_topics"] == [("day", "INTEGER"), ("topic", "BLOB")]


@pytest.mark.parametrize("column", ["received", "created", "topic", "hash", "raw"])
def test_no_column_of_an_envelope_is_null(migrated: sqlite3.Connection, column: str) -> None:
    values = {"received": 1, "created": 1, "topic": b"news", "hash": bytes(16), "raw": b"raw"} | {column: None}

    with pytest.raises(sqlite3.IntegrityError, match=f"NOT NULL constraint failed: envelopes.{column}"):
        migrated.execute(f"INSERT INTO envelopes ({', '.join(values)}) VALUES (?, ?, ?, ?, ?)", list(values.values()))


def test_two_envelopes_are_told_apart_by_time_and_hash(migrated: sqlite3.Connection) -> None:
    insert(migrated, created=1, name=b"a")
    insert(migrated, created=1, name=b"b")
    insert(migrated, created=2, name=b"a")

    with pytest.raises(sqlite3.IntegrityError, match=r"UNIQUE constraint failed: envelopes\.created, envelopes\.hash"):
        insert(migrated, created=1, name=b"a", topic=b"else")


def test_sequence_number_is_never_used_twice(migrated: sqlite3.Connection) -> None:
    insert(migrated, created=1, name=b"a")
    insert(migrated, created=2, name=b"b")

    migrated.execute("DELETE FROM envelopes")
    insert(migrated, created=3, name=b"c")

    assert migrated.execute("SELECT seq FROM envelopes").fetchall() == [(3,)]


@pytest.mark.parametrize(
    ("created", "day"),
    [(0, 0), (SECONDS_PER_DAY - 1, 0), (SECONDS_PER_DAY, 1), (2**32 - 1, (2**32 - 1) // SECONDS_PER_DAY)],
)
def test_index_by_topic_is_by_utc_day(migrated: sqlite3.Connection, created: int, day: int) -> None:
    insert(migrated, created=created, name=b"a")

    found = migrated.execute(
        "SELECT created FROM envelopes INDEXED BY envelopes_by_topic WHERE created / 86400 = ? AND topic = ?",
        (day, b"news"),
    )

    assert found.fetchall() == [(created,)]


def test_keys_by_topic_are_read_from_the_index_alone(migrated: sqlite3.Connection) -> None:
    plan = migrated.execute(
        """
        EXPLAIN QUERY PLAN
        SELECT created, hash, seq FROM envelopes WHERE created / 86400 = 1 AND topic = x'01' ORDER BY created, hash
        """
    ).fetchall()

    assert [detail for *_, detail in plan] == [
        "SEARCH envelopes USING COVERING INDEX envelopes_by_topic (<expr>=? AND topic=?)"
    ]


def test_oldest_by_reception_are_found_by_the_index_alone(migrated: sqlite3.Connection) -> None:
    plan = migrated.execute(
        "EXPLAIN QUERY PLAN SELECT seq FROM envelopes WHERE received >= 1 AND received < 2 ORDER BY received, seq"
    ).fetchall()

    assert [detail for *_, detail in plan] == [
        "SEARCH envelopes USING COVERING INDEX envelopes_by_reception (received>? AND received<?)"
    ]


def test_hash_prefix_is_shorter_than_a_hash_and_out_of_anyones_reach() -> None:
    assert 16 <= HASH_PREFIX_BYTES < 32


def test_a_day_and_a_topic_of_a_day_are_noted_once(migrated: sqlite3.Connection) -> None:
    migrated.execute("INSERT INTO days VALUES (1, 1, 1)")
    migrated.execute("INSERT INTO day_topics VALUES (1, x'01')")
    migrated.execute("INSERT INTO day_topics VALUES (2, x'01')")

    with pytest.raises(sqlite3.IntegrityError):
        migrated.execute("INSERT INTO days VALUES (1, 2, 2)")
    with pytest.raises(sqlite3.IntegrityError):
        migrated.execute("INSERT INTO day_topics VALUES (1, x'01')")
