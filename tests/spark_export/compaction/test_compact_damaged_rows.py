"""Rows of a store that are damaged: set aside whole, counted once."""

import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from mailserver.codec.keccak import keccak256
from mailserver.store.sqlite.handoff import read_archived
from tests.spark_export.samples import (
    DAY,
    FIRST,
    NOON,
    SPORT,
    archived,
    change,
    compact_into,
    envelope,
    envelopes,
    handed_over,
    identity,
    periods,
    put,
    quarantined,
    records_in,
    rows_of,
    tree,
)

pytestmark = pytest.mark.spark


def allow_null(store: Path) -> None:
    """Have SQLite take any value for an envelope: the disk asks nobody."""
    connection = sqlite3.connect(store)
    connection.execute("PRAGMA writable_schema = ON")
    connection.execute("UPDATE sqlite_schema SET sql = replace(sql, 'raw BLOB NOT NULL', 'raw BLOB')")
    connection.commit()
    connection.close()


DAMAGES: dict[str, tuple[str, Callable[[bytes], bytes | str | int | None], str]] = {
    "garbage in raw": ("raw", lambda raw: b"\xff garbage \x00" + raw[:5], "undecodable"),
    "nothing in raw": ("raw", lambda raw: b"", "undecodable"),
    "no raw at all": ("raw", lambda raw: None, "undecodable"),
    "text in raw": ("raw", lambda raw: "text", "undecodable"),
    "a bit of raw": ("raw", lambda raw: raw[:-20] + bytes([raw[-20] ^ 1]) + raw[-19:], "its hash is different"),
    "a bit of hash": (
        "hash",
        lambda raw: bytes([keccak256(raw)[0] ^ 1]) + keccak256(raw)[1:16],
        "its hash is different",
    ),
    "text in hash": ("hash", lambda raw: "what", "its hash is different"),
    "another topic": ("topic", lambda raw: bytes(SPORT), "its topic or time is different"),
    "text in topic": ("topic", lambda raw: "abcd", "its topic or time is different"),
    "another time": ("created", lambda raw: NOON - 7, "its topic or time is different"),
    "text in created": ("created", lambda raw: "then", "its topic or time is different"),
}


def test_damaged_rows_are_set_aside_whole(spark: SparkSession, store: Path, archive: Path) -> None:
    hit = [envelope(99 + number) for number in range(len(DAMAGES))]
    put(store, hit, envelopes(5))
    allow_null(store)
    for seq, (column, damaged, _) in enumerate(DAMAGES.values(), 1):
        change(store, f"UPDATE envelopes SET {column} = ? WHERE seq = ?", damaged(hit[seq - 1].raw), seq)

    report = compact_into(spark, archive, store)

    assert archived(archive) == rows_of(envelopes(5))
    assert (report.rows, report.quarantined) == (5, len(DAMAGES))
    for line, (column, damaged, fault), was in zip(quarantined(archive), DAMAGES.values(), hit, strict=True):
        raw = damaged(was.raw) if column == "raw" else was.raw
        assert bytes.fromhex(line["raw"]) == (raw.encode() if isinstance(raw, str) else raw or b"")
        assert line["fault"].startswith(fault)
        assert (line["store"], line["seq"], line["received"]) == (identity(store), hit.index(was) + 1, NOON)
    assert records_in(archive)[FIRST].days[DAY].quarantined == len(DAMAGES)
    assert handed_over(store) == {DAY: len(DAMAGES) + 5}


def test_damaged_row_is_counted_once_over_all_runs(spark: SparkSession, store: Path, archive: Path) -> None:
    put(store, envelopes(5))
    change(store, "UPDATE envelopes SET raw = x'00' WHERE seq = 2")
    compact_into(spark, archive, store)
    before = tree(archive)

    report = compact_into(spark, archive, store, run="run-2")
    assert report.quarantined == 0
    assert tree(archive) == before

    put(store, envelopes(5, first=50))
    report = compact_into(spark, archive, store, run="run-3")
    assert (report.rows, report.quarantined) == (5, 0)
    assert records_in(archive)[FIRST].days[DAY].quarantined == 1
    assert len(quarantined(archive)) == 1
    sound = [*envelopes(5)[:1], *envelopes(5)[2:], *envelopes(5, first=50)]
    assert archived(archive) == rows_of(sound)

    put(store, envelopes(5, first=70))
    change(store, "UPDATE envelopes SET raw = x'01' WHERE seq = 13")
    report = compact_into(spark, archive, store, run="run-4")
    assert (report.rows, report.quarantined) == (4, 1)
    assert [line["seq"] for line in quarantined(archive)] == [2, 13]
    assert records_in(archive)[FIRST].days[DAY].quarantined == 2


def test_day_of_damaged_rows_alone_is_noted(spark: SparkSession, store: Path, archive: Path) -> None:
    put(store, envelopes(2))
    change(store, "UPDATE envelopes SET raw = x'00'")

    report = compact_into(spark, archive, store)
    assert (report.rows, report.quarantined, periods(archive)) == (0, 2, [])
    assert handed_over(store) == {DAY: 2}

    put(store, envelopes(2, first=50))
    compact_into(spark, archive, store, run="run-2")
    assert archived(archive) == rows_of(envelopes(2, first=50))
    assert records_in(archive)[FIRST].days[DAY].quarantined == 2


@pytest.mark.parametrize("damaged_first", [True, False])
def test_sound_copy_in_another_store_is_archived(
    spark: SparkSession, store: Path, other_store: Path, archive: Path, *, damaged_first: bool
) -> None:
    put(store, envelopes(5))
    put(
        other_store,
        [put_in._replace(received=put_in.received + (1 if damaged_first else -1)) for put_in in envelopes(5)][1:],
    )
    change(store, "UPDATE envelopes SET raw = x'00' WHERE seq = 2")

    report = compact_into(spark, archive, store, other_store)

    assert [row["raw"] for row in archived(archive)] == [row["raw"] for row in rows_of(envelopes(5))]
    # Where its copy was received first, that one is archived, and nobody looks into the damaged one.
    assert (report.rows, report.quarantined) == (5, int(damaged_first))


def test_sound_copy_that_comes_in_a_later_run_is_archived(
    spark: SparkSession, store: Path, other_store: Path, archive: Path
) -> None:
    put(store, envelopes(5))
    put(other_store, envelopes(5))
    change(store, "UPDATE envelopes SET raw = x'00' WHERE seq = 2")
    compact_into(spark, archive, store)

    report = compact_into(spark, archive, store, other_store, run="run-2")

    assert archived(archive) == rows_of(envelopes(5))
    assert (report.rows, report.quarantined) == (1, 0)


@pytest.mark.parametrize("damage", ["received + 86400 * 5", "'yesterday'"])
def test_row_whose_time_of_reception_is_damaged_stays_in_its_store(
    spark: SparkSession, store: Path, archive: Path, damage: str
) -> None:
    put(store, envelopes(5), envelopes(3, day=DAY + 1, first=50))
    change(store, f"UPDATE envelopes SET received = {damage} WHERE seq = 3")

    for _ in range(2):
        report = compact_into(spark, archive, store)

        assert len(archived(archive)) == 7
        assert report.miscounted == [{"store": str(store), "day": FIRST, "rows": -1}]
        handover = read_archived(store)
        assert handover is not None
        assert handover.days == {DAY + 1: 8}
