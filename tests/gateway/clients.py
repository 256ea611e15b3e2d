"""A light client: our own `Connection` as the dialer, over TCP or WebSocket, for tests of the gateway."""

import asyncio
import contextlib
import secrets
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Protocol

from websockets.asyncio.client import ClientConnection
from websockets.asyncio.client import connect as connect_websocket
from websockets.exceptions import ConnectionClosed

from mailserver.ids.waku_message import WakuMessage
from mailserver.libp2p import mplex, yamux
from mailserver.libp2p.connection import Connection
from mailserver.libp2p.events import Closed, Event, ProtocolRefused, Secured, StreamFailed, StreamOpened
from mailserver.libp2p.identity import IdentityKey
from mailserver.libp2p.noise import NoiseKeys
from mailserver.libp2p.peer_id import PeerId
from mailserver.libp2p.ping import PING, PING_BYTES
from mailserver.libp2p.streams import DataReceived, StreamId, StreamReset, WriteClosed
from mailserver.waku2.filter_packets import (
    MAX_PUSH_BYTES,
    FilterSubscribeRequest,
    FilterSubscribeResponse,
    FilterSubscribeType,
    MessagePush,
    decode_filter_subscribe_response,
    decode_message_push,
)
from mailserver.waku2.frames import FrameReader, encode_frame
from mailserver.waku2.lightpush import (
    LightPushRequest,
    LightPushResponse,
    PushRequest,
    PushResponse,
    PushRpc,
    decode_light_push_response,
    decode_push_rpc,
)
from mailserver.waku2.old_filter import FilterRequest, FilterRpc, decode_filter_rpc
from mailserver.waku2.protocols import ProtocolId
from mailserver.waku2.store_query import StoreQueryRequest, StoreQueryResponse, decode_store_query_response
from tests.waiting import DEADLINE_S, until

YAMUX = yamux.PROTOCOL
MPLEX = mplex.PROTOCOL
HOST = "127.0.0.1"
READ_BYTES = 65_536


class Wire(Protocol):
    """What carries a client's bytes."""

    async def read(self) -> bytes:
        """The next bytes; none at the end."""

    async def write(self, data: bytes) -> None:
        """Send bytes, once there is room for them."""

    def abort(self) -> None:
        """Close, whatever waits to be sent."""

    async def close(self) -> None:
        """Close."""


