import pytest

from mailserver.codec import varint
from mailserver.errors import DecodeError
from mailserver.leveldb.entries import Entry
from mailserver.leveldb.manifest import COMPARATOR, Table, Version
from tests.leveldb.writer import edit, new_table, sized, tagged

ENTRIES = [Entry(b"a", 3, b""), Entry(b"b", 4, None)]


def version_of(*records: bytes) -> Version:
    version = Version()
    for record in records:
        version.apply(record)
    return version


def gone(level: int, number: int) -> bytes:
    return b"\6" + varint.encode(level) + varint.encode(number)


def test_records_say_together_what_there_is() -> None:
    pointer = b"\5\1" + sized(tagged(b"a", 1))

    version = version_of(
        edit(journal=3),
        new_table(0, 5, 100, ENTRIES) + new_table(0, 6, 200, ENTRIES),
        pointer + gone(0, 5) + gone(0, 99) + new_table(1, 7, 300, ENTRIES) + b"\2\x04",
    )

    assert version.comparator == COMPARATOR
    assert version.journal == 4
    assert version.tables == [Table(6, 200, (b"a", -3)), Table(7, 300, (b"a", -3))]


def test_table_that_moves_to_another_level_stays() -> None:
    version = version_of(new_table(0, 5, 100, ENTRIES), gone(0, 5) + new_table(1, 5, 100, ENTRIES))

    assert [table.number for table in version.tables] == [5]


def test_journals_count_from_the_one_that_is_named() -> None:
    version = version_of(edit(journal=7))
    earlier = version_of(edit(journal=7), b"\x09\5")

    assert [number for number in range(10) if version.has_journal(number)] == [7, 8, 9]
    assert [number for number in range(10) if earlier.has_journal(number)] == [5, 7, 8, 9]


@pytest.mark.parametrize(
    "record",
    [
        b"\x08\1",
        b"\x0a",
        b"\x01\5abc",
        b"\2",
        b"\7\0\5",
        b"\7\0\5\1\3abc\3abc",
        b"\xff\xff\xff\xff\xff\xff",
        b"\5\1",
        b"\2" + b"\xff" * 9 + b"\2",
    ],
    ids=[
        "old tag",
        "unknown tag",
        "comparator",
        "journal",
        "table",
        "keys of a table",
        "number",
        "pointer",
        "large number",
    ],
)
def test_record_that_is_something_else_is_refused(record: bytes) -> None:
    with pytest.raises(DecodeError):
        version_of(edit(), record)
