"""Packets on a stream: each is `uvarint length || body`.

Spec: libp2p's length-prefixed messages; multiformats/unsigned-varint.
"""

from mailserver.codec import varint
from mailserver.errors import DecodeError

MAX_LENGTH_BYTES = 5
"""Enough for any bound that a reader has: 2^35."""


def encode_frame(body: bytes) -> bytes:
    """A packet with its length before it."""
    return varint.encode(len(body)) + body


class FrameReader:
    """Reads the frames of one stream, as its bytes come.

    After a DecodeError it is of no use any more: nothing says where the next frame begins.
    """

    def __init__(self, max_bytes: int) -> None:
        """Args:
        max_bytes: the longest body. It is refused at its length, before more of it has come.
        """
        self._max_bytes = max_bytes
        self._pending = bytearray()

    @property
    def pending(self) -> int:
        """How many bytes of a frame that is not whole are held."""
        return len(self._pending)

    def receive_data(self, data: bytes) -> list[bytes]:
        """Take the next bytes; return the bodies that are whole now.

        Raises:
            DecodeError: a body is too long, or its length is not as unsigned-varint demands.
        """
        self._pending += data
        bodies = []
        at = 0
        while (found := self._body(at)) is not None:
            start, at = found
            bodies.append(bytes(self._pending[start:at]))
        del self._pending[:at]
        return bodies

    def receive_first(self, data: bytes) -> bytes | None:
        """Take the next bytes; return the first body once it is whole. What is behind it is not looked at.

        A frame may have one byte only, so to cut all that one message of Noise may bring takes a tenth of a second.

        Raises:
            DecodeError: as `receive_data`.
        """
        self._pending += data
        found = self._body(0)
        return None if found is None else bytes(self._pending[found[0] : found[1]])

    def _body(self, at: int) -> tuple[int, int] | None:
        """Where the body of the frame begins and ends that begins here, if it is whole."""
        found = varint.decode(self._pending, at, MAX_LENGTH_BYTES) if at < len(self._pending) else None
        if found is None:
            return None
        length, start = found
        if length > self._max_bytes:
            raise DecodeError("frame is too long", got=length, limit=self._max_bytes)
        return (start, start + length) if start + length <= len(self._pending) else None

    def receive_eof(self) -> None:
        """The other side has closed its half.

        Raises:
            DecodeError: amidst a frame.
        """
        if self._pending:
            raise DecodeError("frame is truncated", got=len(self._pending))
