"""One connected peer and what it uses: its packets are stored and confirmed, its requests answered in turn, and
what others send is relayed to it.

Everything that a peer can make us hold is bounded: packets that wait for the disk (`peers.live_packets`), requests that
wait for their turn (`peers.request_queue`). At a bound, reading from this peer pauses, or the request is refused; other
peers notice nothing.
"""

import asyncio
import contextlib
import logging
from collections.abc import Container, Sequence
from dataclasses import dataclass

from mailserver.codec.keys import NodeId
from mailserver.errors import ConnectionLost, DecodeError, DisconnectReason, RemoteProtocolError
from mailserver.history.delivery import Delivery
from mailserver.limits.intake_bounds import IntakeBounds
from mailserver.limits.packet_rates import Meter, RateLimiter
from mailserver.limits.request_quotas import Requester, RequestLimiter
from mailserver.limits.send_rate import SendRate
from mailserver.limits.turns import Turns, TurnShare
from mailserver.live.feed import Feed, LiveEnvelope
from mailserver.live.intake import Clock, Intake
from mailserver.live.relay import PeerRelay, Relay
from mailserver.metrics.labels import Direction
from mailserver.metrics.registry import Metrics
from mailserver.net.connection import Connection
from mailserver.net.inbound import Inbound
from mailserver.peers.completions import Completions
from mailserver.peers.live_packets import LivePackets, LiveServices
from mailserver.peers.paced_sender import PacedSender
from mailserver.peers.packet_batch import PacketBatch
from mailserver.peers.request_queue import RequestQueue
from mailserver.waku.envelope import Envelope
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

FREE_SEALING_BYTES = 32 * 1024
"""A peer that is sent no more in a second waits for no turn: to seal it takes a third of a millisecond. Hundreds that
want all there is, and let their sockets fill, would keep others waiting for seconds."""


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
    """Serves one connection until it ends."""

    def __init__(self, connection: Connection, services: Services, number: int) -> None:
        """Take over a connection; `run` does the rest.

        Args:
            number: of the connection; none has been used before.
        """
        self.connection = connection
        self._services = services
        self.number = number
        self._meter: Meter | None = None
        self._requester: Requester | None = None
        self._send_rate = SendRate()
        self._sealing = TurnShare(services.sealing, FREE_SEALING_BYTES)
        live = LiveServices(services.intake, services.bounds, services.trusted, services.clock, services.metrics)
        self._live = LivePackets(connection, live, number, self._send_rate)
        self._requests = RequestQueue(services.delivery, services.bounds.requests, self._send_rate)
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
                    task.cancel()  # what is being stored goes on; its confirmation finds nobody
                self._requests.end()
                self._services.completions.end_all(self.number, "the mailserver has gone")
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

    @property
    def late(self) -> int:
        """How many envelopes it has sent that had expired, if it is a trusted peer."""
        return self._live.late

    @property
    def refused_bytes(self) -> int:
        """How long a packet was that was too long even for a named peer, 0 if there was none."""
        return self._live.refused_bytes or self.connection.refused_bytes

    def sender(self) -> PacedSender:
        """A way out for one task: no faster than the peer has said that it takes packets."""
        return PacedSender(self.connection, self._send_rate, self._sealing)

    async def stop(self) -> None:
        """Confirm what was received, then disconnect: we are quitting."""
        await self._live.stop()
        self.connection.disconnect(DisconnectReason.CLIENT_QUITTING, "we are quitting")

    def cut(self) -> None:
        """End the connection at once."""
        self.connection.abort("not gone in time")

    async def _receive(self, inbound: Inbound) -> float:
        """Limit, decode and act on some of what has come; return for how many seconds to read nothing.

        Raises:
            RemoteProtocolError: a packet breaks a rule, or the peer goes on over its limits.
        """
        loop, meter = asyncio.get_running_loop(), self._known_meter
        batch = await self._live.next_batch(inbound, meter.headroom(loop.time()))
        try:
            await self._act_on(batch.decode(inbound), batch)
        finally:
            self._live.release(batch.memory)
        if batch.fault is not None:
            await self._live.wait_confirmed_briefly()
            raise RemoteProtocolError(*batch.fault)
        return meter.on_packets(batch.sizes, loop.time())

    async def _act_on(self, events: Sequence[Event], batch: PacketBatch) -> None:
        """Act on what packets say, in their order; packets of envelopes that come together go on together."""
        packets: list[MessagesReceived] = []
        memory = 0
        for event, cost in zip(events, batch.costs, strict=False):  # they end early where one breaks a rule
            if isinstance(event, MessagesReceived):
                packets.append(event)
                memory += cost.memory
                batch.memory -= cost.memory
                continue
            if packets:  # before anything that may have to wait
                self._live.start_storing(packets, memory, self._known_meter, self._tasks)
                packets, memory = [], 0
            await self._on_event(event)
            if self.connection.closed is not None:
                return
        if packets:
            self._live.start_storing(packets, memory, self._known_meter, self._tasks)

    async def _on_event(self, event: Event) -> None:
        match event:
            case LongMessagesReceived(reader=reader):
                await self._live.store_long(reader, self._known_meter)
            case P2PRequestReceived(payload=payload):
                await self._requests.add(payload, self._known_requester, self.sender())
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
                is_limited=not self._known_meter.is_exempt,
            ).run()

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
