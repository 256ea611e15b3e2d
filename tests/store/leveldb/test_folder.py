"""What is read of a LevelDB's folder: of goleveldb's files, of LevelDB's own, and of damaged ones."""

import contextlib
import errno
import os
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mailserver.codec import varint
from mailserver.errors import StoreError
from mailserver.leveldb.entries import Entry, UnreadablePiece
from mailserver.leveldb.journal import BLOCK_BYTES, JournalRecord
from mailserver.store.leveldb import folder
from mailserver.store.leveldb.files import TableGone, read_records
from mailserver.store.leveldb.folder import look_into
from tests.data import load
from tests.leveldb import writer
from tests.leveldb.real import RealLevelDb, real_leveldb, require_leveldb
from tests.leveldb.writer import batch, edit, journal, new_table, table, write_database
from tests.properties import settings
from tests.store.samples import UNSHRUNK

RAWS = [bytes.fromhex(each["raw"]) for each in load("envelopes.json")["envelopes"]]
DATABASES = load("leveldb.json")["databases"]
NAMES = [each["name"] for each in DATABASES]

Pairs = list[tuple[bytes, bytes | None]]


def write_recorded(path: Path, number: int) -> Pairs:
    """Write the files of a recorded database; return what is in it."""
    recorded = DATABASES[number]
    path.mkdir()
    for name, content in recorded["files"].items():
        (path / name).write_bytes(bytes.fromhex(content))
    return [(bytes.fromhex(key), RAWS[envelope]) for key, envelope in recorded["entries"]]


def read(path: Path, after: bytes | None = None) -> tuple[Pairs, list[UnreadablePiece]]:
    """The entries of a database, and what cannot be read."""
    items = list(look_into(path).entries(after))
    pairs: Pairs = [(item.key, item.value) for item in items if isinstance(item, Entry)]
    return pairs, [item for item in items if isinstance(item, UnreadablePiece)]


def change(path: Path, at: int, by: int = 1) -> None:
    """Change a byte of a file."""
    content = bytearray(path.read_bytes())
    content[at] ^= by
    path.write_bytes(content)


@pytest.fixture
def database(tmp_path: Path) -> Path:
    """A database with two tables that lie over each other, and a journal; in each block there are two entries."""
    tables = [
        [Entry(b"key%03d" % number, number + 1, b"old" * 50) for number in range(20)],
        [Entry(b"key%03d" % number, number + 101, b"new" * 50) for number in range(10, 30)],
    ]
    written = [[Entry(b"key%03d" % number, 201 + number, None)] for number in (3, 14)] + [[Entry(b"zzz", 300, b"last")]]
    write_database(tmp_path / "database", tables, written, block_rows=2)
    return tmp_path / "database"


ALL = sorted(
    [
        (b"key%03d" % number, b"old" * 50 if number < 10 else b"new" * 50)
        for number in range(30)
        if number not in (3, 14)
    ]
    + [(b"zzz", b"last")]
)


# Sound ones.


@pytest.mark.parametrize("number", range(len(DATABASES)), ids=NAMES)
def test_what_goleveldb_has_written_is_read(number: int, tmp_path: Path) -> None:
    expected = write_recorded(tmp_path / "go", number)

    assert read(tmp_path / "go") == (expected, [])


@pytest.mark.parametrize("number", range(len(DATABASES)), ids=NAMES)
def test_reading_goes_on_behind_any_key(number: int, tmp_path: Path) -> None:
    expected = write_recorded(tmp_path / "go", number)

    for key, _ in expected:
        assert read(tmp_path / "go", key)[0] == [pair for pair in expected if pair[0] > key]


def test_newest_of_tables_and_journal_counts(database: Path) -> None:
    assert read(database) == (ALL, [])


def test_tables_of_earlier_versions_have_another_ending(database: Path) -> None:
    (database / "000005.ldb").rename(database / "000005.sst")

    assert read(database) == (ALL, [])


def test_nothing_is_changed_in_the_folder(tmp_path: Path) -> None:
    write_recorded(tmp_path / "go", 2)
    (tmp_path / "go" / "LOCK").touch()
    before = {path.name: (path.read_bytes(), path.stat().st_mtime_ns) for path in (tmp_path / "go").iterdir()}

    read(tmp_path / "go")

    assert {path.name: (path.read_bytes(), path.stat().st_mtime_ns) for path in (tmp_path / "go").iterdir()} == before


KEYS = st.sampled_from([b"key%02d" % number for number in range(30)]) | st.binary(max_size=12)
VALUES = st.binary(max_size=60) | st.integers(0, 3000)
"""Bytes, or how often `LONG` is repeated."""

