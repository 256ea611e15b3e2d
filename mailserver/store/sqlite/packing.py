"""How rows come out of SQLite: packed.

Each statement packs all its rows into one. To fetch a row takes Python's lock, for which a thread waits up to 5 ms
while the event loop is busy: a page of 1,000 rows would wait for seconds. Numbers are packed as text, with commas
between them, and bytes one after the other. (SQLite joins them unchanged, although it takes them for text.) Packing
keeps the order of a subquery that has a LIMIT; a LIMIT of -1 has no bound.
"""

import json
from array import array
from typing import NamedTuple

from mailserver.store.engine.keys import KeyPlace, Keys
from mailserver.store.sqlite.schema import HASH_PREFIX_BYTES

SLOTS = (1, 8, 64, 256)
"""How many things a statement looks up at once. Few sizes, so that few statements are prepared."""


class PackedKeys(NamedTuple):
    """Keys as a statement has packed them; each column is None if there are no rows."""

    created: str | None
    hashes: bytes | None
    seqs: str | None

    def unpack(self) -> Keys:
        """The same as keys."""
        return Keys(array("q", numbers(self.created)), self.hashes or b"", array("q", numbers(self.seqs)))

    @property
    def last_place(self) -> KeyPlace:
        """The place of the last of them; there is one."""
        assert self.created is not None
        assert self.hashes is not None
        return int(self.created.rpartition(",")[2]), self.hashes[-HASH_PREFIX_BYTES:]


def packed_numbers(column: str) -> str:
    """SQL that packs a column of numbers."""
    return f"group_concat({column})"


def packed_bytes(column: str) -> str:
    """SQL that packs a column of bytes."""
    return f"CAST(group_concat({column}, '') AS BLOB)"


def numbers(packed: str | None) -> list[int]:
    """Unpack a column of numbers."""
    unpacked: list[int] = [] if packed is None else json.loads(f"[{packed}]")
    return unpacked


def slots_for(count: int) -> int:
    """The smallest of SLOTS that holds `count`, which is at most SLOTS[-1]."""
    return next(slots for slots in SLOTS if slots >= count)
