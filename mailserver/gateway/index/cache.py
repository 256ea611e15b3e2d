"""Messages that were asked for lately, as answers have them: clients ask for the same at every reconnect."""

from collections import OrderedDict
from collections.abc import Hashable, Iterable, Mapping
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

    def find(self, keys: Iterable[K]) -> dict[K, StoredEntry]:
        """The entries of those messages that are kept."""
        kept = self._entries
        found = {key: kept[key] for key in keys if key in kept}
        for key in found:
            kept.move_to_end(key)
        return found

    def keep(self, entries: Mapping[K, StoredEntry]) -> None:
        """Keep entries, in place of those that were not used for longest."""
        kept, new_bytes = self._entries, 0
        for key, entry in entries.items():
            if key not in kept:
                kept[key] = entry
                new_bytes += len(entry.encoded) + _ENTRY_BYTES
        self._bytes += new_bytes
        while self._bytes > self._max_bytes:
            _, oldest = kept.popitem(last=False)
            self._bytes -= len(oldest.encoded) + _ENTRY_BYTES
