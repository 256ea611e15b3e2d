"""Sockets of clients: TCP, and WebSocket, which browsers need. Both carry one stream of bytes each way.

A socket calls its `Receiver` for each piece of bytes that came, when it is its turn; there is no task for each client.
What is to be sent is queued by the event loop, up to the bounds that the receiver keeps.
"""

import asyncio
import contextlib
import logging
import socket
from collections.abc import Callable
from functools import partial
from http import HTTPStatus
from typing import Protocol, cast

from websockets.frames import CloseCode, Frame, Opcode
from websockets.http11 import Request
from websockets.protocol import CONNECTING, OPEN, SEND_EOF
from websockets.server import ServerProtocol

from mailserver.gateway.turns import GatewayTurns, Turn

CHUNK_BYTES = 32 * 1024
"""No more is read from a socket at once."""

WRITE_HIGH_BYTES = 8 * 1024
"""When this much waits to be sent, `Transport.is_full`. Whoever is told to wait for less to wait hears of it: only what
has been full calls `on_writable`."""

UNSENT_BYTES = 64 * 1024
"""How much the kernel holds for one socket that it has not sent yet. By default it holds 4 MB for each client that does
not read."""

KEEPALIVE_AFTER_S = 90
KEEPALIVE_EVERY_S = 15
KEEPALIVE_PROBES = 3
"""When nothing has come for so long, the kernel asks so often, and so many times, whether the client is still there:
one that has vanished without a word would keep its place for ever. js-waku says something every 60 s."""

UNACKNOWLEDGED_MS = (KEEPALIVE_AFTER_S + KEEPALIVE_EVERY_S * KEEPALIVE_PROBES) * 1000
"""How long what was sent may go unanswered: meanwhile the kernel does not ask, and by default it goes on sending for a
quarter of an hour. It is as long as all of the above, which it would cut short."""

LINGER_S = 20.0
"""How long a socket that is closing may take to send what waits."""

MAX_REQUEST_BYTES = 16 * 1024
"""Longest HTTP request for a WebSocket. The library would keep 1 MB of headers for each client."""

MAX_FRAME_BYTES = 256 * 1024
"""Longest WebSocket frame, which is kept until it is whole. Clients send messages of Noise, of 64 KiB at most."""

_SILENT = logging.getLogger("websockets.server")
_SILENT.setLevel(logging.CRITICAL)
"""The library's log, of which nothing is kept: what goes wrong with a socket is its client's matter."""

_READ_BUFFER = memoryview(bytearray(CHUNK_BYTES))
"""All sockets are read into this buffer, one at a time: the bytes are copied out at once."""


class Receiver(Protocol):
    """Whoever a transport tells what happens."""

    def on_open(self) -> None:
        """Bytes may be sent, and come, from now on. `Transport.host` is final."""

    def on_data(self, data: bytes) -> None:
        """Bytes have come; none where the transport has kept all of them, for a frame of its own that is not whole."""

    def on_eof(self) -> None:
        """The client sends nothing more."""

    def on_writable(self) -> None:
        """What waited to be sent has shrunk, after `Transport.is_full`."""

    def on_fault(self, error: Exception) -> None:
        """What has come could not be taken, by a fault of ours. The socket is closed: nobody knows how far it was."""

    def on_lost(self) -> None:
        """The socket is gone. Nothing is called after this."""


