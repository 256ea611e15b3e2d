"""Reads frames from the bytes that have come: a short frame when it is complete, a long one part by part.

Spec: rlpx.md "Framing".
"""

from mailserver.codec import snappy
from mailserver.rlpx.framing import (
    BLOCK_BYTES,
    HEADER_BYTES,
    MAC_BYTES,
    FrameDecoder,
    PartialFrame,
    padded,
    split_message,
)

PART_BYTES = 32 * 1024
"""A longer frame is decrypted as it comes. The longest would take a tenth of a second if it were decrypted at once."""


class FrameReader:
    """Reads the frames of one session, from the first on.

    `frame`: the frame whose header has been read, and that is not complete; each frame is an object of its own.
    `is_compressed`: whether the messages in the frames are compressed.
    """

    __slots__ = ("_body", "_decoder", "_received", "frame", "is_compressed")

    def __init__(self, decoder: FrameDecoder, received: bytearray) -> None:
        """Read from `received`. Its owner appends to it; this object removes what it has read."""
        self._decoder = decoder
        self._received = received
        self._body = bytearray()  # the part of the body of `frame` that has been decrypted
        self.frame: PartialFrame | None = None
        self.is_compressed = False

    def read(self, max_body_bytes: int) -> bytes | memoryview | None:
        """Return the body of the next frame; None if more bytes are needed.

        Args:
            max_body_bytes: a longer body is refused on its header.
        Raises:
            DecodeError: a MAC differs, or the body is empty or too long.
        """
        frame = self.frame
        if frame is None:
            if len(self._received) < HEADER_BYTES:
                return None
            frame = PartialFrame(self._decoder.decode_header(self.take(HEADER_BYTES), max_body_bytes=max_body_bytes))
        if frame.wire_bytes > PART_BYTES:
            self.frame = frame
            if not self._read_more(frame):
                return None
            body, self._body = memoryview(self._body)[: frame.body_bytes], bytearray()
            self.frame = None
            return body
        if len(self._received) < frame.wire_bytes:
            self.frame = frame
            return None
        self.frame = None
        return self._decoder.decode_body(self.take(frame.wire_bytes), frame.body_bytes)

    def take(self, size: int) -> bytes:
        """Remove `size` bytes from what has come, and return them. There must be as many."""
        taken = bytes(self._received[:size])
        del self._received[:size]
        return taken

    def clear(self) -> None:
        """Drop a frame that is not complete: nothing more is read."""
        self.frame = None
        self._body = bytearray()

    def _read_more(self, frame: PartialFrame) -> bool:
        """Decrypt what has come of a long frame; return whether the frame is complete."""
        size = padded(frame.body_bytes)
        self._body += self._decoder.decode_part(
            self.take(min(len(self._received) // BLOCK_BYTES * BLOCK_BYTES, size - len(self._body)))
        )
        if frame.message_bytes is None and self._body:
            _, data = split_message(memoryview(self._body)[:BLOCK_BYTES])
            frame.message_bytes = snappy.announced_bytes(data) if self.is_compressed else frame.body_bytes
        if len(self._body) < size or len(self._received) < MAC_BYTES:
            return False
        self._decoder.check_body(self.take(MAC_BYTES))
        return True
