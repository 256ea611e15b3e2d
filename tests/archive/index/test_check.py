"""mailserver.archive.index.check: an index that is of other rows than its period's files is found."""

from collections.abc import Callable
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import BinaryIO

import pytest

from mailserver.archive.errors import ArchiveFault
from mailserver.archive.index.check import check_index, fragment_of, topic_of
from mailserver.archive.index.reader import read_directory, read_fragment
from mailserver.archive.layout import Layout
from mailserver.archive.manifest import IndexRecord, PeriodRecord, decode_record
from mailserver.archive.paths import directory_of, index_of, record_of
from mailserver.waku.envelope import Topic
from tests.archive.reading.parquet import BY_PREFIX, BY_TOPIC, envelope, write_period
from tests.store.samples import NEWS, SPORT, START

PERIOD = "2024-10-04"
KEPT = [envelope(number, created=START + number, topic=(NEWS, SPORT)[number % 2]) for number in range(20)]


def record(archive: Path) -> PeriodRecord:
    return decode_record((archive / record_of(PERIOD)).read_text(), "record")


def check(archive: Path, said: PeriodRecord) -> None:
    def open_file(path: str) -> BinaryIO:
        return (archive / directory_of(PERIOD) / path).open("rb")

    with (archive / index_of(PERIOD, said.run)).open("rb") as index:
        check_index(index, said, open_file)


@pytest.mark.parametrize("layout", [BY_PREFIX, BY_TOPIC], ids=["prefix", "topic"])
def test_index_of_its_files_is_sound(tmp_path: Path, layout: Layout) -> None:
    write_period(tmp_path, KEPT, layout=layout, files_of=7)

    check(tmp_path, record(tmp_path))


@pytest.mark.parametrize("layout", [BY_PREFIX, BY_TOPIC], ids=["prefix", "topic"])
def test_fragment_of_a_file_is_that_of_its_writer(tmp_path: Path, layout: Layout) -> None:
    write_period(tmp_path, KEPT, layout=layout)
    said = record(tmp_path)
    assert said.index is not None

    with (tmp_path / index_of(PERIOD, said.run)).open("rb") as index:
        for path, entry in read_directory(index, said.index).entries.items():
            with (tmp_path / directory_of(PERIOD) / path).open("rb") as file:
                assert fragment_of(file, topic_of(path)) == read_fragment(index, entry)


def other_rows(archive: Path, said: PeriodRecord) -> PeriodRecord:
    """The index of another run, whose rows are as many."""
    index = (archive / index_of(PERIOD, said.run)).read_bytes()
    others = [envelope(number + 1, created=START + number, topic=(NEWS, SPORT)[number % 2]) for number in range(20)]
    write_period(archive, others, run=said.run, snapshot=False)
    (archive / index_of(PERIOD, said.run)).write_bytes(index)
    return replace(record(archive), index=said.index)


def other_files(archive: Path, said: PeriodRecord) -> PeriodRecord:
    return replace(said, files=said.files[1:])


def no_index(archive: Path, said: PeriodRecord) -> PeriodRecord:
    return replace(said, index=None)


def other_beginning(archive: Path, said: PeriodRecord) -> PeriodRecord:
    index = archive / index_of(PERIOD, said.run)
    index.write_bytes(b"P" + index.read_bytes()[1:])
    return said


def other_keys(archive: Path, said: PeriodRecord) -> PeriodRecord:
    index = archive / index_of(PERIOD, said.run)
    content = bytearray(index.read_bytes())
    content[100] ^= 1
    index.write_bytes(content)
    return said


def other_length(archive: Path, said: PeriodRecord) -> PeriodRecord:
    return replace(said, index=IndexRecord(5, sha256().hexdigest()))


@pytest.mark.parametrize("spoil", [other_rows, other_files, no_index, other_beginning, other_keys, other_length])
def test_index_of_anything_else_is_a_fault(tmp_path: Path, spoil: Callable[[Path, PeriodRecord], PeriodRecord]) -> None:
    write_period(tmp_path, KEPT, snapshot=False)

    said = spoil(tmp_path, record(tmp_path))

    with pytest.raises(ArchiveFault):
        check(tmp_path, said)


def test_file_of_something_else_cannot_be_indexed(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"PAR1" + bytes(100) + b"PAR1")

    with pytest.raises(ArchiveFault, match="cannot be indexed"), file.open("rb") as opened:
        fragment_of(opened)


@pytest.mark.parametrize(
    ("path", "topic"), [("topic=0x9acb0442/part", Topic(b"\x9a\xcb\x04\x42")), ("topic_prefix=9/part", None)]
)
def test_directory_of_a_topic_says_it(path: str, topic: Topic | None) -> None:
    assert topic_of(path) == topic


@pytest.mark.parametrize("path", ["topic=/part", "topic=0x9acb04/part", "topic=status/part"])
def test_directory_of_no_topic_is_a_fault(path: str) -> None:
    with pytest.raises(ArchiveFault, match="is of no topic"):
        topic_of(path)
