"""One connected peer: its envelopes are stored and confirmed, its requests are answered, and the envelopes of others
are relayed to it.

Everything that a peer can make us keep is bounded: packets that wait for the disk (`peers.live_packets`), and requests
that wait (`peers.request_queue`). At a bound, reading from this peer pauses, or the request is refused. Other peers are
not affected.
"""

import asyncio
import contextlib
import logging
from collections.abc import Container, Sequence
from dataclasses import dataclass

from mailserver.codec.keys import NodeId
from mailserver.errors import ConnectionLost, DecodeError, DisconnectReason, RemoteProtocolError
from mailserver.history.delivery import Delivery
from mailserver.history.id_answers import IdServices
from mailserver.history.id_conversation import IdConversation
from mailserver.limits.intake_bounds import IntakeBounds
from mailserver.limits.loop_scheduler import LoopScheduler, WorkBudget
from mailserver.limits.packet_rates import PacketMeter, RateLimiter
from mailserver.limits.request_quotas import Requester, RequestLimiter
from mailserver.limits.send_rate import SendRate
from mailserver.live.feed import Feed, LiveEnvelope
from mailserver.live.intake import Clock, Intake
from mailserver.live.relay import PeerRelay, Relay
from mailserver.metrics.labels import Direction
from mailserver.metrics.registry import Metrics
from mailserver.net.connection import Connection
from mailserver.net.inbound import Event, Inbound
from mailserver.net.sessions import Code
from mailserver.peers.completions import Completions
from mailserver.peers.live_packets import LivePackets, LiveServices
from mailserver.peers.paced_sender import PacedSender
from mailserver.peers.packet_batch import PacketBatch
from mailserver.peers.request_queue import RequestQueue
from mailserver.waku.envelope import Envelope
from mailserver.waku.packets import PacketCode
from mailserver.waku.peer import (
    LongMessagesReceived,
    MessagesReceived,
    P2PMessagesReceived,
    P2PRequestCompleted,
    P2PRequestReceived,
    SettingsChanged,
    StatusReceived,
)
from mailserver.wakuid.packets import QUESTIONS
from mailserver.wakuid.peer import IdPacketReceived

log = logging.getLogger(__name__)

FREE_SEALING_BYTES = 32 * 1024
"""A peer that is sent no more than this in a second never waits for a turn: sealing it takes a third of a millisecond.
Without turns, hundreds of peers that want everything would delay the others by seconds."""


@dataclass(frozen=True, slots=True)
class Services:
    """What all peers are served with.

    `ids` answers questions about message ids. `completions`: the outcomes of our own requests. `sealing`: turns at
    sealing packets. `trusted`: the peers whose P2P Messages are taken.
    """

    intake: Intake
    completions: Completions
    delivery: Delivery
    ids: IdServices
    feed: Feed
    bounds: IntakeBounds
    sealing: LoopScheduler
    relay: Relay
    rates: RateLimiter
    requests: RequestLimiter
    trusted: Container[NodeId]
    clock: Clock
    metrics: Metrics