LONG = b"abc"
STEPS = st.one_of(
    st.tuples(st.just("put"), KEYS, VALUES),
    st.tuples(st.just("delete"), KEYS),
    st.tuples(st.just("write"), st.dictionaries(KEYS, st.none() | VALUES, max_size=8)),
    st.just(("compact",)),
    st.just(("reopen",)),
)


@settings(max_examples=30, phases=UNSHRUNK)
@given(st.lists(STEPS, max_size=40), st.booleans())
def test_whatever_leveldb_itself_writes_is_read_while_it_has_it_open(steps: list[Any], is_compressed: bool) -> None:
    require_leveldb()
    expected: dict[bytes, bytes | None] = {}
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as stack:
        path = Path(name)
        real = stack.enter_context(real_leveldb(path, is_compressed=is_compressed))
        for step in steps:
            match step:
                case ("put", key, value):
                    real.put(key, bytes_of(value))
                    expected[key] = bytes_of(value)
                case ("delete", key):
                    real.delete(key)
                    expected.pop(key, None)
                case ("write", values):
                    changes = {key: None if value is None else bytes_of(value) for key, value in values.items()}
                    real.write(changes)
                    expected |= changes
                    expected = {key: value for key, value in expected.items() if value is not None}
                case ("compact",):
                    real.compact()
                case ("reopen",):
                    stack.close()
                    real = stack.enter_context(real_leveldb(path, is_compressed=is_compressed))

        assert read(path) == (sorted(expected.items()), [])


def bytes_of(value: bytes | int) -> bytes:
    return value if isinstance(value, bytes) else LONG * value


def test_leveldb_itself_reads_what_these_tests_write(database: Path) -> None:
    require_leveldb()

    with real_leveldb(database) as real:
        assert [real.get(b"key%03d" % number) for number in range(31)] == [
            dict(ALL).get(b"key%03d" % number) for number in range(31)
        ]
        assert real.get(b"zzz") == b"last"


def test_what_was_written_before_is_found_while_leveldb_writes_on(tmp_path: Path) -> None:
    require_leveldb()
    written: list[bytes] = []
    is_done = threading.Event()

    def write(real: RealLevelDb) -> None:
        for number in range(3000):
            key = b"%08d" % (number * 7919 % 3000)
            real.put(key, key * 60)
            written.append(key)
        is_done.set()

    with real_leveldb(tmp_path) as real:
        thread = threading.Thread(target=write, args=(real,))
        thread.start()
        try:
            looks = 0
            while not is_done.is_set() or not looks:
                before = set(written)
                found = {key for key, _ in read_all(tmp_path)}
                assert before <= found
                looks += 1
        finally:
            thread.join()

        assert len(read_all(tmp_path)) == 3000


def read_all(path: Path) -> list[tuple[bytes, bytes]]:
    """All entries, looking again where tables were replaced."""
    found: list[tuple[bytes, bytes]] = []
    while True:
        try:
            for item in look_into(path).entries(found[-1][0] if found else None):
                assert isinstance(item, Entry)
                assert item.value == item.key * 60
                found.append((item.key, item.value))
        except TableGone:
            continue
        return found


# Damaged ones.


def test_damaged_block_is_named_and_the_rest_is_read(database: Path) -> None:
    change(database / "000006.ldb", 20)  # the first block: key010 and key011

    pairs, (unreadable,) = read(database)

    expected = dict(ALL) | {b"key010": b"old" * 50, b"key011": b"old" * 50}
    assert pairs == sorted(expected.items())
    assert (unreadable.file, unreadable.number, unreadable.at) == ("000006.ldb", 6, 0)
    assert unreadable.why == "block fails its checksum"
    assert (database / "000006.ldb").read_bytes().startswith(unreadable.content)


def test_damaged_block_before_the_place_where_reading_goes_on_is_not_read(database: Path) -> None:
    change(database / "000006.ldb", 20)

    assert read(database, b"key011") == ([pair for pair in ALL if pair[0] > b"key011"], [])


def test_block_that_is_not_behind_the_one_before_it_is_named(database: Path) -> None:
    """As if a disk had written a sound block to a wrong place."""
    sound, file = [Entry(b"key0%02d" % number, 1, b"") for number in range(4)], bytearray()
    index = []
    for entries, upper in ((sound[2:], b"key003"), (sound[:2], b"key004")):
        block = writer.stored(writer.block([(writer.tagged(each.key, each.sequence), b"") for each in entries]))
        index.append((writer.tagged(upper, 1), varint.encode(len(file)) + varint.encode(len(block) - 5)))
        file += block
    (database / "000005.ldb").write_bytes(writer.with_index(bytes(file), index))

    pairs, (unreadable,) = read(database)

    assert pairs == [(b"key002", b""), *(pair for pair in ALL if pair[0] >= b"key010")]
    assert unreadable.why == "entries are out of order"


