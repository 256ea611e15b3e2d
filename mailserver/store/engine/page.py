"""A page of an answer: it remembers the rows that a search has found, and reads them when it is asked to."""

from bisect import bisect_left
from collections.abc import Sequence
from typing import Generic, Protocol, Self, TypeVar

from mailserver.store.engine.fitting import first_of, fitting
from mailserver.store.engine.keys import HASH_PREFIX_BYTES, FoundKeys, Keys
from mailserver.store.interface import Place, Raws
from mailserver.waku.envelope import HASH_BYTES, EnvelopeHash
from mailserver.waku.last_hash import LastHash

_NOTHING = Raws(b"", ())
_LAST_PREFIX = b"\xff" * HASH_PREFIX_BYTES


class SomeRows(Protocol):
    """What a reader needs to know of rows."""

    def __len__(self) -> int: ...

    def __getitem__(self, part: slice, /) -> Self: ...


Rows = TypeVar("Rows", bound=SomeRows)


class RowReader(Protocol[Rows]):
    """Reads the rows that keys are of, at its payer's expense."""

    def rows_of(self, keys: Keys) -> Rows:
        """The rows of keys."""

    async def read(self, rows: Rows, max_bytes: int) -> Raws:
        """Read the first of these rows: at least one, and more as long as all of them fit into `max_bytes`.

        It may be fewer than fit.
        """


class KeptKeysPage(Generic[Rows]):
    """A `store.interface.StoredPage`. It keeps no envelopes, but the last that was read if it is short: a client that
    does not read on occupies little memory. Those that were read as they were found are kept until they are wanted."""

    __slots__ = ("_at", "_body_at", "_end", "_keys", "_last", "_raws", "_reader", "_rows", "ended_early")

    def __init__(self, found: FoundKeys, reader: RowReader[Rows]) -> None:
        """Take what was found, and what reads it for its payer."""
        self._reader = reader
        self._keys = found.keys
        self._rows = reader.rows_of(found.keys)
        self._raws = found.raws
        self._body_at = 0  # how many bytes of these were read
        self._at = 0
        self._end = found.end
        self._last = LastHash()
        self.ended_early = found.reached is not None

    @property
    def left(self) -> int:
        """How many envelopes are still to be read."""
        return len(self._keys) - self._at

    def ranks(self, places: Sequence[Place]) -> list[int | None]:
        """How many of what was found come before each of these places; None for one that was found itself."""
        # Older first, for bisect.
        created, hashes = self._keys.created[::-1], self._keys.hashes
        count = len(created)

        def prefix_at(at: int) -> bytes:
            start = (count - 1 - at) * HASH_PREFIX_BYTES
            return hashes[start : start + HASH_PREFIX_BYTES]

        ranks: list[int | None] = []
        for second, full_hash in places:
            prefix = full_hash[:HASH_PREFIX_BYTES]
            first = bisect_left(created, second)
            beyond = bisect_left(created, second + 1, first)
            at = bisect_left(range(count), prefix, first, beyond, key=prefix_at)
            is_found = at < beyond and prefix_at(at) == prefix
            ranks.append(None if is_found else count - at)
        return ranks

    def place(self, number: int) -> Place:
        """The place of an envelope that was found, by its number; see `store.interface.Page`.

        Zeros stand for the part of the hash that the index has not: nothing is between that and the envelope.
        """
        prefix = self._keys.hashes[number * HASH_PREFIX_BYTES : (number + 1) * HASH_PREFIX_BYTES]
        return self._keys.created[number], EnvelopeHash(prefix.ljust(HASH_BYTES, b"\x00"))

    def above(self, number: int) -> Place:
        """The place right above an envelope that was found, by its number; it may have been deleted since.

        The first of those that have the first bytes of its hash is meant: there are no two.
        """
        created = self._keys.created[number]
        prefix = self._keys.hashes[number * HASH_PREFIX_BYTES : (number + 1) * HASH_PREFIX_BYTES]
        if prefix == _LAST_PREFIX:
            return created + 1, EnvelopeHash(bytes(HASH_BYTES))
        following = (int.from_bytes(prefix, "big") + 1).to_bytes(HASH_PREFIX_BYTES, "big")
        return created, EnvelopeHash(following.ljust(HASH_BYTES, b"\x00"))

    def cut(self, count: int) -> None:
        """Leave out all but the first `count`; there is more behind them."""
        self._keys = self._keys.first(count)
        self._rows = self._reader.rows_of(self._keys)
        if self._raws is not None:
            self._raws = first_of(self._raws, count)
        self._end = self._keys.last_place if self._keys else None
        self.ended_early = False

    @property
    def last_hash(self) -> EnvelopeHash | None:
        """Keccak-256 of the last envelope that was read; None before the first."""
        return self._last.value()

    @property
    def end(self) -> Place | None:
        """Where the next page begins; None if there is no next page.

        That is behind the last envelope found, even if it was deleted since, or further down. The index has only the
        first bytes of a hash. If the envelope is gone, zeros stand for the rest, which is the same place.
        """
        if self._end is None:
            return None
        created, prefix = self._end
        last_hash = self.last_hash
        if prefix and last_hash is not None and last_hash.startswith(prefix):
            return created, last_hash
        return created, EnvelopeHash(prefix.ljust(HASH_BYTES, b"\x00"))

    async def read(self, count: int, max_bytes: int) -> Raws:
        """Read the next envelopes, `count` at most; see `store.interface.Page`."""
        if self._raws is None:
            raws = await self._reader.read(self._rows[self._at : self._at + count], max_bytes)
        else:
            raws = self._next_of(self._raws, count, max_bytes)
        self._at += len(raws.sizes)
        if raws.body:
            self._last.take(raws.last)
        return raws

    def _next_of(self, found: Raws, count: int, max_bytes: int) -> Raws:
        """The next envelopes of those that were read as they were found. Once all were read, they are not kept."""
        sizes = found.sizes[self._at : self._at + count]
        body = found.body[self._body_at : self._body_at + sum(sizes)]
        raws = fitting(body, sizes, len(sizes), max_bytes, at_least=1)
        self._body_at += len(raws.body)
        if self._at + len(raws.sizes) == len(found.sizes):
            self._raws = _NOTHING
        return raws