class ServedPeer:
    """Serves one connection until it ends."""

    def __init__(self, connection: Connection, services: Services, number: int) -> None:
        """Take over a connection; `run` does the rest.

        Args:
            number: the number of the connection, which no other had.
        """
        self.connection = connection
        self._services = services
        self.number = number
        self._meter: PacketMeter | None = None
        self._requester: Requester | None = None
        self._send_rate = SendRate()
        self._sealing = WorkBudget(services.sealing, FREE_SEALING_BYTES)
        live = LiveServices(services.intake, services.bounds, services.trusted, services.clock, services.metrics)
        self._live = LivePackets(connection, live, number, self._send_rate)
        conversation = IdConversation(services.ids)
        self._requests = RequestQueue(services.delivery, conversation, services.bounds, self._send_rate)
        self._tasks: asyncio.TaskGroup

    async def run(self) -> None:
        """Serve until the connection ends."""
        async with asyncio.TaskGroup() as self._tasks:
            others = (self._requests.answer_all(self.sender()), self._relay())
            tasks = [self._tasks.create_task(work) for work in others]
            try:
                await self.connection.pump(self._receive)
            finally:
                for task in tasks:
                    task.cancel()  # what is being stored is stored all the same, but not confirmed
                self._requests.end()
                self._services.completions.end_all(self.number, "the mailserver has disconnected")
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
        """How many of its history requests wait."""
        return len(self._requests)

    @property
    def late_envelopes(self) -> int:
        """How many expired envelopes it has sent, if it is a trusted peer."""
        return self._live.late_envelopes

    @property
    def refused_bytes(self) -> int:
        """The length of a packet that was too long even for a named peer; 0 if there was none."""
        return self._live.refused_bytes or self.connection.refused_bytes

    def sender(self) -> PacedSender:
        """Make a sender for one task."""
        return PacedSender(self.connection, self._send_rate, self._sealing, self._services.bounds.unread)

    async def stop(self) -> None:
        """Confirm what was received, then disconnect with the reason that we are quitting."""
        await self._live.stop()
        self.connection.disconnect(DisconnectReason.CLIENT_QUITTING, "we are quitting")

    def abort(self) -> None:
        """End the connection at once."""
        self.connection.abort("did not disconnect in time")

    async def _receive(self, inbound: Inbound) -> float:
        """Take a batch of what has come: limit it, decode it, and act on it. Return for how many seconds not to read.

        Raises:
            RemoteProtocolError: a packet breaks a rule, or the peer does not keep to our limits.
        """
        loop, meter = asyncio.get_running_loop(), self._known_meter
        batch = await self._live.next_batch(inbound, meter.headroom(loop.time()))
        try:
            await self._act_on(await self._live.decode(batch, inbound), batch, sum(batch.sizes) + inbound.bytes)
        finally:
            self._live.release(batch.memory)
        if batch.fault is not None:
            await self._live.wait_confirmed_briefly()
            raise RemoteProtocolError(*batch.fault)
        return meter.on_packets(batch.sizes, loop.time())

    async def _act_on(self, events: Sequence[Event], batch: PacketBatch, held_bytes: int) -> None:
        """Act on the packets of a batch, in order. Adjacent packets of live envelopes are stored together.

        Args:
            held_bytes: how much is in memory of this batch and of what was read with it.
        """
        packets: list[MessagesReceived] = []
        memory = 0
        for event, cost in zip(events, batch.costs, strict=False):  # `events` ends early if one breaks a rule
            if isinstance(event, MessagesReceived):
                packets.append(event)
                memory += cost.memory
                batch.memory -= cost.memory
                continue
            if packets:  # now, as the next event may have to wait
                self._live.start_storing(packets, memory, self._known_meter, self._tasks)
                packets, memory = [], 0
            await self._on_event(event, held_bytes)
            if self.connection.closed is not None:
                return
        if packets:
            self._live.start_storing(packets, memory, self._known_meter, self._tasks)

    async def _on_event(self, event: Event, held_bytes: int) -> None:
        match event:
            case LongMessagesReceived(reader=reader):
                await self._live.store_long(reader, self._known_meter)
            case P2PRequestReceived(payload=payload):
                await self._add_request(PacketCode.P2P_REQUEST, payload, held_bytes)
            case IdPacketReceived(code=code, payload=payload) if code in QUESTIONS:
                await self._add_request(code, payload, held_bytes)
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
                pass  # nothing here waits for confirmations by the peer, or for answers about ids

    async def _add_request(self, code: Code, payload: bytes, held_bytes: int) -> None:
        await self._requests.add(code, payload, self._known_requester, self.sender(), held_bytes=held_bytes)

    def _on_p2p_messages(self, envelopes: Sequence[Envelope]) -> None:
        """Publish history that a trusted mailserver sends, for filters. It is not judged, stored or relayed."""
        if self.connection.node_id not in self._services.trusted:
            return
        self._services.completions.on_messages(self.number)
        for envelope in envelopes:
            self._services.feed.publish(LiveEnvelope(envelope, envelope.hash(), is_p2p=True))

    def _on_completion(self, payload: bytes) -> None:
        """Take the completion of a request that this node has sent. Any other completion is ignored."""
        try:
            self._services.completions.on_completion(self.number, payload)
        except DecodeError as error:
            self.connection.disconnect(DisconnectReason.SUBPROTOCOL_ERROR, f"completion: {error}")

    async def _relay(self) -> None:
        """Relay live envelopes to the peer, once its Status has said what it wants."""
        with contextlib.suppress(ConnectionLost):
            await self.connection.ready()
            services = self._services
            sender = self.sender()
            relay = PeerRelay(
                services.relay,
                self.connection,
                self.number,
                self._send_rate,
                services.clock,
                sender,
                is_limited=not self._known_meter.is_exempt,
            )
            try:
                await relay.run()
            finally:
                sender.end()

    # Limits are kept per peer. They are looked up at the first packet: before it, we do not know who the peer is.

    @property
    def _known_meter(self) -> PacketMeter:
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
        assert node_id is not None, "packets come after the handshake"
        return self.connection.host, node_id
