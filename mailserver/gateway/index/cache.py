"""Messages that were asked for lately, as answers have them: clients ask for the same at every reconnect."""

from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, TypeVar

from mailserver.gateway.index.values import StoredEntry

MAX_CACHE_BYTES = 16 * 1024 * 1024
"""Some 18,000 messages of the usual half kilobyte."""

_ENTRY_BYTES = 300
"""What an entry takes beside its encoded form."""


K = TypeVar("K", bound=Hashable)


class EntryCache(Generic[K]):
    """The entries that were used last, by whatever names them. What is kept says nothing about what is still in the
    store."""

    def __init__(self, max_bytes: int = MAX_CACHE_BYTES) -> None:
        self._max_bytes = max_bytes
        self._bytes = 0
        self._entries: OrderedDict[K, StoredEntry] = OrderedDict()

    def __contains__(self, key: object) -> bool:
        return key in self._entries

    def get(self, key: K) -> StoredEntry | None:
        """The entry of a message; None if it is not kept."""
        entry = self._entries.get(key)
        if entry is not None:
            self._entries.move_to_end(key)
        return entry

    def put(self, key: K, entry: StoredEntry) -> None:
        """Keep an entry, in place of those that were not used for longest."""
        if key in self._entries:
            return
        self._entries[key] = entry
        self._bytes += len(entry.encoded) + _ENTRY_BYTES
        while self._bytes > self._max_bytes:
            _, oldest = self._entries.popitem(last=False)
            self._bytes -= len(oldest.encoded) + _ENTRY_BYTES
