"""A light client on a socket of its own: it asks, and takes pushes as js-waku or as go-waku does."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from typing import cast

from mailserver.libp2p.connection import Connection
from mailserver.libp2p.events import ProtocolRefused, Secured, StreamFailed, StreamOpened
from mailserver.libp2p.peer_id import PeerId
from mailserver.libp2p.streams import DataReceived, StreamId, StreamReset, WriteClosed
from mailserver.waku2.filter_packets import (
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
from mailserver.waku2.protocols import FRAME_BOUNDS, ProtocolId
from mailserver.waku2.store_query import StoreQueryRequest, StoreQueryResponse, decode_store_query_response
from tests.libp2p.names import MUXERS, ephemeral_of, identity, noise_keys
from tests.waiting import DEADLINE_S, until

PUSHED = frozenset({ProtocolId.FILTER_PUSH, ProtocolId.OLD_FILTER})


class LightClient(asyncio.Protocol):
    """One connection. `pushes`: the frames that came, with the protocol of each."""

    def __init__(self, name: str, muxers: Sequence[str], *, one_each: bool) -> None:
        """Args:
        one_each: as go-waku, it takes one push from each stream and closes it.
        """
        self.peer_id: PeerId = identity(name).peer_id
        self.machine = Connection(noise_keys(name, muxers), PUSHED, ephemeral_of(name), _now(), is_dialer=True)
        self.pushes: list[tuple[str, bytes]] = []
        self.is_secured = self.is_lost = False
        self.resets_pushes = False
        self._one_each = one_each
        self._answers: dict[StreamId, tuple[FrameReader, asyncio.Future[bytes | None]]] = {}
        self._streams: dict[StreamId, tuple[str, FrameReader]] = {}
        self._transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is none by inheritance
        self._flush()

    def data_received(self, data: bytes) -> None:
        self.machine.receive_data(data, _now())
        for event in self.machine.events():
            match event:
                case Secured():
                    self.is_secured = True
                case StreamOpened(stream=stream, protocol=protocol, is_ours=False):
                    bounds = FRAME_BOUNDS[ProtocolId(protocol)]
                    self._streams[stream] = protocol, FrameReader(bounds.to_client)
                case DataReceived(stream=stream, data=received):
                    self.machine.consumed(stream, len(received))
                    self._on_data(stream, received)
                case WriteClosed(stream=stream):
                    self._end(stream)
                    self.machine.close_write(stream)
                case StreamReset(stream=stream) | ProtocolRefused(stream=stream) | StreamFailed(stream=stream):
                    self._end(stream)
        self._flush()

    def connection_lost(self, cause: Exception | None) -> None:
        self.is_lost = True
        for stream in tuple(self._answers):
            self._end(stream)

    def _on_data(self, stream: StreamId, data: bytes) -> None:
        if stream in self._answers:
            reader, answer = self._answers[stream]
            for body in reader.receive_data(data):
                if not answer.done():
                    answer.set_result(body)
        elif stream in self._streams:
            protocol, reader = self._streams[stream]
            bodies = reader.receive_data(data)
            if bodies and self.resets_pushes:
                self.machine.reset(stream)
                return
            self.pushes += [(protocol, body) for body in bodies]
            if bodies and self._one_each:
                self.machine.close_write(stream)

    def _end(self, stream: StreamId) -> None:
        self._streams.pop(stream, None)
        if stream in self._answers:
            _, answer = self._answers.pop(stream)
            if not answer.done():
                answer.set_result(None)

    def _flush(self) -> None:
        self._transport.writelines(self.machine.data_to_send())

    def begin(self, protocol: ProtocolId, *bodies: bytes) -> "asyncio.Future[bytes | None]":
        """Ask; the future has the answer, None if the stream ends without one."""
        stream = self.machine.open_stream(protocol, _now())
        answer: asyncio.Future[bytes | None] = asyncio.get_running_loop().create_future()
        self._answers[stream] = FrameReader(FRAME_BOUNDS[protocol].to_client), answer
        self.machine.send(stream, b"".join(map(encode_frame, bodies)))
        self.machine.close_write(stream)
        self._flush()
        return answer

    async def ask(self, protocol: ProtocolId, body: bytes) -> bytes | None:
        """Ask, and wait for the answer."""
        return await asyncio.wait_for(self.begin(protocol, body), DEADLINE_S)

    def pause(self) -> None:
        """Read nothing."""
        self._transport.pause_reading()

    def resume(self) -> None:
        """Read again."""
        self._transport.resume_reading()

    async def close(self) -> None:
        """Hang up."""
        self._transport.abort()
        await until(lambda: self.is_lost)

    # Filter

    async def filter(
        self, kind: FilterSubscribeType, *topics: str, pubsub_topic: str | None = None, request_id: str = "1"
    ) -> FilterSubscribeResponse:
        """Send a request of filter-subscribe."""
        request = FilterSubscribeRequest(request_id, kind, pubsub_topic, topics)
        answer = await self.ask(ProtocolId.FILTER_SUBSCRIBE, request.encode())
        assert answer is not None
        return decode_filter_subscribe_response(answer)

    async def old_filter(self, request_id: str, request: FilterRequest | None) -> None:
        """Send a request of the old filter, and wait until it was read."""
        assert await self.ask(ProtocolId.OLD_FILTER, FilterRpc(request_id, request).encode()) is None

    @property
    def messages(self) -> list[MessagePush]:
        """What was pushed by filter-push."""
        return [decode_message_push(body) for protocol, body in self.pushes if protocol == ProtocolId.FILTER_PUSH]

    @property
    def old_messages(self) -> list[FilterRpc]:
        """What was pushed by the old filter."""
        return [decode_filter_rpc(body) for protocol, body in self.pushes if protocol == ProtocolId.OLD_FILTER]

    # Store and lightpush

    async def query(self, request: StoreQueryRequest) -> StoreQueryResponse:
        """Ask for history."""
        answer = await self.ask(ProtocolId.STORE_QUERY, request.encode())
        assert answer is not None
        return decode_store_query_response(answer)

    async def send(self, request: LightPushRequest) -> LightPushResponse:
        """Send a message by 3.0.0."""
        answer = await self.ask(ProtocolId.LIGHTPUSH, request.encode())
        assert answer is not None
        return decode_light_push_response(answer)

    async def send_2(self, request_id: str, request: PushRequest) -> PushResponse:
        """Send a message by 2.0.0-beta1."""
        answer = await self.ask(ProtocolId.LIGHTPUSH_2, PushRpc(request_id, request).encode())
        assert answer is not None
        rpc = decode_push_rpc(answer)
        assert rpc.request_id == request_id
        assert rpc.response is not None
        return rpc.response


@contextlib.asynccontextmanager
async def connected(
    port: int, name: str = "light client", *, muxers: Sequence[str] = MUXERS, one_each: bool = False
) -> AsyncIterator[LightClient]:
    """A client that has done its handshake."""
    _, client = await asyncio.get_running_loop().create_connection(
        lambda: LightClient(name, muxers, one_each=one_each), "127.0.0.1", port
    )
    try:
        await until(lambda: client.is_secured or client.is_lost)
        assert client.is_secured
        yield client
    finally:
        await client.close()


def _now() -> float:
    return asyncio.get_running_loop().time()
