"""Asking a responder which of many sums are those of its own items: one message, one answer.

Whoever has sums of its items by time, and not yet the items, compares these first, and then only the items of the times
that differ. For the responder it is a message of negentropy like any other.
"""

from collections.abc import Sequence
from typing import NamedTuple

from mailserver.reconcile.storage import fingerprint_of
from mailserver.reconcile.wire import (
    INFINITY,
    MAX_MESSAGE_BYTES,
    TIMESTAMP_BYTES,
    FrameWriter,
    Mode,
    Range,
    read_ranges,
)

MAX_SUMS = 40_000
"""How many can be asked about at once: one takes up to 24 bytes of a message, with the range before it that is
skipped."""


class TimeSum(NamedTuple):
    """Items with timestamps from `lower` to `upper`, both inclusive: how many ids, and the sum of these
    (`storage.sum_of`), reduced or not."""

    lower: int
    upper: int
    ids: int
    total: int


def ask_about(sums: Sequence[TimeSum]) -> bytes:
    """The message that asks about sums of times that rise.

    Raises:
        ValueError: these are more than MAX_SUMS.
    """
    if len(sums) > MAX_SUMS:
        raise ValueError(f"{len(sums)} sums are more than {MAX_SUMS}")
    frame = FrameWriter(MAX_MESSAGE_BYTES)
    reached = 0
    for each in sums:
        if each.lower > reached:
            frame.skip(_bound(each.lower))
        reached = each.upper + 1
        frame.put([Range(_bound(reached), Mode.FINGERPRINT, fingerprint_of(each.total, each.ids))])
    return frame.message()


def differing(sums: Sequence[TimeSum], answer: bytes) -> list[TimeSum]:
    """Those of the sums that are not the responder's. Where its answer was cut off by a limit, all that follow count as
    such.

    Raises:
        DecodeError: the answer is no message.
    """
    found: list[TimeSum] = []
    left = iter(sums)
    each = next(left, None)
    lower = _bound(0)
    for said in read_ranges(answer):
        while each is not None and _bound(each.upper + 1) <= lower:
            each = next(left, None)
        if said.mode is not Mode.SKIP:
            while each is not None and _bound(each.lower) < said.upper:
                found.append(each)
                each = next(left, None)
        lower = said.upper
    return found


def _bound(timestamp: int) -> bytes:
    """The bound below all items with this timestamp or a later one."""
    return min(timestamp.to_bytes(TIMESTAMP_BYTES, "big"), INFINITY)
