"""One connected peer and what it uses: its packets are stored and confirmed, its requests answered in turn, and
what others send is relayed to it.

Everything that a peer can make us hold is bounded here: packets that wait for the disk, requests that wait for
their turn. At a bound, reading from this peer pauses, or the request is refused; other peers notice nothing.
"""

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Container, Sequence
from dataclasses import dataclass

from mailserver.codec.keys import NodeId
from mailserver.errors import ConnectionLost, DecodeError, DisconnectReason, Rejection, RequestRejected, StoreError
from mailserver.history.delivery import MAX_REQUEST_BYTES, Delivery
from mailserver.limits.admission import groups_of
from mailserver.limits.intake_bounds import TURN_BYTES, IntakeBounds, Load
from mailserver.limits.packet_rates import Meter, RateLimiter
from mailserver.limits.request_quotas import Requester, RequestLimiter
from mailserver.limits.send_rate import SendRate
from mailserver.limits.turns import Turns, TurnShare
from mailserver.live.feed import Feed, LiveEnvelope
from mailserver.live.intake import Clock, Intake
from mailserver.live.relay import PeerRelay, Relay
from mailserver.mail.packing import TARGET_PACKET_BYTES
from mailserver.metrics.labels import Direction
from mailserver.metrics.registry import Metrics
from mailserver.net.connection import Connection
from mailserver.peers.completions import Completions
from mailserver.peers.paced_sender import PacedSender
from mailserver.waku.envelope import (
    MAX_ENVELOPES_PER_PACKET,
    PART_BYTES,
    Envelope,
    EnvelopeReader,
    TooManyEnvelopes,
)
from mailserver.waku.packets import EnvelopeError, MessageResponse, PacketCode, encode_batch_acknowledged
from mailserver.waku.peer import (
    Event,
    LongMessagesReceived,
    MessagesReceived,
    P2PMessagesReceived,
    P2PRequestCompleted,
    P2PRequestReceived,
    SettingsChanged,
    StatusReceived,
)

log = logging.getLogger(__name__)

MAX_UNCONFIRMED_PACKETS = 1024
MAX_UNCONFIRMED_ENVELOPES = 4000
MAX_UNCONFIRMED_BYTES = 4 * 1024 * 1024
"""Packets, envelopes and their bytes of one peer that may wait for the disk: some transactions' worth."""

SEALED_BYTES = 32 * 1024
"""A peer that is sent no more in a second waits for no turn: to seal it takes a third of a millisecond. Hundreds that
want all there is, and let their sockets fill, would keep others waiting for seconds."""

PARTS_TOGETHER = 4
"""Parts of a long packet that are stored together: as much as one transaction of the others holds, or half of that."""

MAX_WAITING_REQUESTS = 16
"""Requests of one peer that may wait while one is answered; deployed clients send 3 at once."""

CONCURRENCY_RETRY_S = 1
"""When a client may come back that has too many requests under way: one takes some milliseconds."""


@dataclass(frozen=True, slots=True)
class Services:
    """What every peer is served with.

    `completions`: how requests of ours end. `sealing`: turns at what is sent. `trusted`: the peers whose P2P Messages
    are taken.
    """

    intake: Intake
    completions: Completions
    delivery: Delivery
    feed: Feed
    bounds: IntakeBounds
    sealing: Turns
    relay: Relay
    rates: RateLimiter
    requests: RequestLimiter
    trusted: Container[NodeId]
    clock: Clock
    metrics: Metrics


