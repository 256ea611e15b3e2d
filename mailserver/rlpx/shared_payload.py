"""A payload that is sent on many sessions, of which some compress and some do not."""

from mailserver.codec import snappy


class SharedPayload:
    """A payload that is compressed only once, when the first session needs it compressed."""

    __slots__ = ("_compressed", "raw")

    def __init__(self, raw: bytes) -> None:
        self.raw = raw
        self._compressed: bytes | None = None

    @property
    def compressed(self) -> bytes:
        """The payload as a raw Snappy block."""
        if self._compressed is None:
            self._compressed = snappy.compress(self.raw)
        return self._compressed
