"""Whole nodes of js-libp2p, in processes of Node.js: see `oracle/peer.mjs`. And what serves one of them on a socket."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any

from mailserver.libp2p.connection import Connection
from mailserver.libp2p.events import Closed, Event, Secured, StreamOpened
from mailserver.libp2p.identify import IDENTIFY, Identify
from mailserver.libp2p.multiaddr import AddressProtocol, Multiaddr
from mailserver.libp2p.ping import PING, Echo
from mailserver.libp2p.streams import DataReceived, StreamId, WriteClosed
from tests.libp2p.js_muxer import ORACLE
from tests.libp2p.links import ECHO, dialing, listening
from tests.libp2p.names import LISTENER, identity

PROTOCOLS = (IDENTIFY, PING, ECHO)
AGENT = "mailserver/1"
KEYS = ("Ed25519", "secp256k1", "RSA")
TIMEOUT_S = 60


class Served:
    """A connection, and the protocols of PROTOCOLS on it; `said` is all that the peer has sent."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.said = b""
        self.events: list[Event] = []
        self._echoes: dict[StreamId, Echo | None] = {}

    def take(self, now: float) -> None:
        """Act on what has happened."""
        for event in self.connection.events():
            self.events.append(event)
            if isinstance(event, Secured):
                self.on_secured(now)
            elif isinstance(event, StreamOpened) and not event.is_ours:
                self._echoes[event.stream] = Echo() if event.protocol == PING else None
                if event.protocol == IDENTIFY:
                    about = Identify(identity(LISTENER).public_key.encode(), protocols=PROTOCOLS, agent_version=AGENT)
                    self.connection.send(event.stream, about.encode())
                    self.connection.close_write(event.stream)
            elif isinstance(event, DataReceived):
                self.connection.consumed(event.stream, len(event.data))
                if event.stream in self._echoes:
                    echo = self._echoes[event.stream]
                    self.connection.send(event.stream, event.data if echo is None else echo.receive_data(event.data))
            elif isinstance(event, WriteClosed):
                self.connection.close_write(event.stream)

    def on_secured(self, now: float) -> None:
        """What we do first."""

    def data_of(self, stream: StreamId) -> bytes:
        """What has come on a stream."""
        return b"".join(
            event.data for event in self.events if isinstance(event, DataReceived) and event.stream == stream
        )

    def protocols(self) -> list[str]:
        """Those of the streams that were opened, in order."""
        return [event.protocol for event in self.events if isinstance(event, StreamOpened)]

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Carry bytes until the connection has ended."""
        loop = asyncio.get_running_loop()
        with contextlib.closing(writer):
            while not isinstance(self.events[-1] if self.events else None, Closed):
                writer.writelines(self.connection.data_to_send())
                data = b""
                with contextlib.suppress(ConnectionError):
                    data = await reader.read(1 << 16)
                self.said += data
                if data:
                    self.connection.receive_data(data, loop.time())
                else:
                    self.connection.receive_eof(loop.time())
                self.take(loop.time())


class Asking(Served):
    """A dialer: it asks who is there, has BYTES sent back, closes its halves, and leaves when all is answered."""

    BYTES = bytes(range(256)) * 4

    def on_secured(self, now: float) -> None:
        """Open the streams."""
        self.about = self.connection.open_stream(IDENTIFY, now)
        self.echoed = self.connection.open_stream(ECHO, now)
        self.refused = self.connection.open_stream("/none/1.0.0", now)
        self.connection.send(self.echoed, self.BYTES)
        self.connection.close_write(self.echoed)

    def take(self, now: float) -> None:
        """Act on what has happened; leave when both streams are read."""
        super().take(now)
        if sum(isinstance(event, WriteClosed) for event in self.events) == 2:
            self.connection.close()
            self.events += self.connection.events()


async def dialled_by_js(muxers: str, key: str) -> tuple[Served, dict[str, Any]]:
    """Let js-libp2p dial us; return what it said, and what it found."""
    served = Served(listening(protocols=PROTOCOLS))
    done = asyncio.Event()

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await served.serve(reader, writer)
        done.set()

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    async with server, asyncio.timeout(TIMEOUT_S):
        port = server.sockets[0].getsockname()[1]
        address = Multiaddr.parse(f"/ip4/127.0.0.1/tcp/{port}/p2p/{identity(LISTENER).peer_id}")
        async with node(muxers, key, str(address)) as process:
            printed, _ = await process.communicate()
        await done.wait()
    found: dict[str, Any] = json.loads(printed)
    return served, found


async def dialling_js(muxers: str, key: str) -> tuple[Asking, Multiaddr]:
    """Dial js-libp2p; return what it said, and its address."""
    async with asyncio.timeout(TIMEOUT_S), node(muxers, key) as process:
        assert process.stdout is not None
        address = Multiaddr.parse((await process.stdout.readline()).decode().strip())
        reader, writer = await asyncio.open_connection(
            address.value(AddressProtocol.IP4), int(address.value(AddressProtocol.TCP) or 0)
        )
        asking = Asking(dialing())
        await asking.serve(reader, writer)
    return asking, address


@contextlib.asynccontextmanager
async def node(*arguments: str) -> AsyncIterator[asyncio.subprocess.Process]:
    """A process of `oracle/peer.mjs`; it ends with its stdin."""
    process = await asyncio.create_subprocess_exec(
        "node", ORACLE / "peer.mjs", *arguments, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
    )
    try:
        yield process
    finally:
        assert process.stdin is not None
        process.stdin.close()
        await process.communicate()