class ServedPeer:
    """Serves one connection until it ends.

    `late`: how many envelopes a trusted peer has sent that had expired. `refused_bytes`: how long a packet was that was
    too long even for a named peer, 0 if there was none.
    """

    def __init__(self, connection: Connection, services: Services, number: int) -> None:
        """Take over a connection; `run` does the rest.

        Args:
            number: of the connection; none has been used before.
        """
        self.connection = connection
        self._services = services
        self.number = number
        self.late = 0
        self.refused_bytes = 0
        self._meter: Meter | None = None
        self._requester: Requester | None = None
        self._send_rate = SendRate()
        self._unconfirmed_packets = 0
        self._unconfirmed_envelopes = 0
        self._unconfirmed_bytes = 0
        self._confirmed = asyncio.Event()
        self._work = self._memory = 0  # of the packet that is being taken in
        self._opening = TurnShare(services.bounds.turns, TURN_BYTES)
        self._sealing = TurnShare(services.sealing, SEALED_BYTES)
        self._memory_bytes = 0
        self._requests: deque[bytes] = deque()
        self._request_bytes = 0
        self._requested = asyncio.Event()
        self._stopping = False
        self._tasks: asyncio.TaskGroup

    async def run(self) -> None:
        """Serve until the connection ends."""
        async with asyncio.TaskGroup() as self._tasks:
            tasks = [self._tasks.create_task(work) for work in (self._answer_requests(), self._relay())]
            try:
                await self.connection.run(self._on_event, self._throttle, self._before_packet)
            finally:
                for task in tasks:
                    task.cancel()  # what is being stored goes on; its confirmation finds nobody
                for _ in self._requests:
                    self._known_requester.leave()
                self._services.bounds.requests.leave(self._request_bytes)
                self._give_back(self._memory)  # of a packet that did not decode, or came while we were quitting
                self._services.completions.end_all(self.number, "the mailserver has gone")
        self.refused_bytes = self.refused_bytes or self.connection.refused_bytes
        closed = self.connection.closed
        if closed is not None:
            self._services.metrics.disconnects[closed.reason or DisconnectReason.TCP_ERROR].inc()
        log.debug("peer left peer=%s cause=%r", self.connection, closed.cause if closed else "")

    @property
    def direction(self) -> Direction:
        """Who dialled."""
        return Direction.IN if self.connection.is_inbound else Direction.OUT

    @property
    def requests_waiting(self) -> int:
        """How many of its history requests wait for their turn."""
        return len(self._requests)

    def sender(self) -> PacedSender:
        """A way out for one task: no faster than the peer has said that it takes packets."""
        return PacedSender(self.connection, self._send_rate, self._sealing)

    async def stop(self) -> None:
        """Confirm what was received, then disconnect: we are quitting."""
        self._stopping = True
        while self._unconfirmed_packets:
            self._confirmed.clear()
            await self._confirmed.wait()
        self.connection.disconnect(DisconnectReason.CLIENT_QUITTING, "we are quitting")

    def cut(self) -> None:
        """End the connection at once."""
        self.connection.abort("not gone in time")

    async def _on_event(self, event: Event) -> None:
        match event:
            case MessagesReceived():
                await self._on_messages(event)
            case LongMessagesReceived(reader=reader):
                await self._on_long_messages(reader)
            case P2PRequestReceived(payload=payload):
                await self._on_request(payload)
            case P2PMessagesReceived(envelopes=envelopes):
                self._on_p2p_messages(envelopes)
            case P2PRequestCompleted(payload=payload):
                self._on_completion(payload)
            case StatusReceived(settings=settings):
                self._send_rate.follow(settings)
                self._services.metrics.connections[self.direction].inc()
                log.debug("peer connected peer=%s client=%r", self.connection, self.connection.client_id)
            case SettingsChanged(settings=settings):
                self._send_rate.follow(settings)
            case _:
                pass  # nobody waits for confirmations here

    async def _before_packet(self, code: int, payload: bytes) -> None:
        """Wait for this peer's turn to have a packet decoded, and for memory for what that makes of it."""
        if self._stopping:
            return
        load = Load.of(code, payload)
        await self._opening.take(load.work)
        if load.memory:
            while (
                self._unconfirmed_packets >= MAX_UNCONFIRMED_PACKETS
                or self._unconfirmed_envelopes >= MAX_UNCONFIRMED_ENVELOPES
                or self._unconfirmed_bytes >= MAX_UNCONFIRMED_BYTES
            ):
                self._confirmed.clear()
                await self._confirmed.wait()
            await self._services.bounds.envelopes.enter(load.memory, holds=self._memory_bytes > 0)
            self._memory_bytes += load.memory
        self._work, self._memory = load

    def _give_back(self, memory: int) -> None:
        self._memory_bytes -= memory
        self._services.bounds.envelopes.leave(memory)

    async def _on_messages(self, event: MessagesReceived) -> None:
        if self._stopping:
            return
        memory, self._memory = self._memory, 0
        self._unconfirmed_packets += 1
        self._unconfirmed_envelopes += len(event.envelopes)
        self._unconfirmed_bytes += _size(event)
        self._count_late(event.envelopes)
        self._tasks.create_task(self._take_and_confirm(event, memory, asyncio.get_running_loop().time()))

    async def _on_long_messages(self, reader: EnvelopeReader) -> None:
        """Take in a long packet of a named peer, a part at a time, and confirm it once all of it is on disk."""
        errors: list[EnvelopeError] = []
        received_at = asyncio.get_running_loop().time()
        try:
            while not self._stopping:
                envelopes = await self._read_some(reader)
                if not envelopes:
                    self._confirm(MessageResponse(reader.payload_hash(), tuple(errors)), received_at)
                    return
                response = await self._take_part(envelopes)
                errors += response.errors[: MAX_ENVELOPES_PER_PACKET - len(errors)]
        except TooManyEnvelopes as error:
            self.refused_bytes = reader.size
            self.connection.disconnect(DisconnectReason.SUBPROTOCOL_ERROR, f"MESSAGES: {error}")
        except DecodeError as error:
            self.connection.disconnect(DisconnectReason.SUBPROTOCOL_ERROR, f"MESSAGES: {error}")
        except (StoreError, ConnectionLost):
            pass  # as of any packet: it is not confirmed, or nobody is there to hear it

    async def _read_some(self, reader: EnvelopeReader) -> list[Envelope]:
        """Decode what is to be stored together of a long packet, a part at a time; none at the end."""
        envelopes: list[Envelope] = []
        for _ in range(PARTS_TOGETHER):
            await self._opening.take(PART_BYTES)
            part = reader.read()
            if not part:
                break
            envelopes += part
        return envelopes

    async def _take_part(self, envelopes: list[Envelope]) -> MessageResponse:
        self._count_late(envelopes)
        load = Load.of_envelopes(len(envelopes), sum(len(envelope.raw) for envelope in envelopes))
        await self._services.bounds.envelopes.enter(load.memory, holds=self._memory_bytes > 0)
        self._memory_bytes += load.memory
        try:
            return await self._take_in(envelopes, b"")  # the whole packet is confirmed, not its parts
        finally:
            self._give_back(load.memory)

    async def _take_and_confirm(self, event: MessagesReceived, memory: int, received_at: float) -> None:
        try:
            self._confirm(await self._take_in(event.envelopes, event.batch_hash), received_at)
        except StoreError:
            pass  # the writer has logged it; without a confirmation the sender sends again
        except ConnectionLost:
            pass  # the sender is gone; its envelopes are stored
        finally:
            self._unconfirmed_packets -= 1
            self._unconfirmed_envelopes -= len(event.envelopes)
            self._unconfirmed_bytes -= _size(event)
            self._give_back(memory)
            self._confirmed.set()

    def _count_late(self, envelopes: Sequence[Envelope]) -> None:
        if self.connection.node_id in self._services.trusted:
            now = self._services.clock()  # they are judged a moment later
            self.late += sum(envelope.expiry <= now for envelope in envelopes)

    async def _take_in(self, envelopes: Sequence[Envelope], batch_hash: bytes) -> MessageResponse:
        return await self._services.intake.take(
            envelopes,
            batch_hash,
            peer=self.number,
            subnet=groups_of(self.connection.host).subnet,
            is_limited=not self._known_meter.is_allowed,
        )

    def _confirm(self, response: MessageResponse, received_at: float) -> None:
        """Tell the peer that a packet is on disk.

        Raises:
            ConnectionLost: the connection has ended.
        """
        if response.errors:
            log.debug(
                "envelopes refused peer=%s count=%d first=%r",
                self.connection,
                len(response.errors),
                response.errors[0].description,
            )
        self._send_at_once(PacketCode.MESSAGE_RESPONSE, response.encode())
        self._send_at_once(PacketCode.BATCH_ACKNOWLEDGED, encode_batch_acknowledged(response.batch_hash))
        delay_s = asyncio.get_running_loop().time() - received_at
        self._services.metrics.confirmation_delay.observe(delay_s)

    def _on_p2p_messages(self, envelopes: Sequence[Envelope]) -> None:
        """Hand what a trusted mailserver sends to the filters: it is history, neither judged nor stored nor relayed."""
        if self.connection.node_id not in self._services.trusted:
            return
        self._services.completions.on_messages(self.number)
        for envelope in envelopes:
            self._services.feed.publish(LiveEnvelope(envelope, envelope.hash(), is_p2p=True))

    def _on_completion(self, payload: bytes) -> None:
        """Say how a request ended that this node has sent; what else it may be about, nobody asked."""
        try:
            self._services.completions.on_completion(self.number, payload)
        except DecodeError as error:
            self.connection.disconnect(DisconnectReason.SUBPROTOCOL_ERROR, f"completion: {error}")

    async def _on_request(self, payload: bytes) -> None:
        refused = None
        if len(payload) > MAX_REQUEST_BYTES:
            refused = RequestRejected(Rejection.MALFORMED)
        elif not self._has_room_for(payload):
            refused = RequestRejected(Rejection.TOO_MANY_WAITING, retry_after_s=CONCURRENCY_RETRY_S)
        if refused is None:
            self._requests.append(payload)
            self._request_bytes += len(payload)
            self._requested.set()
        else:
            with contextlib.suppress(ConnectionLost):
                sender = self.sender()
                await self._services.delivery.refuse(payload, refused, sender, self._known_requester.node_id)

    def _has_room_for(self, request: bytes) -> bool:
        """Whether one more request may wait; then it is counted."""
        if len(self._requests) >= MAX_WAITING_REQUESTS or not self._known_requester.enter():
            return False
        if self._services.bounds.requests.enter_at_once(len(request), holds=bool(self._requests)):
            return True
        self._known_requester.leave()
        return False

    async def _answer_requests(self) -> None:
        """Answer one request after the other."""
        sender = self.sender()
        while True:
            await self._requested.wait()
            if not self._requests:
                self._requested.clear()
                continue
            payload = self._requests.popleft()
            self._request_bytes -= len(payload)
            self._services.bounds.requests.leave(len(payload))
            try:
                await self._services.delivery.answer(
                    payload,
                    sender,
                    self._known_requester,
                    max_packet_bytes=min(TARGET_PACKET_BYTES, self._send_rate.max_packet_bytes),
                )
            except ConnectionLost:
                return
            finally:
                self._known_requester.leave()

    async def _relay(self) -> None:
        """Send live envelopes, once the peer has said what it wants."""
        with contextlib.suppress(ConnectionLost):
            await self.connection.ready()
            services = self._services
            await PeerRelay(
                services.relay,
                self.connection,
                self.number,
                self._send_rate,
                services.clock,
                self.sender().turn,
                is_limited=not self._known_meter.is_allowed,
            ).run()

    def _send_at_once(self, code: PacketCode, payload: bytes) -> None:
        """Send a confirmation: as many come as the peer sends packets."""
        self._send_rate.count(len(payload))
        self.connection.send(code, payload)

    def _throttle(self, size: int, now: float) -> float:
        work, self._work = self._work, 0
        return self._known_meter.on_packet(max(size, work), now)

    # The limits are kept by peer: they are looked up when the first packet has come, and with it who it is.

    @property
    def _known_meter(self) -> Meter:
        if self._meter is None:
            self._meter = self._services.rates.meter(*self._who)
        return self._meter

    @property
    def _known_requester(self) -> Requester:
        if self._requester is None:
            self._requester = self._services.requests.requester(*self._who)
        return self._requester

    @property
    def _who(self) -> tuple[str, NodeId]:
        node_id = self.connection.node_id
        assert node_id is not None, "a packet comes after the handshake"
        return self.connection.host, node_id


def _size(event: MessagesReceived) -> int:
    return sum(len(envelope.raw) for envelope in event.envelopes)
