"""Takes frames out of the bytes that have come: a short one once it is whole, a long one part by part as it comes.

Spec: rlpx.md "Framing".
"""

from mailserver.codec import snappy
from mailserver.rlpx.framing import (
    BLOCK_BYTES,
    HEADER_BYTES,
    MAC_BYTES,
    ComingFrame,
    FrameDecoder,
    padded,
    split_message,
)

PART_BYTES = 32 * 1024
"""A frame that is longer is decrypted as it comes: all at once, the longest would take a tenth of a second."""


class FrameReader:
    """One direction of a session, from the first frame on.

    `frame` is the one whose header has been read and that has not come to its end: another object for each.
    `is_compressed`: whether the messages in the frames are compressed.
    """

    __slots__ = ("_body", "_decoder", "_received", "frame", "is_compressed")

    def __init__(self, decoder: FrameDecoder, received: bytearray) -> None:
        """Read from `received`, to which whoever made it appends; what has been read is taken out of it."""
        self._decoder = decoder
        self._received = received
        self._body = bytearray()  # of `frame`, as far as it has been decrypted
        self.frame: ComingFrame | None = None
        self.is_compressed = False

    def read(self, max_body_bytes: int) -> bytes | memoryview | None:
        """Return the body of the next frame; None if more bytes are needed.

        Args:
            max_body_bytes: longest body that is begun.
        Raises:
            DecodeError: a MAC differs, or the body is empty or longer than that.
        """
        frame = self.frame
        if frame is None:
            if len(self._received) < HEADER_BYTES:
                return None
            frame = ComingFrame(self._decoder.decode_header(self.take(HEADER_BYTES), max_body_bytes=max_body_bytes))
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
        """Take so many bytes, which have come, as they are."""
        taken = bytes(self._received[:size])
        del self._received[:size]
        return taken

    def clear(self) -> None:
        """Forget what has come: nothing more is read."""
        self.frame = None
        self._body = bytearray()

    def _read_more(self, frame: ComingFrame) -> bool:
        """Decrypt what has come of a long frame; return whether that is all."""
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
