"""What was read of the archive and may be asked for again, in a bounded number of bytes."""

from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, NamedTuple, TypeVar

ENTRY_BYTES = 200
"""What an entry takes beside its value."""

T = TypeVar("T")


class _Entry(NamedTuple, Generic[T]):
    value: T
    bytes: int


class ByteCache(Generic[T]):
    """Forgets what was not asked for longest. Only the event loop's thread uses it."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._entries: OrderedDict[Hashable, _Entry[T]] = OrderedDict()
        self.bytes = 0
        """What all that is kept takes."""

    def __contains__(self, key: Hashable) -> bool:
        return key in self._entries

    def get(self, key: Hashable) -> T | None:
        """What is kept under this key; None if nothing is."""
        entry = self._entries.get(key)
        if entry is None:
            return None
        self._entries.move_to_end(key)
        return entry.value

    def put(self, key: Hashable, value: T, size: int) -> None:
        """Keep a value of so many bytes; not one that takes more than there may be in all."""
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
        """Forget what is kept under this key."""
        entry = self._entries.pop(key, None)
        if entry is not None:
            self.bytes -= entry.bytes
