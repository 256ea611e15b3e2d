"""What serves peers: the services, connected to each other as the settings say, and how a reload changes them."""

import asyncio
import logging
import math
from collections.abc import Callable, Collection
from dataclasses import fields, replace

from mailserver.app import policy
from mailserver.app.client_id import CLIENT_ID
from mailserver.app.config import Config
from mailserver.app.logs import LogFormat, set_up_logging
from mailserver.catchup.catchup import Catchup
from mailserver.catchup.outages import Contact, Contacts
from mailserver.catchup.settings import CatchupSettings
from mailserver.codec.keys import Enode, NodeId, PrivateKey
from mailserver.errors import ConfigError, ConnectionLost, DecodeError
from mailserver.feed_socket.frames import Terms
from mailserver.feed_socket.server import FeedServices
from mailserver.history.delivery import Delivery, DeliverySettings
from mailserver.history.id_answers import IdServices, IdSettings
from mailserver.history.id_lists import IdLists
from mailserver.limits.admission import Admission
from mailserver.limits.frame_bounds import FrameBounds
from mailserver.limits.intake_bounds import IntakeBounds
from mailserver.limits.loop_scheduler import LoopScheduler
from mailserver.limits.packet_rates import RateLimiter
from mailserver.limits.request_quotas import RequestLimiter
from mailserver.live.feed import Feed
from mailserver.live.intake import Clock, Intake
from mailserver.live.others import OthersIntake
from mailserver.live.relay import Relay
from mailserver.mail.completion import CompletionFormat
from mailserver.metrics.figures import NodeFigures
from mailserver.metrics.labels import ClientFamily, Direction
from mailserver.metrics.registry import Metrics
from mailserver.net.connection import Connection
from mailserver.net.dialer import dial
from mailserver.net.listener import Listener
from mailserver.net.sessions import session_config
from mailserver.peers.completions import Completions
from mailserver.peers.connected import Peers
from mailserver.peers.node import Node
from mailserver.peers.served_peer import ServedPeer, Services
from mailserver.store.message_ids import StoreWithIds
from mailserver.waku.acceptance import Acceptance, Requirements
from mailserver.waku.packets import MAX_LONG_PACKET_BYTES
from mailserver.waku.payload import key_from_password

log = logging.getLogger(__name__)

TOO_LONG_INTERVAL_S = 3600.0
"""How often the log says that packets of a named peer are too long. Such a peer is dialled again every minute."""

Reload = Callable[[], Config]
"""Reads all settings again. Raises ConfigError."""


