"""A light client that does what go-waku 0.8.1 does, over TCP, on our own `Connection`. (To build go-waku takes Go.)

What differs from js-waku: it reads one message from each stream and closes it; it resets the streams of pushes from a
node of which it has asked nothing; it does not close its half before it has read an answer; and it goes by cursors.
"""

import asyncio
import contextlib
import secrets
from collections.abc import AsyncIterator

from mailserver.ids.muid import DEFAULT_NETWORK_TOPIC
from mailserver.libp2p.connection import Connection
from mailserver.libp2p.events import Closed, Event, ProtocolRefused, Secured, StreamFailed, StreamOpened
from mailserver.libp2p.identity import IdentityKey
from mailserver.libp2p.multiaddr import AddressProtocol, Multiaddr
from mailserver.libp2p.noise import NoiseKeys
from mailserver.libp2p.peer_id import PeerId
from mailserver.libp2p.streams import DataReceived, StreamId, StreamReset
from mailserver.waku2.filter_client import FilterClient
from mailserver.waku2.filter_packets import (
    FilterSubscribeRequest,
    MessagePush,
    decode_filter_subscribe_response,
    decode_message_push,
)
from mailserver.waku2.frames import FrameReader, encode_frame
from mailserver.waku2.old_filter import FilterRequest, FilterRpc, decode_filter_rpc
from mailserver.waku2.protocols import FRAME_BOUNDS, ProtocolId
from mailserver.waku2.store_query import StoreQueryRequest, StoreQueryResponse, decode_store_query_response
from tests.integration.daemons import DEADLINE_S

PUSHED = frozenset({ProtocolId.FILTER_PUSH, ProtocolId.OLD_FILTER})