class Transport(asyncio.BufferedProtocol):
    """A TCP socket.

    `host`: the client's address; `peer`: address and port of the socket's other end; `address`: the same as text.
    `received_frames`: how many frames of its own have come, which each take a while.
    """

    kind = "tcp"
    received_frames = 0

    _transport: asyncio.Transport

    def __init__(self, on_connected: Callable[["Transport"], Receiver | None], turns: GatewayTurns) -> None:
        """Describe a socket that is about to be accepted.

        Args:
            on_connected: called once it is; returns who receives what comes, or None if the client is refused.
            turns: of all sockets.
        """
        self._on_connected = on_connected
        self._turn = Turn(turns)
        self._is_paused = self._is_waiting = False
        self._receiver: Receiver | None = None
        self.host = ""
        self.peer: tuple[str, int] = ("", 0)
        self.address = "?"
        self.is_full = False
        self.received_bytes = self.sent_bytes = 0
        self._lingering: asyncio.TimerHandle | None = None

    # What asyncio calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take the socket."""
        # uvloop's transports have all of asyncio.Transport, but do not derive from it.
        self._transport = transport = cast(asyncio.Transport, transport)
        transport.set_write_buffer_limits(high=WRITE_HIGH_BYTES)
        if peername := transport.get_extra_info("peername"):
            host, port = self.peer = peername[:2]
            self.host, self.address = host, f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
            _set_options(transport.get_extra_info("socket"))
        self._receiver = self._on_connected(self)
        if self._receiver is None:
            self.abort()
        else:
            self._connected()

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return the buffer to read into."""
        return _READ_BUFFER

    def buffer_updated(self, nbytes: int) -> None:
        """Pass on what has come, now or later."""
        self.received_bytes += nbytes
        work = partial(self._take_turn, bytes(_READ_BUFFER[:nbytes]))
        if not self._turn.do(work, nbytes):
            self._is_waiting = True
            self._set_reading()

    def eof_received(self) -> bool:
        """The client sends nothing more. Keep our side open: it may still read."""
        if self._receiver is not None:
            self._receiver.on_eof()
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        """The socket is gone."""
        if self._lingering is not None:
            self._lingering.cancel()
        if self._receiver is not None:
            self._receiver.on_lost()
            self._receiver = None

    def pause_writing(self) -> None:
        """Too much waits to be sent."""
        self.is_full = True

    def resume_writing(self) -> None:
        """What waits has shrunk."""
        self.is_full = False
        if self._receiver is not None:
            self._receiver.on_writable()

    # What the receiver calls.

    @property
    def queued_bytes(self) -> int:
        """How many bytes wait for the kernel to take them."""
        return self._transport.get_write_buffer_size()

    @property
    def held_bytes(self) -> int:
        """How many bytes that have come are kept here."""
        return 0

    @property
    def written_bytes(self) -> int:
        """How many bytes the kernel has taken. This grows as long as the client reads."""
        return self.sent_bytes - self.queued_bytes

    def write(self, chunks: list[bytes]) -> None:
        """Send chunks; if the socket is closing, drop them."""
        self._write(chunks[0] if len(chunks) == 1 else b"".join(chunks))

    def pause_reading(self) -> None:
        """Leave what comes with the kernel."""
        self._is_paused = True
        self._set_reading()

    def resume_reading(self) -> None:
        """Read again."""
        self._is_paused = False
        self._set_reading()

    def close(self) -> None:
        """Close once what waits is sent, or after LINGER_S."""
        if not self._transport.is_closing():
            self._lingering = asyncio.get_running_loop().call_later(LINGER_S, self._transport.abort)
            self._transport.close()

    def abort(self) -> None:
        """Close at once; what waits is dropped."""
        self._transport.abort()

    def _set_reading(self) -> None:
        if self._transport.is_closing():
            return
        if self._is_paused or self._is_waiting:
            self._transport.pause_reading()
        else:
            self._transport.resume_reading()

    def _take_turn(self, data: bytes) -> None:
        if self._is_waiting:
            self._is_waiting = False
            self._set_reading()
        if self._transport.is_closing():
            return
        try:
            self._take(data)
        except Exception as error:  # noqa: BLE001 - whatever it is, it costs this client, and no other
            if self._receiver is not None:
                self._receiver.on_fault(error)
            self.abort()

    # What WebSocket does in another way.

    def _connected(self) -> None:
        if self._receiver is not None:
            self._receiver.on_open()

    def _take(self, data: bytes) -> None:
        if self._receiver is not None:
            self._receiver.on_data(data)

    def _write(self, data: bytes) -> None:
        if data and not self._transport.is_closing():
            self.sent_bytes += len(data)
            self._transport.write(data)


def _set_options(tcp: socket.socket) -> None:
    for level, option, value in (
        (socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, UNSENT_BYTES),
        (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, KEEPALIVE_AFTER_S),
        (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, KEEPALIVE_EVERY_S),
        (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, KEEPALIVE_PROBES),
        (socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, UNACKNOWLEDGED_MS),
        (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    ):
        with contextlib.suppress(OSError):  # a sandbox's substitute for a kernel may not have these options
            tcp.setsockopt(level, option, value)


class WebSocketTransport(Transport):
    """A WebSocket (RFC 6455), whose binary messages are pieces of one stream. `host` may be what a proxy says."""

    kind = "websocket"

    def __init__(
        self,
        on_connected: Callable[[Transport], Receiver | None],
        turns: GatewayTurns,
        forwarded: Callable[[str, str], str | None],
    ) -> None:
        """Describe a socket that is about to be accepted.

        Args:
            on_connected, turns: see `Transport`.
            forwarded: returns the client's address, given the socket's and what `X-Forwarded-For` says, or "". None:
                that is no address.
        """
        super().__init__(on_connected, turns)
        self._forwarded = forwarded
        self._protocol = ServerProtocol(max_size=(None, MAX_FRAME_BYTES), logger=_SILENT)

    def eof_received(self) -> bool:
        """A WebSocket of which one side has ended is over (RFC 6455 section 7.1.1)."""
        self._protocol.receive_eof()
        super().eof_received()
        return False

    @property
    def held_bytes(self) -> int:
        """See `Transport`: a frame that is not whole."""
        return len(self._protocol.reader.buffer)

    def write(self, chunks: list[bytes]) -> None:
        """Send chunks as one binary message; if the socket is closing, drop them."""
        if self._transport.is_closing() or self._protocol.state is not OPEN:
            return
        self._protocol.send_binary(chunks[0] if len(chunks) == 1 else b"".join(chunks))
        self._flush()

    def close(self) -> None:
        """Say that we are going away, and close once what waits is sent."""
        if not self._transport.is_closing() and self._protocol.state is OPEN:
            self._protocol.send_close(CloseCode.GOING_AWAY)
            self._flush()
        super().close()

    def _connected(self) -> None:
        pass  # the client asks first

    def _take(self, data: bytes) -> None:
        protocol = self._protocol
        if protocol.state is CONNECTING and self.received_bytes > MAX_REQUEST_BYTES:
            self.abort()
            return
        protocol.receive_data(data)
        pieces = []
        for event in protocol.events_received():
            if isinstance(event, Request):
                self._open(event)
                continue
            assert isinstance(event, Frame), "a server gets requests and frames"
            self.received_frames += 1
            if event.opcode is Opcode.TEXT:
                protocol.fail(CloseCode.UNSUPPORTED_DATA)
                break
            if event.opcode is Opcode.BINARY or event.opcode is Opcode.CONT:
                pieces.append(event.data)
        if self.is_full and protocol.state is OPEN:
            protocol.data_to_send()  # pongs: a client that does not read is owed none (RFC 6455 section 5.5.3)
        if self._receiver is not None and protocol.state is not CONNECTING:
            self._receiver.on_data(b"".join(pieces))
        self._flush()

    def _open(self, request: Request) -> None:
        protocol = self._protocol
        host = self._forwarded(self.host, ", ".join(request.headers.get_all("X-Forwarded-For")))
        if host is None:
            protocol.send_response(protocol.reject(HTTPStatus.BAD_REQUEST, "X-Forwarded-For has no address.\n"))
            return
        self.host = host
        protocol.send_response(protocol.accept(request))
        self._flush()
        if protocol.state is OPEN and self._receiver is not None:
            self._receiver.on_open()

    def _flush(self) -> None:
        chunks = self._protocol.data_to_send()
        self._write(b"".join(chunks))
        if SEND_EOF in chunks:
            super().close()
