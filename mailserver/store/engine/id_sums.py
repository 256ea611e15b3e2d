"""Ids of reconciliation and their sums, which an engine keeps beside its rows: arithmetic, without any table.

A row has no id, and is not indexed, if its envelope is damaged, says another time than the row, or was created before
1970 had begun.
"""

from collections.abc import Iterable
from itertools import groupby, repeat
from typing import Literal, NamedTuple

ID_BYTES = 32

SPANS = (86_400, 3_600, 60)
"""Of how many seconds of creation there is a sum of ids each."""

MODULUS = 1 << 8 * ID_BYTES

BATCH_ROWS = 2000
"""Most rows that are indexed in one transaction: as many as are stored in one, so that a flood is kept up with."""

BATCH_BYTES = 4 * 1024 * 1024
"""A batch ends with the envelope that reaches this."""


_LITTLE: Iterable[Literal["little"]] = repeat("little")


class SumOfIds(NamedTuple):
    """How many ids there are in a bucket, and their sum modulo 2^256, read as little-endian numbers."""

    ids: int
    total: int


NO_SUM = SumOfIds(0, 0)

Sums = dict[tuple[int, int], SumOfIds]
"""By span and bucket."""


def as_numbers(ids: Iterable[bytes]) -> list[int]:
    """Ids, or sums of them, as little-endian numbers."""
    return [*map(int.from_bytes, ids, _LITTLE)]


def sum_of_ids(ids: Iterable[bytes]) -> SumOfIds:
    """Count ids of 32 bytes, and add them up."""
    values = as_numbers(ids)
    return SumOfIds(len(values), sum(values) % MODULUS)


def sums_of(items: Iterable[tuple[int, bytes, *tuple[object, ...]]]) -> Sums:
    """What items (created, id, ...), in their order, add to each bucket."""
    sums: Sums = {}
    smallest = SPANS[-1]
    for minute, group in groupby(items, lambda item: item[0] // smallest):
        count, total = sum_of_ids(item[1] for item in group)
        for span in SPANS:
            key = span, minute * smallest // span
            before = sums.get(key, NO_SUM)
            sums[key] = SumOfIds(before.ids + count, (before.total + total) % MODULUS)
    return sums


def added(there: Sums, more: Sums) -> Sums:
    """The sums of the buckets of `more`, with it."""
    return {
        key: SumOfIds((before := there.get(key, NO_SUM)).ids + count, (before.total + total) % MODULUS)
        for key, (count, total) in more.items()
    }


def subtracted(there: Sums, less: Sums) -> Sums | None:
    """The sums of the buckets of `less`, without it; None if it was not in them, as far as counts tell."""
    left = {
        key: SumOfIds((before := there.get(key, NO_SUM)).ids - count, (before.total - total) % MODULUS)
        for key, (count, total) in less.items()
    }
    return None if any(each.ids < 0 or (each.ids == 0 and each.total) for each in left.values()) else left
