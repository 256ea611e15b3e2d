"""A socket as a pipe of chunks, with both directions bounded.

asyncio's streams do nearly this, but a reader of theirs cannot be woken to learn that the session was ended from
our side, and a protocol of our own takes a quarter less time per message.
"""

import asyncio
import contextlib
import socket
from collections import deque
from collections.abc import Callable
from typing import cast

READ_HIGH_BYTES = 32 * 1024
"""When this much waits to be read, nothing more is taken from the socket. While peers are slowed, or wait for
something, less than twice that of each is unread: of 500 peers 32 MB."""

CHUNK_BYTES = 32 * 1024
"""No longer chunk is read at once: it may inflate to 20 times as much, which stays in memory while it is acted on."""

WRITE_HIGH_BYTES = 32 * 1024
"""When this much waits to be sent, `drain` waits. For a peer that does not read, no more piles up than this and one
packet: 100 MB for 500 of them. The kernel holds some MB more, so nobody who reads is the slower for it."""

UNSENT_BYTES = 64 * 1024
"""What the kernel holds for a socket that is not on its way yet. Left alone it takes 4 MB of each that does not read:
2 GB for 500 peers, and more than ten seconds to seal as much. What is on its way is not bounded by this: who reads gets
all that its line carries."""

_RECEIVED = memoryview(bytearray(CHUNK_BYTES))
"""Where sockets are read into, one at a time: what came is copied at once."""


class Pipe(asyncio.BufferedProtocol):
    """The transport's side of a connection."""

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
        self._slept = asyncio.Event()
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
        if peername:
            self.host = peername[0]
            self.address, self.local_address = _as_text(peername), _as_text(sockname)
            _bound_unsent(transport.get_extra_info("socket"))
        if self._on_connected is not None:
            self._on_connected(self)

    def get_buffer(self, sizehint: int) -> memoryview:
        """Say where to read into."""
        return _RECEIVED

    def buffer_updated(self, nbytes: int) -> None:
        """Keep what came; pause the socket when too much is waiting."""
        self._chunks.append(bytes(_RECEIVED[:nbytes]))
        self.received_bytes += nbytes
        self._waiting_bytes += nbytes
        if self._waiting_bytes >= READ_HIGH_BYTES and not self._paused:
            self._paused = True
            self.transport.pause_reading()
        self._woken.set()

    def eof_received(self) -> bool:
        """The peer sends nothing more; keep our side open for what it may still want to read."""
        self._ended = True
        self._woken.set()
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        """The socket is gone."""
        self._ended = True
        self._lost.set()
        self._slept.set()
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
        """Whether so much waits to be sent that one should `drain`."""
        return not self._writable.is_set()

    async def read(self) -> bytes | None:
        """Wait for a chunk, of at most CHUNK_BYTES; b"" at the peer's end, None after `wake`."""
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
        """Let a waiting `read` or `rest` return."""
        self._slept.set()
        self._woken.set()

    @property
    def written_bytes(self) -> int:
        """How much of what was sent has left for the kernel: it moves while the peer reads."""
        return self.sent_bytes - self.transport.get_write_buffer_size()

    async def sleep(self, seconds: float) -> bool:
        """Wait so long, unless the socket goes away or `wake` is called; return whether the peer may still send."""
        self._slept.clear()
        if not self._lost.is_set():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._slept.wait()
        return not self._ended

    def write(self, chunks: list[bytes]) -> None:
        """Send; into the void if the socket is gone."""
        if not self.transport.is_closing():
            # `writelines` would save a copy, but that of asyncio in Python 3.12 and 3.13 never calls `pause_writing`.
            data = chunks[0] if len(chunks) == 1 else b"".join(chunks)
            self.sent_bytes += len(data)
            self.transport.write(data)

    async def drain(self) -> None:
        """Wait until the write buffer has room, or the socket is gone."""
        await self._writable.wait()

    async def finish(self) -> None:
        """Close once everything is sent and the peer has closed, too; whoever awaits sets the time limit."""
        if self.transport.is_closing():
            return
        try:
            self.transport.write_eof()
        except OSError:  # the peer has reset the connection, and asyncio's loop has not looked yet; uvloop never raises
            self.abort()
        while await self.read() != b"":
            pass

    def abort(self) -> None:
        """Close at once, whatever is unsent."""
        self.transport.abort()

    async def closed(self) -> None:
        """Wait until the socket is gone."""
        await self._lost.wait()


def _bound_unsent(tcp: socket.socket) -> None:
    with contextlib.suppress(OSError):  # what stands in for a kernel in a sandbox may not know it
        tcp.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, UNSENT_BYTES)


def _as_text(name: tuple[str, int]) -> str:
    host, port = name[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
