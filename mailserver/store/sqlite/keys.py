"""What a search finds, as keys, and how rows come out of SQLite: packed.

Each statement packs all its rows into one. To fetch a row takes Python's lock, for which a thread waits up to 5 ms
while the event loop is busy: a page of 1,000 rows would wait for seconds. Numbers are packed as text, with commas
between them, and bytes one after the other. (SQLite joins them unchanged, although it takes them for text.) Packing
keeps the order of a subquery that has a LIMIT; a LIMIT of -1 has no bound.
"""

import json
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from mailserver.store.sqlite.schema import HASH_PREFIX_BYTES

SLOTS = (1, 8, 64, 256)
"""How many things a statement looks up at once. Few sizes, so that few statements are prepared."""

KeyPlace = tuple[int, bytes]
"""A place in the order of answers: (created, hash), where the hash may be the stored prefix, or empty."""


class Key(NamedTuple):
    """An envelope's place in the order (created, hash), and its row. `hash` is the stored prefix."""

    created: int
    hash: bytes
    seq: int


@dataclass(frozen=True, slots=True)
class Keys:
    """Keys in order, as columns: a thousand of them as tuples would take 200 kB, and a millisecond to make."""

    created: "array[int]" = field(default_factory=lambda: array("q"))
    hashes: bytes = b""
    seqs: "array[int]" = field(default_factory=lambda: array("q"))

    @classmethod
    def of(cls, keys: Sequence[Key]) -> "Keys":
        """The same as columns."""
        created, seqs = array("q", [key.created for key in keys]), array("q", [key.seq for key in keys])
        return cls(created, b"".join(key.hash for key in keys), seqs)

    @classmethod
    def unpacked(cls, created: str | None, hashes: bytes | None, seqs: str | None) -> "Keys":
        """Unpack what a statement has packed."""
        return cls(array("q", numbers(created)), hashes or b"", array("q", numbers(seqs)))

    def __len__(self) -> int:
        return len(self.seqs)

    def __iter__(self) -> Iterator[Key]:
        return map(Key, self.created, pieces(self.hashes, HASH_PREFIX_BYTES), self.seqs)

    def __add__(self, others: "Keys") -> "Keys":
        return Keys(self.created + others.created, self.hashes + others.hashes, self.seqs + others.seqs)

    @property
    def last(self) -> Key:
        """The last of them; there is one."""
        return Key(self.created[-1], self.hashes[-HASH_PREFIX_BYTES:], self.seqs[-1])

    def first(self, count: int) -> "Keys":
        """The first `count` of them, or all."""
        return Keys(self.created[:count], self.hashes[: count * HASH_PREFIX_BYTES], self.seqs[:count])


class PackedKeys(NamedTuple):
    """Keys as a statement has packed them; each column is None if there are no rows."""

    created: str | None
    hashes: bytes | None
    seqs: str | None

    def unpack(self) -> Keys:
        """The same as keys."""
        return Keys.unpacked(*self)

    @property
    def last_place(self) -> KeyPlace:
        """The place of the last of them; there is one."""
        assert self.created is not None
        assert self.hashes is not None
        return int(self.created.rpartition(",")[2]), self.hashes[-HASH_PREFIX_BYTES:]


@dataclass(frozen=True, slots=True)
class Found:
    """The first `limit` matches, newest first, and whether there may be more.

    `reached`: if the page has ended early, how far it has come: all that is still to be searched is strictly below this
    place. The place is strictly below that of the query, too, whether anything was found or not.
    """

    keys: Keys
    more: bool
    reached: KeyPlace | None = None

    @property
    def end(self) -> KeyPlace | None:
        """Where the next page continues, with the stored prefix of a hash; None if there is no next page."""
        if not self.more:
            return None
        return self.reached or self.keys.last[:2]


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


def pieces(packed: bytes | None, size: int) -> list[bytes]:
    """Unpack a column of bytes, each value of this size."""
    return [] if packed is None else [packed[at : at + size] for at in range(0, len(packed), size)]


def slots_for(count: int) -> int:
    """The smallest of SLOTS that holds `count`, which is at most SLOTS[-1]."""
    return next(slots for slots in SLOTS if slots >= count)