class GoClient:
    """One connection. Made by `go_client`."""

    def __init__(self, machine: Connection, streams: tuple[asyncio.StreamReader, asyncio.StreamWriter]) -> None:
        self.filters: FilterClient[PeerId] = FilterClient()
        self.pushed: list[MessagePush] = []
        self.old_pushed: list[FilterRpc] = []
        self.resets = 0
        """How many streams of pushes it has reset."""
        self._service: asyncio.Future[PeerId] = asyncio.get_running_loop().create_future()
        self._machine = machine
        self._reader, self._writer = streams
        self._answers: dict[StreamId, tuple[FrameReader, asyncio.Future[bytes]]] = {}
        self._pushes: dict[StreamId, tuple[str, FrameReader]] = {}
        self._has_asked = False

    async def service(self) -> PeerId:
        """Who is at the other end."""
        return await asyncio.wait_for(asyncio.shield(self._service), DEADLINE_S)

    async def ask(self, protocol: ProtocolId, request: bytes) -> bytes:
        """Send a request; return the answer to it."""
        stream = self._machine.open_stream(protocol, asyncio.get_running_loop().time())
        answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._answers[stream] = FrameReader(FRAME_BOUNDS[protocol].to_client), answer
        self._machine.send(stream, encode_frame(request))
        self._flush()
        got = await asyncio.wait_for(answer, DEADLINE_S)
        self._close(stream)
        return got

    async def subscribe(self, *content_topics: str) -> int:
        """Ask for pushes; return the code."""
        self._has_asked = True
        request = self.filters.subscribe(
            await self.service(), secrets.token_hex(16), DEFAULT_NETWORK_TOPIC, content_topics
        )
        return await self._ask_filter(request)

    async def unsubscribe(self, *content_topics: str) -> int:
        """Ask for no more of them; return the code."""
        service = await self.service()
        return await self._ask_filter(
            self.filters.unsubscribe(service, secrets.token_hex(16), DEFAULT_NETWORK_TOPIC, content_topics)
        )

    async def ping(self) -> int:
        """Ask whether the subscription is still there; return the code."""
        return await self._ask_filter(FilterSubscribeRequest(secrets.token_hex(16)))

    async def query(self, query: StoreQueryRequest) -> StoreQueryResponse:
        """Ask for a page of history."""
        answer = decode_store_query_response(await self.ask(ProtocolId.STORE_QUERY, query.encode()))
        assert answer.request_id == query.request_id
        return answer

    async def request_old(self, request_id: str, request: FilterRequest) -> None:
        """Ask by the old filter, which has no answers."""
        self._has_asked = True
        rpc = self.filters.request_old(await self.service(), request_id, request)
        stream = self._machine.open_stream(ProtocolId.OLD_FILTER, asyncio.get_running_loop().time())
        self._machine.send(stream, encode_frame(rpc.encode()))
        self._close(stream)

    def hang_up(self) -> None:
        """Close the connection."""
        self._machine.close()
        self._flush()
        self._writer.close()

    async def run(self) -> None:
        """Read until the connection is over."""
        loop = asyncio.get_running_loop()
        self._flush()
        with contextlib.suppress(ConnectionError):
            while data := await self._reader.read(65_536):
                self._machine.receive_data(data, loop.time())
                for event in self._machine.events():
                    self._on_event(event)
                self._flush()

    def _on_event(self, event: Event) -> None:
        match event:
            case Secured(peer_id=peer_id):
                self._service.set_result(peer_id)
            case StreamOpened(stream=stream, protocol=protocol, is_ours=False) if not self._has_asked:
                assert protocol in PUSHED
                self.resets += 1
                self._machine.reset(stream)
            case StreamOpened(stream=stream, protocol=protocol, is_ours=False):
                self._pushes[stream] = protocol, FrameReader(FRAME_BOUNDS[ProtocolId(protocol)].to_client)
            case DataReceived(stream=stream, data=data):
                self._machine.consumed(stream, len(data))
                self._on_data(stream, data)
            case StreamReset(stream=stream) | ProtocolRefused(stream=stream) | StreamFailed(stream=stream):
                if stream in self._answers:
                    self._answers.pop(stream)[1].set_exception(AssertionError(event))
            case Closed():
                self._writer.close()
            case _:
                pass

    def _on_data(self, stream: StreamId, data: bytes) -> None:
        if stream in self._answers and (frames := self._answers[stream][0].receive_data(data)):
            self._answers.pop(stream)[1].set_result(frames[0])
        elif stream in self._pushes and (frames := self._pushes[stream][1].receive_data(data)):
            protocol, _ = self._pushes.pop(stream)
            if protocol == ProtocolId.FILTER_PUSH:
                push = decode_message_push(frames[0])
                assert self.filters.fault_of(self._service.result(), push) is None
                self.pushed.append(push)
            else:
                rpc = decode_filter_rpc(frames[0])
                assert self.filters.old_fault_of(self._service.result(), rpc) is None
                self.old_pushed.append(rpc)
            self._machine.close_write(stream)  # what else is on it is lost

    async def _ask_filter(self, request: FilterSubscribeRequest) -> int:
        answer = decode_filter_subscribe_response(await self.ask(ProtocolId.FILTER_SUBSCRIBE, request.encode()))
        assert answer.request_id == request.request_id
        self.filters.on_response(await self.service(), answer)
        return answer.status_code

    def _close(self, stream: StreamId) -> None:
        self._machine.close_write(stream)
        self._flush()

    def _flush(self) -> None:
        self._writer.writelines(self._machine.data_to_send())


@contextlib.asynccontextmanager
async def go_client(address: str, muxer: str, key: IdentityKey | None = None) -> AsyncIterator[GoClient]:
    """Dial an address of TCP with this muxer, as a new client or as the one that has this key."""
    parts = dict(Multiaddr.parse(address).parts)
    keys = NoiseKeys(key or IdentityKey(secrets.token_bytes(32)), secrets.token_bytes(32), (muxer,))
    now = asyncio.get_running_loop().time()
    machine = Connection(
        keys,
        PUSHED,
        lambda: secrets.token_bytes(32),
        now,
        is_dialer=True,
        expected=PeerId.parse(parts[AddressProtocol.P2P]),
    )
    client = GoClient(
        machine, await asyncio.open_connection(parts[AddressProtocol.IP4], int(parts[AddressProtocol.TCP]))
    )
    async with asyncio.TaskGroup() as tasks:
        reading = tasks.create_task(client.run())
        try:
            await client.service()
            yield client
        finally:
            reading.cancel()
            client.hang_up()
