"""spark_export.pieces: how the rows of a run are cut, each into one piece."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mailserver.archive.fingerprint import Fingerprint
from mailserver.archive.manifest import DayRecord, FileRecord, PeriodRecord
from spark_export import pieces
from spark_export.pieces import (
    Batch,
    FileRows,
    GroupSpan,
    StoreRows,
    large_partitions,
    piece_counts,
    pieces_of_day,
    pieces_of_month,
)
from spark_export.store import StoreSnapshot
from tests.spark_export.samples import DAY, FIRST

MONTH = "2024-10"


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """A piece has 100 bytes, and is halved if it has 25."""
    monkeypatch.setattr(pieces, "PIECE_BYTES", 100)
    monkeypatch.setattr(pieces, "HALVED_BYTES", 25)


def store(number: int) -> StoreSnapshot:
    return StoreSnapshot(Path(f"/stores/{number}"), f"id-{number}", (), 1, 0)


def record(period: str, *files: tuple[str, int], sha256: str = "12") -> PeriodRecord:
    return PeriodRecord(period, "run", {}, tuple(FileRecord(path, size, 1, sha256) for path, size in files))


def batches(*sizes: int, first: int = 11) -> list[Batch]:
    """One for each size, of ten rows each."""
    return [Batch(first + 10 * at, first + 10 * at + 9, 10, size) for at, size in enumerate(sizes)]


def cut(count: int, some: Sequence[Batch], *left_out: int) -> list[tuple[list[int], list[int]]]:
    """Of each piece of a day of one store: the sizes of its batches, and what it leaves out."""
    found = pieces_of_day(DAY, count, [store(0)], {0: some}, {0: np.array(left_out, np.int64)}, None)
    assert [piece.number for piece in found] == sorted({piece.number for piece in found})
    assert {piece.period for piece in found} <= {FIRST}
    sources = [source for piece in found for source in piece.sources]
    return [
        ([batch.bytes for batch in one.batches], one.left_out.tolist()) for one in sources if isinstance(one, StoreRows)
    ]


def test_usual_day_is_one_piece() -> None:
    assert cut(1, batches(50, 50)) == [([50, 50], [])]


def test_pieces_of_a_day_have_as_many_bytes_each() -> None:
    assert cut(4, batches(*[10] * 20)) == [([10] * 5, [])] * 4


def test_piece_with_a_large_batch_has_fewer_others() -> None:
    assert [piece for piece, _ in cut(4, batches(*[10] * 9, 100, *[10] * 10))] == [
        [10] * 7,
        [10, 10, 100],
        [10] * 3,
        [10] * 7,
    ]


def test_rows_that_are_left_out_are_told_to_the_piece_that_has_them() -> None:
    assert cut(2, batches(50, 50), 11, 20, 21, 30) == [([50], [11, 20]), ([50], [21, 30])]


def test_rows_that_are_left_out_have_no_size() -> None:
    assert cut(2, batches(*[50] * 6), *range(11, 51)) == [([50] * 5, list(range(11, 51))), ([50], [])]


def test_day_of_which_all_is_left_out_is_one_piece() -> None:
    assert cut(2, batches(50, 50), *range(11, 31)) == [([50, 50], list(range(11, 31)))]


def test_more_rows_may_be_left_out_than_a_batch_has() -> None:
    # The ranges of two days overlap where the clock was set back.
    assert cut(2, [Batch(1, 40, 5, 50), Batch(41, 45, 5, 50)], *range(1, 41)) == [
        ([50], list(range(1, 41))),
        ([50], []),
    ]


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


@given(st.lists(st.integers(0, 120), min_size=1, max_size=60))
def test_pieces_of_a_day_have_each_batch_once_and_no_piece_is_too_large(sizes: list[int]) -> None:
    count = piece_counts({DAY: sum(sizes)})[DAY]

    found = [piece for piece, _ in cut(count, batches(*sizes))]

    assert [size for piece in found for size in piece] == sizes
    assert all(sum(piece) <= pieces.PIECE_BYTES + max(sizes) for piece in found)


def test_day_of_several_stores_takes_what_each_has_and_what_the_archive_has() -> None:
    before = record(FIRST, ("topic_prefix=1/a", 50), ("topic_prefix=2/b", 50))

    found = pieces_of_day(DAY, 2, [store(0), store(1)], {0: batches(9, 9), 1: batches(8, 8, first=1)}, {}, before)

    rows = [[source for source in piece.sources if isinstance(source, StoreRows)] for piece in found]
    assert [[(one.store, one.store_id, one.batches[0].first_seq) for one in of_piece] for of_piece in rows] == [
        [(0, "id-0", 11), (1, "id-1", 1)],
        [(0, "id-0", 21), (1, "id-1", 11)],
    ]
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


def test_directories_of_a_month_are_looked_into_where_large_envelopes_may_take_little_room() -> None:
    # 10 of the 42 bytes are of envelopes: 32 are a row's hash.
    of_day = DayRecord(Fingerprint(1, 61, 0), 0, 0, {}, 0)
    small = replace(record(FIRST, ("topic_prefix=1/a", 21), ("topic_prefix=2/a", 21)), days={DAY: of_day})
    usual = replace(small, days={DAY: replace(of_day, fingerprint=Fingerprint(1, 10, 0))})
    with_id = replace(usual, network_topic="/waku/2/rs/1/4")  # so nothing is of envelopes, which had 10: 32 were saved

    assert large_partitions([usual, usual]) == {}
    assert large_partitions([small, usual]) == {}
    assert large_partitions([usual, with_id]) == {}
    for both in ([small, small], [small, with_id]):
        assert sorted(large_partitions(both)) == ["topic_prefix=1", "topic_prefix=2"]


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
