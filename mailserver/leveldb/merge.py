"""One order of all entries of a database, from tables and journals that have some each: of every key the newest.

A table is opened only when its first entry is next, so as few are open at a time as lie over each other.
"""

from collections.abc import Callable, Iterator, Sequence
from heapq import heappop, heappush, heapreplace
from typing import NamedTuple

from mailserver.leveldb.entries import Entry, EntryOrder, UnreadablePiece

Items = Iterator[Entry | UnreadablePiece]
"""Entries in order, and what cannot be read between them."""


class SortedRun(NamedTuple):
    """Entries in order, none of which is before `first`. `open` begins to read them."""

    first: EntryOrder
    open: Callable[[], Items]


def newest(runs: Sequence[SortedRun]) -> Items:
    """The newest entry of each key, unless it says that the key was deleted; and what cannot be read."""
    waiting = sorted(runs, key=lambda run: run.first, reverse=True)
    heads: list[tuple[EntryOrder, int, Entry, Items]] = []
    opened = 0
    before: bytes | None = None
    while waiting or heads:
        while waiting and (not heads or waiting[-1].first <= heads[0][0]):
            items = waiting.pop().open()
            opened += 1
            head, unreadable = _next(items)
            yield from unreadable
            if head is not None:
                heappush(heads, (_order(head), opened, head, items))
        if not heads:
            continue
        _, number, entry, items = heads[0]
        head, unreadable = _next(items)
        if head is None:
            heappop(heads)
        else:
            heapreplace(heads, (_order(head), number, head, items))
        if entry.key != before:
            before = entry.key
            if entry.value is not None:
                yield entry
        yield from unreadable


def _order(entry: Entry) -> EntryOrder:
    return entry.key, -entry.sequence


def _next(items: Items) -> tuple[Entry | None, list[UnreadablePiece]]:
    """The next entry, None if there is none; and what cannot be read before it."""
    unreadable: list[UnreadablePiece] = []
    for item in items:
        if isinstance(item, Entry):
            return item, unreadable
        unreadable.append(item)
    return None, unreadable