class Server:
    """The services that peers use, and the settings in force."""

    def __init__(
        self,
        config: Config,
        key: PrivateKey,
        store: StoreWithIds,
        lists: IdLists,
        acceptance: Acceptance,
        catchup: Catchup | None,
        metrics: Metrics,
        clock: Clock,
    ) -> None:
        """Connect the services.

        Args:
            lists: what answers requests.
            catchup: judges envelopes by the same `acceptance`; None: another worker catches up.
            clock: the present, Unix seconds.
        """
        self._config = config
        self._store = store
        self._too_long_said: dict[NodeId, float] = {}  # bounded by the number of named peers
        self._ended_bytes = dict.fromkeys(Direction, 0)
        self._catchup = catchup
        self.admission = Admission(*policy.admission(config))
        self._rates = RateLimiter(policy.rate_limits(config))
        self._requests = RequestLimiter(*policy.request_limits(config))
        self.peers = Peers(
            policy.max_peers(config),
            trusted=[enode.node_id for enode in config.trusted_enodes],
            static=[enode.node_id for enode in config.static_enodes],
        )
        feed, completions = Feed(), Completions()
        intake = Intake(store, acceptance, clock, feed=feed, limiter=self._rates, metrics=metrics)
        self.gateways = FeedServices(feed, intake, self._terms, metrics)
        self.others = None if store.others is None else OthersIntake(store.others, intake, feed.left_out, metrics)
        self.relay = Relay(feed, clock, metrics=metrics, light_node=config.light_node)
        self.node = Node(
            key,
            CLIENT_ID,
            acceptance=acceptance,
            intake=intake,
            completions=completions,
            feed=feed,
            relay=self.relay,
            peers=self.peers,
            clock=clock,
            light_node=config.light_node,
            packet_rate_limits=self._rates.settings.packets,
            byte_rate_limits=self._rates.settings.bytes,
        )
        delivery = Delivery(lists.source, _delivery_settings(config, key), clock, metrics=metrics)
        self._services = Services(
            intake=intake,
            completions=completions,
            delivery=delivery,
            ids=IdServices(
                lists=lists,
                since=lambda: store.pruned_until + 1,
                opener=delivery.opener,
                settings=_id_settings(config),
                clock=clock,
                metrics=metrics,
            ),
            feed=feed,
            bounds=IntakeBounds(),
            sealing=LoopScheduler(),
            relay=self.relay,
            rates=self._rates,
            requests=self._requests,
            trusted=self.peers.trusted,
            clock=clock,
            metrics=metrics,
        )
        self._frame_bounds = FrameBounds()
        self.listener = Listener(
            key,
            CLIENT_ID,
            status=self.node.status,
            refuse=self.peers.refuse,
            is_named=self.peers.is_named,
            admission=self.admission,
            serve=self.serve,
            bounds=self._frame_bounds,
        )

    async def serve(self, connection: Connection) -> None:
        """Serve a connection until it ends."""
        peer = ServedPeer(connection, self._services, self.peers.next_number())
        self.peers.add(peer)
        try:
            await peer.run()
        finally:
            self.peers.discard(peer)
            if peer.refused_bytes:
                self._on_too_long(connection, peer.refused_bytes)
            self._ended_bytes[Direction.IN] += connection.received_bytes
            self._ended_bytes[Direction.OUT] += connection.sent_bytes

    def _on_too_long(self, connection: Connection, size: int) -> None:
        """A named peer cannot send what it has: fetch it by history requests instead. Log that, but not each time."""
        node_id, now = connection.node_id, asyncio.get_running_loop().time()
        assert node_id is not None
        enodes = (*self._config.trusted_enodes, *self._config.static_enodes)
        enode = next((enode for enode in enodes if enode.node_id == node_id), None)
        is_asked = enode is not None and self._catchup is not None and self._catchup.ask_for_unsent(enode)
        if now >= self._too_long_said.get(node_id, -math.inf) + TOO_LONG_INTERVAL_S:
            self._too_long_said[node_id] = now
            log.warning(
                "packet of a named peer is too long peer=%s bytes=%d limit=%d fetched=%s",
                connection,
                size,
                MAX_LONG_PACKET_BYTES,
                "yes" if is_asked else "no",
            )

    async def dial(self, enode: Enode) -> Connection:
        """Connect to a static peer.

        Raises:
            ConnectionLost: the peer cannot be reached.
        """
        _, listen_port = self.node.listen_address
        config = session_config(
            self.node.key,
            CLIENT_ID,
            listen_port=listen_port,
            refuse=self.peers.refuse,
            is_named=self.peers.is_named,
        )
        try:
            return await dial(enode, config, self.node.status(), bounds=self._frame_bounds)
        except DecodeError as error:
            raise ConnectionLost(None, str(error)) from error

    def contacts(self, sources: Collection[NodeId]) -> Contacts:
        """Which of these sources are connected, and when each was last heard, for catching up.

        The loop over all peers does little for each: there may be thousands.
        """
        now = asyncio.get_running_loop().time()
        connected = self.peers.connected()
        heard_at = max((peer.connection.last_received_at for peer in connected), default=None)
        found = {
            node_id: Contact(peer.number, now - peer.connection.last_received_at, peer.late_envelopes)
            for peer in connected
            if (node_id := peer.connection.node_id) is not None and node_id in sources
        }
        return Contacts(found, None if heard_at is None else now - heard_at)

    def _terms(self) -> Terms:
        """What gateways must know to post."""
        requirements = self.node.requirements
        topics = requirements.interest.topics
        return Terms(
            self._config.network_topic,
            requirements.min_pow,
            requirements.max_envelope_bytes,
            None if topics is None else frozenset(topics),
        )

    def figures(self) -> NodeFigures:
        """The node's figures at this moment."""
        peers = {(direction, family): 0 for direction in Direction for family in ClientFamily}
        for peer in self.peers.connected():
            peers[peer.direction, ClientFamily.of(peer.connection.client_id)] += 1
        network_bytes = dict(self._ended_bytes)
        for peer in self.peers:
            network_bytes[Direction.IN] += peer.connection.received_bytes
            network_bytes[Direction.OUT] += peer.connection.sent_bytes
        writer_envelopes, writer_bytes = self._store.queued
        relay_envelopes, relay_bytes = self.relay.usage
        return NodeFigures(
            peers=peers,
            max_peers=self.peers.max_peers,
            handshakes=self.listener.handshakes,
            network_bytes=network_bytes,
            writer_envelopes=writer_envelopes,
            writer_bytes=writer_bytes,
            relay_envelopes=relay_envelopes,
            relay_bytes=relay_bytes,
            requests_waiting=sum(peer.requests_waiting for peer in self.peers),
            refused={refusal.name.lower(): count for refusal, count in self.admission.refused.items()},
            exceeded={limit.value: count for limit, count in self._rates.exceeded.items()},
        )

    def reload(self, read: Reload) -> Config:
        """Apply what has changed in the settings, and log what cannot be applied; return the settings in force."""
        try:
            config = read()
        except ConfigError as error:
            log.error("settings not reloaded error=%r", str(error))
            return self._config
        named, config = config, policy.without_ourselves(config, self.node.key.public_key)
        if config != named:
            self.node.log_own_enode()
        changed = {}
        for field in fields(Config):
            value = getattr(config, field.name)
            if value == getattr(self._config, field.name):
                continue
            if field.metadata["reloadable"]:
                changed[field.name] = value
            else:
                log.warning("setting needs a restart name=%s", field.name)
        self._apply(replace(self._config, **changed))  # what needs a restart stays as it is
        log.info("settings reloaded changed=%s", ",".join(changed) or "-")
        return self._config

    def _apply(self, config: Config) -> None:
        before, self._config = self._config, config
        if (config.log_level, config.log_format) != (before.log_level, before.log_format):
            set_up_logging(config.log_level, LogFormat(config.log_format))
        self.admission.change(*policy.admission(config))
        self._rates.change(policy.rate_limits(config))
        self._requests.change(*policy.request_limits(config))
        self.peers.max_peers = policy.max_peers(config)
        node = self.node
        # What JSON-RPC has changed meanwhile stays, unless the settings themselves have changed.
        if config.min_pow != before.min_pow:
            node.set_min_pow(config.min_pow)
        if config.interest != before.interest:
            node.set_interest(config.interest)
        if config.static_peers != before.static_peers:
            node.follow_static(before.static_enodes, config.static_enodes)
        if config.trusted_peers != before.trusted_peers:
            node.follow_trusted(*([enode.node_id for enode in of.trusted_enodes] for of in (before, config)))
        if self._catchup is not None:
            self._catchup.follow(config.trusted_enodes)
        node.set_rate_limits(self._rates.settings.packets, self._rates.settings.bytes)


def catchup_settings(config: Config, sources: tuple[Enode, ...] | None = None) -> CatchupSettings:
    """How to catch up. Without `sources`, the trusted peers are asked."""
    return CatchupSettings(
        sources=config.trusted_enodes if sources is None else sources,
        password_key=key_from_password(config.password),
        client_id=CLIENT_ID,
        acceptance=Acceptance(Requirements(config.min_pow, config.interest)),
        request_pow=config.request_pow,
    )


def _delivery_settings(config: Config, key: PrivateKey) -> DeliverySettings:
    return DeliverySettings(
        symmetric_key=key_from_password(config.password),
        key=key,
        max_limit=config.max_request_limit,
        min_request_pow=config.min_request_pow,
        allow_clear=config.allow_clear_requests,
        completion_format=CompletionFormat(config.completion_format),
    )


def _id_settings(config: Config) -> IdSettings:
    return IdSettings(
        max_envelopes=config.max_request_limit,
        allow_clear=config.allow_clear_requests,
    )
