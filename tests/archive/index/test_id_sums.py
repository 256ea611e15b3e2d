"""mailserver.archive.index.id_sums: sums are those of the set, and damage in them is noticed."""

from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from hashlib import sha256
from io import BytesIO

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mailserver.archive.errors import ArchiveFault
from mailserver.archive.index.id_sums import read_days, read_minutes, sums_of, together, total_of
from mailserver.archive.index.layout import Table
from mailserver.archive.index.writer import IndexWriter
from mailserver.archive.manifest import SumsRecord
from mailserver.reconcile.storage import sum_of
from mailserver.units import SECONDS_PER_DAY
from tests.archive.index.indexes import fragment, row
from tests.properties import settings

TOPIC = "/waku/2/rs/1/4"
ROWS = [row(2, 1000 + number, number) for number in range(10)]

Named = list[tuple[int, bytes | None]]
NAMED: Named = [(86_390 + number, bytes([number]) * 33) for number in range(40)]


def summed(some: Named) -> Table:
    return sums_of(
        pa.array([created for created, _ in some], pa.int64()), pa.array([one for _, one in some], pa.binary())
    )


def written(minutes: Table, *files: bytes) -> tuple[BytesIO, SumsRecord]:
    file = BytesIO()
    writer = IndexWriter(file)
    for number, one in enumerate(files or [fragment(ROWS, 4)]):
        writer.add(f"topic_prefix=0/part-{number:05}", one)
    record = writer.finish((TOPIC, minutes)).sums
    assert record is not None
    return file, record


@settings(max_examples=100)
@given(
    st.lists(
        st.tuples(
            st.one_of(st.integers(1, 200_000), st.integers(2**32 - 200, 2**32 - 1)),
            st.one_of(st.none(), st.binary(min_size=33, max_size=40)),
        ),
        max_size=40,
    ),
    st.integers(0, 40),
)
def test_sums_are_those_of_the_ids(some: Named, cut: int) -> None:
    file, record = written(together([summed(some[:cut]), summed(some[cut:])]))

    days = read_days(file, record)

    by_minute, by_day = defaultdict[int, list[bytes]](list), defaultdict[int, list[bytes]](list)
    for created, name in some:
        if name is not None:
            by_minute[created // 60].append(sha256(name).digest())
            by_day[created // SECONDS_PER_DAY].append(sha256(name).digest())
    assert (days.network_topic, days.each_once) == (TOPIC, True)
    assert _said(days.days, "day") == _expected(by_day)
    minutes = [read_minutes(file, days, number) for number in range(len(days.days))]
    assert _said(together(minutes), "minute") == _expected(by_minute)
    for day, table in zip(days.days["day"].tolist(), minutes, strict=True):
        assert days.row_of(day) is not None
        assert {minute * 60 // SECONDS_PER_DAY for minute in table["minute"].tolist()} == {day}
    assert days.row_of(1_000_000) is None


def read_all(file: BytesIO, record: SumsRecord) -> Table:
    days = read_days(file, record)
    return together(read_minutes(file, days, number) for number in range(len(days.days)))


def _said(table: Table, name: str) -> dict[int, tuple[int, int]]:
    return {int(one[name]): (int(one["count"]), total_of(one)) for one in table}


def _expected(by: dict[int, list[bytes]]) -> dict[int, tuple[int, int]]:
    return {number: (len(ids), sum_of(ids) % 2**256) for number, ids in by.items()}


def test_id_of_no_time_is_refused() -> None:
    with pytest.raises(ValueError, match="an impossible time"):
        summed([(0, b"x" * 33)])


@pytest.mark.parametrize(("first", "second", "once"), [(0, 5, True), (0, 4, False), (5, 0, True)])
def test_period_that_has_an_envelope_twice_has_no_sums(first: int, second: int, once: bool) -> None:
    files = [fragment(ROWS[first : first + 5], 2), fragment(ROWS[second : second + 5], 3)]

    days = read_days(*written(summed(NAMED), *files))

    assert days.each_once is once
    assert len(days.days) == (2 if once else 0)


def test_files_that_overlap_have_each_envelope_once_if_their_hashes_are_apart() -> None:
    days = read_days(*written(summed(NAMED), fragment(ROWS[::2], 2), fragment(ROWS[1::2], 3)))

    assert days.each_once


@pytest.mark.parametrize("directory_of_two", [0, 1, 2])
def test_envelope_that_is_twice_in_any_directory_is_noticed(directory_of_two: int) -> None:
    file = BytesIO()
    writer = IndexWriter(file)
    for directory in range(3):
        for number, some in enumerate((ROWS[:4], ROWS[3:] if directory == directory_of_two else ROWS[4:])):
            writer.add(f"topic_prefix={directory}/part-{number:05}", fragment(some, 2))

    record = writer.finish((TOPIC, summed(NAMED))).sums

    assert record is not None
    assert not read_days(file, record).each_once


def test_any_changed_byte_is_noticed() -> None:
    file, record = written(summed(NAMED))
    content = file.getvalue()
    for at in range(record.at, record.at + record.bytes + read_all(file, record).nbytes):
        changed = BytesIO(content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :])
        with pytest.raises(ArchiveFault):
            read_all(changed, record)


@pytest.mark.parametrize(
    ("spoil", "cause"),
    [
        (lambda head: b"X" + head[1:], "there are no sums"),
        (lambda head: head[:8] + b"\2" + head[9:], "have version 2"),
        (lambda head: head[:-8], "contradict themselves"),
        (lambda head: head[:12], "were cut off"),
        (lambda head: head[:12] + b"\xff\xff" + head[14:], "contradict themselves"),
        (lambda head: head[:40] + head[104:168] + head[40:104], "contradict themselves"),
    ],
)
def test_head_that_is_none_is_refused(spoil: Callable[[bytes], bytes], cause: str) -> None:
    file, record = written(summed(NAMED))
    content = file.getvalue()
    head = spoil(content[record.at : record.at + record.bytes])
    assert len(head) <= record.bytes

    with pytest.raises(ArchiveFault, match=cause):
        read_days(BytesIO(head), SumsRecord(0, len(head), sha256(head).hexdigest()))


def test_sums_that_were_cut_off_or_are_too_long_are_refused() -> None:
    file, record = written(summed(NAMED))
    for said in (replace(record, at=len(file.getvalue())), replace(record, bytes=2**40)):
        with pytest.raises(ArchiveFault):
            read_days(file, said)
