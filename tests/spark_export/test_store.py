from pathlib import Path

import pytest

from mailserver.store.sqlite.schema import SCHEMA_VERSION
from spark_export.errors import ExportError, MailserverFirst
from spark_export.store import StoreDay, check_mailserver_was_first, connect, describe
from tests.spark_export.samples import DAY, DAY_S, NOON, SPORT, envelope, envelopes, identity, prune, put
from tests.store.samples import change


def assert_refused(path: Path, cause: str) -> None:
    """`describe` says why in one line, and leaves the file as it is; SQLite may make the files of an empty log."""
    before = contents(path.parent)

    with pytest.raises(ExportError) as caught:
        describe(path)

    assert cause in str(caught.value)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)
    assert contents(path.parent) == before


def contents(folder: Path) -> dict[str, bytes]:
    files = {file.name: file.read_bytes() for file in folder.iterdir() if not file.name.endswith("-shm")}
    return {name: content for name, content in files.items() if content or not name.endswith("-wal")}


def test_store_is_described(tmp_path: Path) -> None:
    path = tmp_path / "mailserver.db"
    put(path, envelopes(5), envelopes(3, day=DAY + 1, first=10), envelopes(2, first=20))

    store = describe(path)

    sizes = {DAY: envelopes(5) + envelopes(2, first=20), DAY + 1: envelopes(3, day=DAY + 1, first=10)}
    assert store.days == (
        StoreDay(DAY, 7, sum(len(one.raw) for one in sizes[DAY]), 1, 10),
        StoreDay(DAY + 1, 3, sum(len(one.raw) for one in sizes[DAY + 1]), 6, 8),
    )
    assert (store.place, store.id, store.topics_of_a_day) == (path, identity(path), 3)


def test_topics_are_those_of_the_day_that_has_most(tmp_path: Path) -> None:
    path = put(tmp_path / "mailserver.db", envelopes(3), [envelope(9, received=NOON + DAY_S, topic=SPORT)])

    assert describe(path).topics_of_a_day == 3


def test_empty_store_is_described(tmp_path: Path) -> None:
    store = describe(put(tmp_path / "mailserver.db"))

    assert (store.days, store.topics_of_a_day) == ((), 0)


def test_pruned_day_is_described_as_far_as_it_is_there(tmp_path: Path) -> None:
    path = put(tmp_path / "mailserver.db", envelopes(5))
    prune(path, before=envelopes(5)[3].received)

    (day,) = describe(path).days

    assert (day.envelopes, day.first_seq, day.last_seq) == (2, 4, 5)


def test_path_with_awkward_characters_is_opened(tmp_path: Path) -> None:
    path = put(tmp_path / "a b?c#d%20e" / "mailserver.db", envelopes(1))

    assert describe(path).days[0].envelopes == 1


def test_missing_store_is_refused_and_not_made(tmp_path: Path) -> None:
    assert_refused(tmp_path / "mailserver.db", "there is none")


@pytest.mark.parametrize("content", [b"", b"SQLite", b"a text of some length, but no database\n" * 100])
def test_file_that_is_no_database_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "mailserver.db"
    path.write_bytes(content)

    assert_refused(path, "it is not an SQLite database")


def test_database_of_another_program_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "mailserver.db"
    change(path, "PRAGMA application_id = 42", "CREATE TABLE envelopes (seq)")

    assert_refused(path, "is not a mailserver store (application_id 0x2a)")


def test_store_of_an_earlier_version_is_refused(tmp_path: Path) -> None:
    path = put(tmp_path / "mailserver.db")
    change(path, f"PRAGMA user_version = {SCHEMA_VERSION - 1}")

    assert_refused(path, "start this version of the mailserver on it once, which migrates it")


@pytest.mark.parametrize(
    "sql", [f"PRAGMA user_version = {SCHEMA_VERSION - 1}", "DELETE FROM identity"], ids=["earlier version", "backup"]
)
def test_store_that_waits_for_the_mailserver_is_told_from_one_that_does_not(tmp_path: Path, sql: str) -> None:
    path = put(tmp_path / "mailserver.db")
    check_mailserver_was_first(path)
    change(path, sql)

    with pytest.raises(MailserverFirst, match=r"start .* on it once"):
        check_mailserver_was_first(path)


def test_store_of_a_later_version_is_refused(tmp_path: Path) -> None:
    path = put(tmp_path / "mailserver.db")
    change(path, f"PRAGMA user_version = {SCHEMA_VERSION + 1}")

    assert_refused(path, f"has schema version {SCHEMA_VERSION + 1}, this program knows {SCHEMA_VERSION}")


def test_damaged_database_is_refused(tmp_path: Path) -> None:
    path = put(tmp_path / "mailserver.db", envelopes(50))
    content = path.read_bytes()
    path.write_bytes(content[:100] + b"\xff" * (len(content) - 100))

    assert_refused(path, "cannot read the store")


def test_directory_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ExportError, match="cannot open the store"):
        describe(tmp_path)


def test_store_is_read_only(tmp_path: Path) -> None:
    path = put(tmp_path / "mailserver.db", envelopes(2))

    with pytest.raises(ExportError, match="readonly"), connect(path) as connection:
        connection.execute("DELETE FROM envelopes")

    assert describe(path).days[0].envelopes == 2
