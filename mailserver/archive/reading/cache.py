"""Keeps what was read from the archive and may be needed again, in a bounded number of bytes."""

from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, NamedTuple, TypeVar

ENTRY_BYTES = 200
"""Memory that an entry takes in addition to its value."""

T = TypeVar("T")


class _Entry(NamedTuple, Generic[T]):
    value: T
    bytes: int


class ByteCache(Generic[T]):
    """A cache that drops the entry that was not used for the longest time. Only the event loop's thread uses it."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._entries: OrderedDict[Hashable, _Entry[T]] = OrderedDict()
        self.bytes = 0
        """Bytes of all entries together."""

    def __contains__(self, key: Hashable) -> bool:
        return key in self._entries

    def get(self, key: Hashable) -> T | None:
        """Return the value under this key; None if there is none."""
        entry = self._entries.get(key)
        if entry is None:
            return None
        self._entries.move_to_end(key)
        return entry.value

    def put(self, key: Hashable, value: T, size: int) -> None:
        """Keep a value that takes `size` bytes. A value larger than the whole cache is not kept."""
        self.drop(key)
        size += ENTRY_BYTES
        if size > self._max_bytes:
            return
        self._entries[key] = _Entry(value, size)
        self.bytes += size
        while self.bytes > self._max_bytes:
            _, forgotten = self._entries.popitem(last=False)
            self.bytes -= forgotten.bytes

    def drop(self, key: Hashable) -> None:
        """Drop the value under this key."""
        entry = self._entries.pop(key, None)
        if entry is not None:
            self.bytes -= entry.bytes
