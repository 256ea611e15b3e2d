"""The benchmark's side of a connection to a gateway: our own libp2p as the dialer, with as little around it as can be.

What was pushed is looked at when the clock stands. A client has no task of its own: a thousand of them are played by
one process.
"""

import asyncio
import contextlib
import secrets
import time
from collections.abc import AsyncIterator, Callable, Sequence

from bench.helper import HelperFailed
from mailserver.libp2p import mplex, yamux
from mailserver.libp2p.connection import Connection
from mailserver.libp2p.events import Closed, Event, ProtocolRefused, Secured, StreamFailed, StreamOpened
from mailserver.libp2p.identity import IdentityKey
from mailserver.libp2p.multiaddr import AddressProtocol, Multiaddr
from mailserver.libp2p.noise import NoiseKeys
from mailserver.libp2p.streams import DataReceived, StreamId, StreamReset
from mailserver.waku2.codes import FilterStatus
from mailserver.waku2.filter_packets import (
    FilterSubscribeRequest,
    FilterSubscribeType,
    decode_filter_subscribe_response,
)
from mailserver.waku2.frames import FrameReader, encode_frame
from mailserver.waku2.protocols import FRAME_BOUNDS, ProtocolId

MUXERS = {"yamux": yamux.PROTOCOL, "mplex": mplex.PROTOCOL}
CONNECT_TIMEOUT_S = 30.0
ASK_TIMEOUT_S = 60.0

_SECRET_BYTES = 32

Pushed = Sequence[tuple[float, Sequence[bytes]]]
"""What has come of pushes: MessagePushes that came together, and when (`perf_counter`)."""

OnPushed = Callable[[int], None]
"""Told how many pushes have come, each time that some have."""


