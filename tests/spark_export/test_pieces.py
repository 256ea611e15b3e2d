"""spark_export.pieces: how the rows of a run are cut, each into one piece."""

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mailserver.archive.manifest import FileRecord, PeriodRecord
from spark_export import pieces
from spark_export.pieces import (
    FileRows,
    GroupSpan,
    StoreRows,
    large_partitions,
    piece_counts,
    pieces_of_day,
    pieces_of_month,
)
from spark_export.store import Store, StoreDay
from tests.spark_export.samples import DAY, FIRST

MONTH = "2024-10"


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """A piece has 100 bytes, and is halved if it has 25."""
    monkeypatch.setattr(pieces, "PIECE_BYTES", 100)
    monkeypatch.setattr(pieces, "HALVED_BYTES", 25)


def store(number: int, *days: StoreDay) -> Store:
    return Store(Path(f"/stores/{number}"), f"id-{number}", days, 1)


def record(period: str, *files: tuple[str, int], sha256: str = "12") -> PeriodRecord:
    return PeriodRecord(period, "run", {}, tuple(FileRecord(path, size, 1, sha256) for path, size in files))


def ranges(day: StoreDay, size: int, *left_out: int) -> list[tuple[int, int, list[int]]]:
    count = piece_counts({day.day: size})[day.day]
    found = pieces_of_day(day.day, count, [store(0, day)], [[day]], {0: np.array(left_out, np.int64)}, None)
    assert [piece.number for piece in found] == list(range(len(found)))
    assert {piece.period for piece in found} == {FIRST}
    sources = [source for piece in found for source in piece.sources]
    assert all(isinstance(source, StoreRows) for source in sources)
    return [(one.first_seq, one.last_seq, one.left_out.tolist()) for one in sources if isinstance(one, StoreRows)]


def test_usual_day_is_one_piece() -> None:
    assert ranges(StoreDay(DAY, 5, 100, 11, 20), 100) == [(11, 20, [])]


def test_large_day_is_an_even_number_of_pieces_that_have_each_row_once() -> None:
    assert ranges(StoreDay(DAY, 5, 201, 11, 20), 201) == [(11, 12, []), (13, 15, []), (16, 17, []), (18, 20, [])]


def test_rows_that_are_left_out_are_told_to_the_piece_that_has_them() -> None:
    assert ranges(StoreDay(DAY, 5, 101, 11, 20), 101, 11, 15, 16, 20) == [(11, 15, [11, 15]), (16, 20, [16, 20])]


@pytest.mark.parametrize(
    ("sizes", "counts"),
    [
        ([30, 40], [(1, 1), (0, 1)]),
        ([30, 600, 40], [(1, 6), (2, 1), (0, 1)]),
        ([600, 90], [(0, 6), (1, 2)]),
        ([30, 40, 20], [(0, 1), (1, 2), (2, 1)]),
        ([30, 30, 30], [(0, 1), (1, 1), (2, 2)]),
        ([600, 24], [(0, 6), (1, 1)]),
        ([90], [(0, 1)]),
    ],
)
def test_group_of_days_has_an_even_number_of_pieces_the_largest_first(
    sizes: list[int], counts: list[tuple[int, int]]
) -> None:
    assert list(piece_counts(dict(enumerate(sizes))).items()) == counts


@given(st.integers(1, 40), st.integers(1, 40), st.integers(0, 2000))
def test_pieces_cover_a_day_without_gaps(first: int, count: int, size: int) -> None:
    found = ranges(StoreDay(DAY, count, size, first, first + count - 1), size)

    assert (found[0][0], found[-1][1]) == (first, first + count - 1)
    assert all(one[1] + 1 == other[0] for one, other in pairwise(found))


def test_day_of_several_stores_takes_what_each_has_and_what_the_archive_has() -> None:
    day, other = StoreDay(DAY, 5, 100, 1, 10), StoreDay(DAY + 1, 5, 100, 11, 20)
    before = record(FIRST, ("topic_prefix=1/a", 50), ("topic_prefix=2/b", 50))

    found = pieces_of_day(DAY, 2, [store(0, day), store(1, day, other)], [[day], [day, other]], {}, before)

    assert [[type(source) for source in piece.sources] for piece in found] == [[StoreRows, StoreRows, FileRows]] * 2
    files = [source for piece in found for source in piece.sources if isinstance(source, FileRows)]
    assert files == [FileRows(f"date={FIRST}/topic_prefix={name}", "12") for name in ("1/a", "2/b")]


def names(month: list[pieces.Piece]) -> Iterator[list[str]]:
    for piece in month:
        yield [source.name for source in piece.sources if isinstance(source, FileRows)]


def test_directories_of_a_month_share_pieces_and_stay_whole() -> None:
    one = record("2024-10-04", ("topic=0x1/a", 30), ("topic=0x2/a", 30), ("topic=0x3/a", 30))
    two = record("2024-10-05", ("topic=0x1/b", 30), ("topic=0x2/b", 30), ("topic=0x3/b", 30))

    found = pieces_of_month(MONTH, [one, two], {})

    assert [(piece.period, piece.number) for piece in found] == [(MONTH, 0), (MONTH, 1), (MONTH, 2)]
    assert list(names(found)) == [
        [f"date=2024-10-04/topic=0x{digit}/a", f"date=2024-10-05/topic=0x{digit}/b"] for digit in "123"
    ]


def test_small_directories_of_a_month_are_one_piece() -> None:
    found = pieces_of_month(MONTH, [record("2024-10-04", *((f"topic=0x{digit}/a", 30) for digit in "123"))], {})

    assert [len(piece.sources) for piece in found] == [3]


def test_month_without_files_has_no_piece() -> None:
    assert pieces_of_month(MONTH, [record("2024-10-04")], {}) == []


def test_only_directories_that_are_too_large_are_looked_into() -> None:
    parts = [record(f"2024-10-0{day}", ("topic_prefix=1/a", 60), ("topic_prefix=2/a", 50)) for day in (4, 5)]

    assert large_partitions(parts) == {
        "topic_prefix=1": [FileRows(f"date=2024-10-0{day}/topic_prefix=1/a", "12") for day in (4, 5)]
    }


Rows = list[tuple[str, int]]


@given(st.lists(st.tuples(st.sampled_from("abcdef"), st.integers(0, 9)), min_size=1), st.integers(1, 5))
def test_each_row_of_a_large_directory_is_in_one_piece_and_pieces_are_in_order(rows: Rows, per_group: int) -> None:
    files: dict[str, list[Rows]] = {}
    for name in ("x", "y"):
        of_file = sorted(rows[name == "y" :: 2])
        files[name] = [of_file[start : start + per_group] for start in range(0, len(of_file), per_group)]
    groups = [
        GroupSpan(name, number, 30 * len(group), (group[0][0], group[-1][0]), _span(group))
        for name, of_file in files.items()
        for number, group in enumerate(of_file)
    ]

    found = pieces_of_month(MONTH, [record("2024-10-04", ("topic_prefix=1/a", 101))], {"topic_prefix=1": groups})

    read = []
    for piece in found:
        held: Rows = []
        for source in piece.sources:
            assert isinstance(source, FileRows)
            lower, upper = source.span
            for number in source.groups or ():
                held += [
                    row
                    for row in files[source.name][number]
                    if (lower is None or row >= lower) and (upper is None or row < upper)
                ]
        read.append(sorted(held))
    assert [row for piece in read for row in piece] == sorted(rows)


def _span(group: Rows) -> tuple[int, int]:
    return min(created for _, created in group), max(created for _, created in group)