def test_index_that_points_out_of_the_file_is_named(database: Path) -> None:
    far = varint.encode(2**64 - 1) + varint.encode(100)
    (database / "000005.ldb").write_bytes(writer.with_index(b"", [(writer.tagged(b"key002", 1), far)]))

    _, (unreadable,) = read(database)

    assert unreadable == UnreadablePiece(
        "000005.ldb", 5, 2**64 - 1, b"", f"it lies outside of the file, got {2**64 - 1}, limit 102"
    )


def test_table_without_footer_is_named(database: Path) -> None:
    change(database / "000005.ldb", -1)

    pairs, unreadable = read(database)

    assert pairs == [pair for pair in ALL if pair[0] >= b"key010"]
    assert [(each.file, each.why) for each in unreadable] == [("000005.ldb", "none of the table: table has no footer")]


def test_table_that_is_cut_off_is_named(database: Path) -> None:
    os.truncate(database / "000005.ldb", 20)

    pairs, (unreadable,) = read(database)

    assert pairs == [pair for pair in ALL if pair[0] >= b"key010"]
    assert unreadable.why == "none of the table: it lies outside of the file, got -28, limit 20"


@pytest.mark.parametrize("name", ["000005.ldb", "000004.log"])
def test_file_that_is_missing_is_named(name: str, database: Path) -> None:
    (database / name).unlink()

    _, unreadable = read(database)

    assert [(each.file, each.why) for each in unreadable] == [(name, "it is not there")]


def test_damaged_batch_of_a_journal_is_named(database: Path) -> None:
    entry = Entry(b"zzz", 300, b"last")
    (database / "000004.log").write_bytes(journal([b"short", batch([entry]), batch([entry])[:-1]]))

    pairs, unreadable = read(database)

    assert pairs[-1] == (b"zzz", b"last")
    assert [(each.file, each.at, each.why.partition(",")[0]) for each in unreadable] == [
        ("000004.log", 0, "batch is cut off"),
        ("000004.log", 41, "bytes are cut off"),
    ]


@pytest.mark.parametrize("name", ["CURRENT", "MANIFEST-000003"])
@pytest.mark.parametrize("how", ["missing", "empty", "changed"])
def test_without_a_manifest_all_files_count(name: str, how: str, database: Path) -> None:
    match how:
        case "missing":
            (database / name).unlink()
        case "empty":
            (database / name).write_bytes(b"")
        case "changed":
            change(database / name, 8)

    pairs, unreadable = read(database)

    assert pairs == ALL
    assert len(unreadable) == 1
    assert unreadable[0].file in ("CURRENT", "MANIFEST-000003", "MANIFEST-010003")


def test_without_a_manifest_a_damaged_table_costs_no_other(database: Path) -> None:
    (database / "MANIFEST-000003").write_bytes(journal([edit(journal=4), b"\x0a"]))
    change(database / "000005.ldb", -1)

    pairs, unreadable = read(database)

    assert pairs == [pair for pair in ALL if pair[0] >= b"key010"]
    assert [(each.file, each.at, each.why) for each in unreadable] == [
        ("MANIFEST-000003", 44, "tag of a manifest is unknown, got 10"),
        ("000005.ldb", 0, "none of the table: table has no footer"),
    ]


