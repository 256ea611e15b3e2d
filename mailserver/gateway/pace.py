"""How fast the bytes of one client are read. What it sends faster waits at its end, in its own TCP window."""

import asyncio

from mailserver.gateway.transport import Transport
from mailserver.limits.buckets import TokenBucket

BYTES_PER_SECOND = 1024.0 * 1024
BYTES_BURST = 4 * BYTES_PER_SECOND
"""How fast bytes of one client are read."""

FRAME_BYTES = 256
"""For how many bytes each frame of the muxer or of WebSocket counts, in addition: it takes some microseconds, and may
have no more than 2 bytes."""


class ReadingPace:
    """Pauses the reading from one client. `is_crowded`: too much waits for it."""

    def __init__(self, transport: Transport) -> None:
        """Begin with a full burst."""
        self._loop = asyncio.get_running_loop()
        self._transport = transport
        self._bucket = TokenBucket(BYTES_PER_SECOND, BYTES_BURST, self._loop.time())
        self._timer: asyncio.TimerHandle | None = None
        self._is_paused = self._is_crowded = False
        self._bytes = self._frames = 0

    def count(self, muxer_frames: int) -> None:
        """Count what has come since the last time.

        Args:
            muxer_frames: how many frames of the muxer have come in all.
        """
        received, frames = self._transport.received_bytes, self._transport.received_frames + muxer_frames
        cost = received - self._bytes + FRAME_BYTES * (frames - self._frames)
        self._bytes, self._frames = received, frames
        wait = self._bucket.take(cost, self._loop.time())
        if wait > 0.0:
            self._timer = self._loop.call_later(wait, self._go_on)
            self._set_reading()

    def set_crowded(self, *, is_crowded: bool) -> None:
        """Whether too much waits for the client to be read from."""
        if is_crowded != self._is_crowded:
            self._is_crowded = is_crowded
            self._set_reading()

    def stop(self) -> None:
        """Wait for nothing."""
        if self._timer is not None:
            self._timer.cancel()

    def _go_on(self) -> None:
        self._timer = None
        self._set_reading()

    def _set_reading(self) -> None:
        should_pause = self._timer is not None or self._is_crowded
        if should_pause != self._is_paused:
            self._is_paused = should_pause
            if should_pause:
                self._transport.pause_reading()
            else:
                self._transport.resume_reading()
