"""The hash of the last of many envelopes, which an answer ends with."""

from mailserver.codec.keccak import keccak256
from mailserver.waku.envelope import EnvelopeHash

MAX_KEPT_BYTES = 64 * 1024
"""A longer envelope is hashed at once, instead of being kept while a client does not read on: 4 ms for one of 1 MiB,
about as long as to seal it."""


class LastHash:
    """Keccak-256 of the last envelope of those that were read: of its bytes as they are. An answer must end even if the
    disk has turned a bit of them."""

    __slots__ = ("_hash", "_raw")

    def __init__(self) -> None:
        """Begin with none."""
        self._raw: bytes | None = None
        self._hash: EnvelopeHash | None = None

    def take(self, raw: bytes) -> None:
        """Take the next envelope. It is hashed when somebody asks for it, unless it is long."""
        self._raw = raw
        if len(raw) > MAX_KEPT_BYTES:
            self.value()

    def value(self) -> EnvelopeHash | None:
        """The hash; None before the first."""
        if self._raw is not None:
            self._hash, self._raw = EnvelopeHash(keccak256(self._raw)), None
        return self._hash