@settings(max_examples=150, phases=UNSHRUNK)
@given(st.data())
def test_no_change_of_a_byte_takes_anything_in_silence(data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "go"
        expected = write_recorded(path, data.draw(st.integers(0, len(DATABASES) - 1)))
        file = data.draw(st.sampled_from(sorted(file for file in path.iterdir() if file.stat().st_size)))
        change(file, data.draw(st.integers(0, file.stat().st_size - 1)), data.draw(st.integers(1, 255)))

        pairs, unreadable = read(path)

        known = set(RAWS)
        assert all(value in known for _, value in pairs)
        assert pairs == sorted(pairs)
        assert pairs == expected or unreadable


@settings(max_examples=60, phases=UNSHRUNK)
@given(st.data())
def test_file_that_is_cut_off_anywhere_costs_no_other(data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "go"
        expected = write_recorded(path, data.draw(st.integers(0, len(DATABASES) - 1)))
        file = data.draw(st.sampled_from(sorted(file for file in path.iterdir() if file.stat().st_size)))
        os.truncate(file, data.draw(st.integers(0, file.stat().st_size - 1)))

        pairs, unreadable = read(path)

        told = {each.file for each in unreadable}
        assert pairs == sorted(pairs)
        assert file.suffix != ".ldb" or file.name in told or pairs == expected  # it may be in use no more
        if file.name in told and file.suffix not in (".ldb", ".log"):
            assert {key for key, _ in expected} <= {key for key, _ in pairs}


def test_disk_that_cannot_read_a_block_costs_that_block(database: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with (database / "000004.log").open("ab") as file:
        file.write(bytes(BLOCK_BYTES - file.tell()) + journal([batch([Entry(b"zzz2", 301, b"really the last")])]))
    read_at = os.pread

    def refuse_the_first(descriptor: int, size: int, at: int) -> bytes:
        if at == 0 and Path(f"/proc/self/fd/{descriptor}").readlink().name in ("000006.ldb", "000004.log"):
            raise OSError(errno.EIO, "Input/output error")
        return read_at(descriptor, size, at)

    monkeypatch.setattr(os, "pread", refuse_the_first)

    pairs, unreadable = read(database)

    assert len(pairs) == 31  # what the journal deleted is there again, and zzz is not
    assert pairs[-1] == (b"zzz2", b"really the last")
    assert [(each.file, each.why) for each in unreadable] == [
        ("000004.log", "the disk cannot read it: Input/output error"),
        ("000006.ldb", "the disk cannot read it: Input/output error"),
    ]


# None.


def test_folder_without_a_leveldb_is_refused(tmp_path: Path) -> None:
    (tmp_path / "mailserver.db").touch()

    with pytest.raises(StoreError, match=f"there is no LevelDB in {tmp_path}"):
        look_into(tmp_path)
    with pytest.raises(StoreError, match="No such file or directory"):
        look_into(tmp_path / "gone")


def test_leveldb_in_another_order_is_refused(tmp_path: Path) -> None:
    write_database(tmp_path, [], comparator=b"idb_cmp1")

    with pytest.raises(StoreError, match="is not a Go mailserver's: its keys are in another order"):
        look_into(tmp_path)


def test_more_journals_than_are_held_in_memory_are_refused(database: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folder, "MAX_JOURNALS_BYTES", 50)

    with pytest.raises(StoreError, match="bytes of journals: start its mailserver once"):
        look_into(database)


@pytest.mark.parametrize(
    "records",
    [
        [batch([Entry(b"", number, None) for number in range(20)])],
        [b"no batch"] * 20,
        [batch([Entry(b"a", 1, b"")])] * 20,
    ],
    ids=["in one", "unreadable", "one each"],
)
def test_more_entries_of_journals_than_are_held_in_memory_are_refused(
    database: Path, monkeypatch: pytest.MonkeyPatch, records: list[bytes]
) -> None:
    (database / "000004.log").write_bytes(journal(records) + b"\xff" * 20)
    look_into(database)
    monkeypatch.setattr(folder, "MAX_JOURNAL_ENTRIES", 19)

    with pytest.raises(StoreError, match="more than 19 entries in journals: start its mailserver once"):
        look_into(database)


def test_journal_with_a_record_that_was_being_written_is_sound(database: Path) -> None:
    """As a Go mailserver leaves it that is killed."""
    with (database / "000004.log").open("ab") as file:
        file.write(journal([batch([Entry(b"zzz2", 301, bytes(100))])])[:-1])

    assert read(database) == (ALL, [])


def test_manifest_with_a_record_that_was_being_written_says_nothing(database: Path) -> None:
    """It may be that of which files there are. Then all of them count."""
    with (database / "MANIFEST-000003").open("ab") as file:
        file.write(journal([edit(journal=4)])[:-1])

    pairs, unreadable = read(database)

    assert pairs == ALL
    assert [(each.file, each.why) for each in unreadable] == [("MANIFEST-000003", "the file ends within this chunk")]


def test_folder_that_changes_all_the_time_is_given_up(database: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def growing(path: Path, number: int, *, may_be_torn: bool) -> Iterator[JournalRecord | UnreadablePiece]:
        if path.suffix == ".log":
            with (database / "MANIFEST-000003").open("ab") as file:
                file.write(journal([b""]))
        return read_records(path, number, may_be_torn=may_be_torn)

    monkeypatch.setattr(folder, "read_records", growing)

    with pytest.raises(StoreError, match="changes all the time"):
        look_into(database)


def test_journal_that_goes_meanwhile_is_looked_for_again(database: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was written to a table, which the manifest names by now."""
    gone: list[Path] = []

    def flushed(path: Path, number: int, *, may_be_torn: bool) -> Iterator[JournalRecord | UnreadablePiece]:
        if path.suffix == ".log" and not gone:
            gone.append(path)
            entries = [Entry(b"zzz", 300, b"last")]
            file = table(entries)
            (database / "000007.ldb").write_bytes(file)
            (database / "000008.log").touch()
            record = edit(journal=8, more=new_table(0, 7, len(file), entries))
            with (database / "MANIFEST-000003").open("ab") as manifest:
                manifest.write(journal([record]))
            path.unlink()
        return read_records(path, number, may_be_torn=may_be_torn)

    monkeypatch.setattr(folder, "read_records", flushed)

    pairs, unreadable = read(database)

    assert pairs[-1] == (b"zzz", b"last")
    assert unreadable == []