class TcpWire:
    """A TCP socket. It holds few bytes that nobody has read."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    @classmethod
    async def open(cls, port: int, host: str = HOST, source: str | None = None) -> "TcpWire":
        local = None if source is None else (source, 0)
        return cls(*await asyncio.open_connection(host, port, limit=READ_BYTES, local_addr=local))

    async def read(self) -> bytes:
        try:
            return await self.reader.read(READ_BYTES)
        except ConnectionError:
            return b""

    async def write(self, data: bytes) -> None:
        with contextlib.suppress(ConnectionError):
            self.writer.write(data)
            await self.writer.drain()

    def abort(self) -> None:
        self.writer.transport.abort()

    async def close(self) -> None:
        self.writer.close()
        with contextlib.suppress(ConnectionError):
            await self.writer.wait_closed()


class WebSocketWire:
    """A WebSocket, by the library that others use, too."""

    def __init__(self, socket: ClientConnection) -> None:
        self.socket = socket

    @classmethod
    async def open(cls, port: int, host: str = HOST, forwarded: str | None = None) -> "WebSocketWire":
        headers = None if forwarded is None else {"X-Forwarded-For": forwarded}
        return cls(
            await connect_websocket(
                f"ws://{host}:{port}", additional_headers=headers, compression=None, max_size=None, proxy=None
            )
        )

    async def read(self) -> bytes:
        try:
            message = await self.socket.recv(decode=False)
        except ConnectionClosed:
            return b""
        return bytes(message)

    async def write(self, data: bytes) -> None:
        with contextlib.suppress(ConnectionClosed):
            await self.socket.send(data)

    def abort(self) -> None:
        self.socket.transport.abort()

    async def close(self) -> None:
        await self.socket.close()


@dataclass
class Heard:
    """What has come on one stream."""

    data: bytearray = field(default_factory=bytearray)
    is_closed: bool = False
    is_reset: bool = False

    @property
    def is_over(self) -> bool:
        return self.is_closed or self.is_reset


@dataclass
class LightClient:
    """One client. Pushes are noted as they come, `old_pushes` are those of the old filter.

    `is_go`: it closes each stream of a push, as go-waku does. `resets_pushes`: it does not know of its subscriptions.
    """

    machine: Connection
    own_id: PeerId
    wire: Wire
    is_go: bool = False
    peer_id: PeerId | None = None  # of the other side
    streams: dict[StreamId, Heard] = field(default_factory=dict)
    resets_pushes: bool = False
    pushes: list[MessagePush] = field(default_factory=list)
    old_pushes: list[FilterRpc] = field(default_factory=list)
    push_streams: dict[StreamId, FrameReader] = field(default_factory=dict)
    old_streams: set[StreamId] = field(default_factory=set)
    closed: Closed | None = None
    reading: "asyncio.Task[None] | None" = None

    @classmethod
    async def over(
        cls, wire: Wire, muxer: str = MPLEX, *, seed: bytes | None = None, is_go: bool = False
    ) -> "LightClient":
        """Shake hands over a socket."""
        client = cls.unsecured(wire, muxer, seed=seed, is_go=is_go)
        client.read_on()
        await client.flush()
        await client.until_secured()
        return client

    @classmethod
    def unsecured(
        cls, wire: Wire, muxer: str = MPLEX, *, seed: bytes | None = None, is_go: bool = False
    ) -> "LightClient":
        """One that has not said anything."""
        key = IdentityKey(seed or secrets.token_bytes(32))
        keys = NoiseKeys(key, secrets.token_bytes(32), (muxer,))
        served = frozenset({ProtocolId.FILTER_PUSH, ProtocolId.OLD_FILTER})
        now = asyncio.get_running_loop().time()
        machine = Connection(keys, served, lambda: secrets.token_bytes(32), now, is_dialer=True)
        return cls(machine, key.peer_id, wire, is_go)

    async def until_secured(self) -> None:
        """Until both sides know that the handshake is over: we know first, so the other side is asked for a sign."""
        await until(lambda: self.peer_id is not None or self.closed is not None)
        stream = await self.open(PING, bytes(PING_BYTES))
        await until(lambda: len(self.streams[stream].data) == PING_BYTES or self.closed is not None)
        assert self.closed is None, self.closed
        self.machine.reset(stream)
        await self.flush()

    def read_on(self) -> None:
        """Read what comes, from now on."""
        self.reading = asyncio.get_running_loop().create_task(self._read())

    async def stop_reading(self) -> None:
        """Read nothing any more."""
        assert self.reading is not None
        self.reading.cancel()
        await asyncio.wait([self.reading])

    async def close(self) -> None:
        if self.reading is not None:
            await self.stop_reading()
        await self.wire.close()

    async def until_closed(self) -> None:
        """Until the other side has closed."""
        await until(lambda: self.closed is not None)

    async def flush(self) -> None:
        """Send what the machine has."""
        if chunks := self.machine.data_to_send():
            await self.wire.write(b"".join(chunks))

    # What it asks.

    async def open(self, protocol: str, data: bytes = b"") -> StreamId:
        """Open a stream, and send bytes on it."""
        stream = self.machine.open_stream(protocol, asyncio.get_running_loop().time())
        self.streams[stream] = Heard()
        self.machine.send(stream, data)
        await self.flush()
        return stream

    async def send(self, stream: StreamId, data: bytes) -> None:
        self.machine.send(stream, data)
        await self.flush()

    async def heard(self, stream: StreamId) -> Heard:
        """What comes on a stream until it is over."""
        await until(lambda: self.streams[stream].is_over or self.closed is not None)
        return self.streams[stream]

    async def ask(self, protocol: str, request: bytes) -> bytes | None:
        """Ask, as js-waku does: it closes its half. None: the stream was reset, or closed without an answer."""
        stream = await self.open(protocol, encode_frame(request))
        self.machine.close_write(stream)
        await self.flush()
        heard = await self.heard(stream)
        answers = FrameReader(1 << 24).receive_data(bytes(heard.data))
        assert len(answers) <= 1
        return None if heard.is_reset or not answers else answers[0]

    async def subscribe(
        self, pubsub_topic: str, *content_topics: str, kind: FilterSubscribeType = FilterSubscribeType.SUBSCRIBE
    ) -> FilterSubscribeResponse:
        """Ask for messages, or for no more of them."""
        request = FilterSubscribeRequest("id", kind, pubsub_topic, content_topics)
        answer = await self.ask(ProtocolId.FILTER_SUBSCRIBE, request.encode())
        assert answer is not None
        return decode_filter_subscribe_response(answer)

    async def query(self, query: StoreQueryRequest) -> StoreQueryResponse:
        """Ask for history."""
        answer = await self.ask(ProtocolId.STORE_QUERY, query.encode())
        assert answer is not None
        return decode_store_query_response(answer)

    async def lightpush(self, pubsub_topic: str, message: WakuMessage) -> LightPushResponse:
        """Send a message."""
        request = LightPushRequest("id", pubsub_topic, message)
        answer = await self.ask(ProtocolId.LIGHTPUSH, request.encode())
        assert answer is not None
        return decode_light_push_response(answer)

    async def lightpush_2(self, request: PushRequest) -> PushResponse:
        """Send a message by the older protocol."""
        answer = await self.ask(ProtocolId.LIGHTPUSH_2, PushRpc("id", request).encode())
        assert answer is not None
        rpc = decode_push_rpc(answer)
        assert rpc.request_id == "id"
        assert rpc.response is not None
        return rpc.response

    async def old_filter(self, request_id: str, request: FilterRequest | None) -> None:
        """Ask for messages by the old filter, and wait until that was read. It has no answer."""
        assert await self.ask(ProtocolId.OLD_FILTER, FilterRpc(request_id, request).encode()) is None

    # What it hears.

    async def _read(self) -> None:
        loop = asyncio.get_running_loop()
        while data := await self.wire.read():
            self.machine.receive_data(data, loop.time())
            self._listen()
            await self.flush()
        self.machine.receive_eof(loop.time())
        self._listen()

    def _listen(self) -> None:
        for event in self.machine.events():
            self._hear(event)

    def _hear(self, event: Event) -> None:
        match event:
            case Secured(peer_id=peer_id):
                self.peer_id = peer_id
            case StreamOpened(stream=stream, protocol=protocol, is_ours=False):
                self.push_streams[stream] = FrameReader(MAX_PUSH_BYTES)
                if protocol == ProtocolId.OLD_FILTER:
                    self.old_streams.add(stream)
            case DataReceived(stream=stream, data=data):
                self.machine.consumed(stream, len(data))
                if stream in self.push_streams:
                    self._take_pushes(stream, data)
                else:
                    self.streams[stream].data += data
            case WriteClosed(stream=stream) if stream in self.streams:
                self.streams[stream].is_closed = True
            case StreamReset(stream=stream) | ProtocolRefused(stream=stream) | StreamFailed(stream=stream):
                self.streams.setdefault(stream, Heard()).is_reset = True
            case Closed():
                self.closed = event
            case _:
                pass

    def _take_pushes(self, stream: StreamId, data: bytes) -> None:
        for body in self.push_streams[stream].receive_data(data):
            if self.resets_pushes:
                self.machine.reset(stream)
                return
            if stream in self.old_streams:
                self.old_pushes.append(decode_filter_rpc(body))
            else:
                self.pushes.append(decode_message_push(body))
            if self.is_go:
                self.machine.close_write(stream)


@contextlib.asynccontextmanager
async def connected(
    port: int, kind: str = "tcp", muxer: str = MPLEX, *, seed: bytes | None = None, is_go: bool = False
) -> AsyncIterator[LightClient]:
    """A client for a while."""
    async with asyncio.timeout(DEADLINE_S):
        wire: Wire = await (TcpWire.open(port) if kind == "tcp" else WebSocketWire.open(port))
        client = await LightClient.over(wire, muxer, seed=seed, is_go=is_go)
    try:
        yield client
    finally:
        await client.close()