class LightClient(asyncio.Protocol):
    """One client. Made by `connect`.

    `pushed`: what has come, in order.
    """

    transport: asyncio.Transport

    def __init__(self, keys: NoiseKeys, on_pushed: OnPushed) -> None:
        self._loop = asyncio.get_running_loop()
        self._machine = Connection(
            keys,
            {ProtocolId.FILTER_PUSH},
            lambda: secrets.token_bytes(_SECRET_BYTES),
            self._loop.time(),
            is_dialer=True,
        )
        self._on_pushed = on_pushed
        self._secured: asyncio.Future[None] = self._loop.create_future()
        self._asked: dict[StreamId, tuple[FrameReader, asyncio.Future[tuple[bytes, float]]]] = {}
        self._push_readers: dict[StreamId, FrameReader] = {}
        self._is_closing = False
        self.lost: HelperFailed | None = None
        self.pushed: list[tuple[float, list[bytes]]] = []

    async def ready(self) -> None:
        """Wait until the connection is secured.

        Raises:
            HelperFailed: it has ended.
        """
        await self._secured

    async def ask(self, protocol: ProtocolId, request: bytes) -> tuple[bytes, float]:
        """Send a request on a stream of its own; return the answer and when it had come (`perf_counter`).

        Raises:
            HelperFailed: the gateway ended the connection, or refused the stream.
        """
        if self.lost is not None:
            raise self.lost
        stream = self._machine.open_stream(protocol, self._loop.time())
        answered: asyncio.Future[tuple[bytes, float]] = self._loop.create_future()
        self._asked[stream] = (FrameReader(FRAME_BOUNDS[protocol].to_client), answered)
        self._machine.send(stream, encode_frame(request))
        self._machine.close_write(stream)
        self._flush()
        try:
            async with asyncio.timeout(ASK_TIMEOUT_S):
                return await answered
        except TimeoutError as error:
            raise HelperFailed(f"no answer within {ASK_TIMEOUT_S:g} s") from error

    async def subscribe(self, pubsub_topic: str, content_topics: tuple[str, ...]) -> None:
        """Ask for pushes.

        Raises:
            HelperFailed: the gateway refuses.
        """
        request = FilterSubscribeRequest("1", FilterSubscribeType.SUBSCRIBE, pubsub_topic, content_topics)
        packet, _ = await self.ask(ProtocolId.FILTER_SUBSCRIBE, request.encode())
        answer = decode_filter_subscribe_response(packet)
        if answer.status_code != FilterStatus.OK:
            raise HelperFailed(f"subscription refused: {answer.status_code} {answer.status_desc}")

    def close(self) -> None:
        """Say goodbye and close."""
        self._is_closing = True
        self._machine.close()
        self._flush()
        self.transport.close()

    # What asyncio calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin the handshake."""
        self.transport = transport  # type: ignore[assignment] # a stream's, which uvloop's classes do not say
        self._flush()

    def data_received(self, data: bytes) -> None:
        """Take what has come."""
        self._machine.receive_data(data, self._loop.time())
        for event in self._machine.events():
            self._handle(event)
        self._flush()

    def connection_lost(self, exc: Exception | None) -> None:
        """The socket is gone."""
        if not self._is_closing:
            self._lose("the gateway ended the connection")

    # The machine.

    def _handle(self, event: Event) -> None:
        match event:
            case DataReceived(stream=stream, data=data):
                self._machine.consumed(stream, len(data))
                if (pushes := self._push_readers.get(stream)) is not None:
                    if bodies := pushes.receive_data(data):
                        self.pushed.append((time.perf_counter(), bodies))
                        self._on_pushed(len(bodies))
                elif (asked := self._asked.get(stream)) is not None and (answers := asked[0].receive_data(data)):
                    del self._asked[stream]
                    asked[1].set_result((answers[0], time.perf_counter()))
            case StreamOpened(stream=stream, is_ours=False):
                self._push_readers[stream] = FrameReader(FRAME_BOUNDS[ProtocolId.FILTER_PUSH].to_client)
            case Secured():
                self._secured.set_result(None)
            case ProtocolRefused(stream=stream) | StreamReset(stream=stream) | StreamFailed(stream=stream):
                if (asked := self._asked.pop(stream, None)) is not None:
                    asked[1].set_exception(HelperFailed("a request was refused"))
            case Closed(fault=fault) if not self._is_closing:
                self._lose(str(fault or "the gateway said goodbye"))

    def _flush(self) -> None:
        if (chunks := self._machine.data_to_send()) and not self.transport.is_closing():
            self.transport.write(b"".join(chunks))

    def _lose(self, why: str) -> None:
        self.lost = self.lost or HelperFailed(why)
        if not self._secured.done():
            self._secured.set_exception(self.lost)
        for _, answered in self._asked.values():
            answered.set_exception(self.lost)
        self._asked.clear()
        self._on_pushed(0)


def _new_keys(muxer: str) -> NoiseKeys:
    """The keys of a client that nobody has met."""
    seed, static = secrets.token_bytes(_SECRET_BYTES), secrets.token_bytes(_SECRET_BYTES)
    return NoiseKeys(IdentityKey(seed), static, (MUXERS[muxer],))


@contextlib.asynccontextmanager
async def connect(
    address: str, muxer: str, *, source: str | None = None, on_pushed: OnPushed = lambda count: None
) -> AsyncIterator[LightClient]:
    """Connect to a gateway as somebody new, as long as the context is entered.

    Args:
        address: its multiaddr. muxer: one of MUXERS. source: the address to come from.
    Raises:
        HelperFailed: the gateway ended the connection.
        OSError: it cannot be reached.
    """
    parsed = Multiaddr.parse(address)
    host, port = parsed.value(AddressProtocol.IP4) or "", int(parsed.value(AddressProtocol.TCP) or 0)
    loop = asyncio.get_running_loop()
    keys = _new_keys(muxer)
    try:
        async with asyncio.timeout(CONNECT_TIMEOUT_S):
            _, client = await loop.create_connection(
                lambda: LightClient(keys, on_pushed),
                host,
                port,
                local_addr=None if source is None else (source, 0),
            )
            try:
                await client.ready()
            except BaseException:
                client.close()
                raise
    except TimeoutError as error:
        raise HelperFailed(f"not connected within {CONNECT_TIMEOUT_S:g} s") from error
    try:
        yield client
    finally:
        client.close()
