"""A page of an answer: it remembers the rows that a search has found, and reads them when it is asked to."""

from mailserver.codec.keccak import keccak256
from mailserver.store.interface import Place, Raws
from mailserver.store.sqlite.keys import Found
from mailserver.store.sqlite.reader import RowReader
from mailserver.waku.envelope import HASH_BYTES, EnvelopeHash


class SqlitePage:
    """A `store.interface.Page`. It keeps only row numbers: a client that does not read on occupies little memory."""

    __slots__ = ("_at", "_end", "_last", "_last_hash", "_reader", "_seqs", "ended_early")

    def __init__(self, found: Found, reader: RowReader) -> None:
        """Take what was found, and what reads it for its payer."""
        self._reader = reader
        self._seqs = found.keys.seqs
        self._at = 0
        self._end = found.end
        self._last: bytes | None = None
        self._last_hash: EnvelopeHash | None = None
        self.ended_early = found.reached is not None

    @property
    def left(self) -> int:
        """How many envelopes are still to be read."""
        return len(self._seqs) - self._at

    @property
    def last_hash(self) -> EnvelopeHash | None:
        """Keccak-256 of the last envelope that was read; None before the first."""
        # The hash of its bytes as they are: an answer must end even if the disk has turned a bit of them. It is made
        # only once, because an envelope of 1 MiB takes milliseconds.
        if self._last_hash is None and self._last is not None:
            self._last_hash = EnvelopeHash(keccak256(self._last))
        return self._last_hash

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
        raws = await self._reader.read(self._seqs[self._at : self._at + count], max_bytes)
        self._at += len(raws.sizes)
        if raws.body:
            self._last, self._last_hash = raws.last, None
        return raws
