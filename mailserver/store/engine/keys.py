"""What a search finds: keys of envelopes, in the order of answers."""

from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from mailserver.store.interface import Raws

HASH_PREFIX_BYTES = 16
"""How much of its hash an envelope's key has: `store.sqlite.schema` says why that is enough."""

KeyPlace = tuple[int, bytes]
"""A place in the order of answers: (created, hash), where the hash may be the stored prefix, or empty."""


class EnvelopeKey(NamedTuple):
    """An envelope's place in the order (created, hash), and its row. `hash` is the stored prefix."""

    created: int
    hash: bytes
    seq: int


@dataclass(frozen=True, slots=True)
class Keys:
    """Keys in order, as columns: a thousand of them as tuples would take 200 kB, and a millisecond to make.

    `seqs`: empty where nobody reads the rows any more: their envelopes were read as they were found.
    """

    created: "array[int]" = field(default_factory=lambda: array("q"))
    hashes: bytes = b""
    seqs: "array[int]" = field(default_factory=lambda: array("q"))

    @classmethod
    def of(cls, keys: Sequence[EnvelopeKey]) -> "Keys":
        """The same as columns."""
        created, seqs = array("q", [key.created for key in keys]), array("q", [key.seq for key in keys])
        return cls(created, b"".join(key.hash for key in keys), seqs)

    def __len__(self) -> int:
        return len(self.created)

    def __iter__(self) -> Iterator[EnvelopeKey]:
        return map(EnvelopeKey, self.created, pieces(self.hashes, HASH_PREFIX_BYTES), self.seqs)

    def __add__(self, others: "Keys") -> "Keys":
        return Keys(self.created + others.created, self.hashes + others.hashes, self.seqs + others.seqs)

    @property
    def last_place(self) -> KeyPlace:
        """The place of the last of them; there is one."""
        return self.created[-1], self.hashes[-HASH_PREFIX_BYTES:]

    def first(self, count: int) -> "Keys":
        """The first `count` of them, or all."""
        return Keys(self.created[:count], self.hashes[: count * HASH_PREFIX_BYTES], self.seqs[:count])


@dataclass(frozen=True, slots=True)
class FoundKeys:
    """The first `limit` matches, newest first, and whether there may be more.

    `reached`: if the page has ended early, how far it has come: all that is still to be searched is strictly below this
    place. The place is strictly below that of the query, too, whether anything was found or not.
    `raws`: the envelopes, if they were read as they were found.
    """

    keys: Keys
    more: bool
    reached: KeyPlace | None = None
    raws: Raws | None = None

    @property
    def end(self) -> KeyPlace | None:
        """Where the next page continues, with the stored prefix of a hash; None if there is no next page."""
        if not self.more:
            return None
        return self.reached or self.keys.last_place


def pieces(packed: bytes | None, size: int) -> list[bytes]:
    """Unpack a column of bytes, each value of this size."""
    return [] if packed is None else [packed[at : at + size] for at in range(0, len(packed), size)]
