"""A socket as a pipe of chunks, with both directions bounded.

asyncio's streams do nearly the same. But we could not wake a reader of theirs when our side has ended the session, and
our own protocol takes a quarter less time per message.
"""

import asyncio
import contextlib
import socket
from collections import deque
from collections.abc import Callable
from typing import cast

READ_HIGH_BYTES = 32 * 1024
"""When this much waits to be read, nothing more is taken from the socket. So a peer that we do not read from has less
than twice as much waiting here: 500 such peers have 32 MB."""

CHUNK_BYTES = 32 * 1024
"""No more is read at once: it may inflate to 20 times as much, which stays in memory while it is acted on."""

WRITE_HIGH_BYTES = 32 * 1024
"""When this much waits to be sent, `drain` waits. For a peer that does not read, no more than this and one packet each
of an answer and of live envelopes is queued: 80 MB for 500 peers, and what `IntakeBounds.unread` has for longer ones.
The kernel holds some MB more, so a peer that reads is not slowed down."""

UNSENT_BYTES = 64 * 1024
"""How much the kernel holds for one socket that it has not sent yet. By default, it holds 4 MB for each peer that does
not read: 2 GB for 500 peers, and more than ten seconds of work to seal that. This does not bound what has been sent and
is not acknowledged: a peer that reads gets all that its line carries."""

_READ_BUFFER = memoryview(bytearray(CHUNK_BYTES))
"""All sockets are read into this buffer, one at a time: the bytes are copied out at once."""


class Pipe(asyncio.BufferedProtocol):
    """The asyncio protocol of one socket.

    `host`: the peer's address; `address` and `local_address`: HOST:PORT of both ends; a Unix socket has none of these.
    `received_bytes`, `sent_bytes`: how many came from the socket, and how many were written to it or to the write
    buffer.
    """

    transport: asyncio.Transport

    def __init__(self, on_connected: Callable[["Pipe"], None] | None = None) -> None:
        self._on_connected = on_connected
        self._chunks: deque[bytes] = deque()
        self._waiting_bytes = 0
        self._paused = False
        self._ended = False
        self._woken = asyncio.Event()
        self._writable = asyncio.Event()
        self._writable.set()
        self._lost = asyncio.Event()
        self._sleep_over = asyncio.Event()
        self.host = ""
        self.address = self.local_address = "?"
        self.received_bytes = self.sent_bytes = 0

    # What asyncio calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take the transport."""
        # uvloop's transports have all of asyncio.Transport, but do not derive from it.
        self.transport = transport = cast(asyncio.Transport, transport)
        transport.set_write_buffer_limits(high=WRITE_HIGH_BYTES)
        peername, sockname = transport.get_extra_info("peername"), transport.get_extra_info("sockname")
        if isinstance(peername, tuple):  # those of Unix sockets are paths, or empty
            self.host = peername[0]
            self.address, self.local_address = _as_text(peername), _as_text(sockname)
            _bound_unsent(transport.get_extra_info("socket"))
        if self._on_connected is not None:
            self._on_connected(self)

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return the buffer to read into."""
        return _READ_BUFFER

    def buffer_updated(self, nbytes: int) -> None:
        """Keep what has come; pause the socket when too much is waiting."""
        self._chunks.append(bytes(_READ_BUFFER[:nbytes]))
        self.received_bytes += nbytes
        self._waiting_bytes += nbytes
        if self._waiting_bytes >= READ_HIGH_BYTES and not self._paused:
            self._paused = True
            self.transport.pause_reading()
        self._woken.set()

    def eof_received(self) -> bool:
        """The peer sends nothing more. Keep our side open: the peer may still read."""
        self._ended = True
        self._woken.set()
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        """The socket is gone."""
        self._ended = True
        self._lost.set()
        self._sleep_over.set()
        self._woken.set()
        self._writable.set()

    def pause_writing(self) -> None:
        """The write buffer is full."""
        self._writable.clear()

    def resume_writing(self) -> None:
        """The write buffer has shrunk."""
        self._writable.set()

    # What the connection calls.

    @property
    def is_full(self) -> bool:
        """Whether so much waits to be sent that the caller should `drain`."""
        return not self._writable.is_set()

    async def read(self) -> bytes | None:
        """Wait for a chunk of at most CHUNK_BYTES; return b"" if the peer sends no more, None after `wake`."""
        while True:
            if self._chunks:
                data = self._chunks.popleft()
                self._waiting_bytes -= len(data)
                if self._paused and self._waiting_bytes < READ_HIGH_BYTES and not self.transport.is_closing():
                    self._paused = False
                    self.transport.resume_reading()
                return data
            if self._ended:
                return b""
            self._woken.clear()
            await self._woken.wait()
            if not self._chunks and not self._ended:
                return None

    def wake(self) -> None:
        """Make a waiting `read` or `sleep` return."""
        self._sleep_over.set()
        self._woken.set()

    @property
    def written_bytes(self) -> int:
        """How many bytes the kernel has taken from the write buffer. This grows as long as the peer reads."""
        return self.sent_bytes - self.transport.get_write_buffer_size()

    async def sleep(self, seconds: float) -> bool:
        """Wait until the time is over, the socket is gone, or `wake` is called.

        Returns:
            Whether the peer may still send.
        """
        self._sleep_over.clear()
        if not self._lost.is_set():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._sleep_over.wait()
        return not self._ended

    def write(self, chunks: list[bytes]) -> None:
        """Send chunks; if the socket is gone, drop them."""
        if not self.transport.is_closing():
            # `writelines` would save a copy, but in Python 3.12 and 3.13 asyncio's never calls `pause_writing`.
            data = chunks[0] if len(chunks) == 1 else b"".join(chunks)
            self.sent_bytes += len(data)
            self.transport.write(data)

    async def drain(self) -> None:
        """Wait until the write buffer has room, or the socket is gone."""
        await self._writable.wait()

    async def finish(self) -> None:
        """Close when everything is sent and the peer has closed its side. The caller sets the time limit."""
        if self.transport.is_closing():
            return
        try:
            self.transport.write_eof()
        except OSError:  # the peer has reset the connection, and asyncio has not noticed; uvloop never raises
            self.abort()
        while await self.read() != b"":
            pass

    def abort(self) -> None:
        """Close at once; unsent data is dropped."""
        self.transport.abort()

    async def closed(self) -> None:
        """Wait until the socket is gone."""
        await self._lost.wait()


def _bound_unsent(tcp: socket.socket) -> None:
    with contextlib.suppress(OSError):  # a sandbox's substitute for a kernel may not have this option
        tcp.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, UNSENT_BYTES)


def _as_text(name: tuple[str, int]) -> str:
    host, port = name[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
