"""The gateway's process: the order in which its parts start and stop.

It reads the daemon's store and hears of live envelopes through the feed socket. When it dies, the daemon does not
notice; when the daemon is down, clients get history all the same.
"""

import asyncio
import contextlib
import logging
import platform
import secrets
import signal
import time
from collections.abc import AsyncIterator
from ipaddress import ip_address

from mailserver import __version__
from mailserver.app.config import parse_address
from mailserver.app.gateway_config import GatewayConfig
from mailserver.app.history import open_archive
from mailserver.app.process import background, listen, raise_file_limit
from mailserver.app.service_monitor import monitored
from mailserver.data_dir.gateway_files import gateway_locked, load_or_make_seed, write_addresses
from mailserver.data_dir.own_store import follow_own_store
from mailserver.feed_socket.client import FeedClient
from mailserver.gateway.bridge import Bridge
from mailserver.gateway.filter_service import FilterService, FilterSubscribe, OldFilter
from mailserver.gateway.handlers import requests_to
from mailserver.gateway.host import Host
from mailserver.gateway.identify import own_protocols
from mailserver.gateway.index.message_store import MessageStore, open_messages
from mailserver.gateway.index.schema import INDEX_FILE
from mailserver.gateway.lightpush_service import LightPush, LightPush2
from mailserver.gateway.live import Live
from mailserver.gateway.metadata_service import MetadataService
from mailserver.gateway.peer import MakeHandler
from mailserver.gateway.rates import Rates
from mailserver.gateway.store_service import StoreService
from mailserver.libp2p.connection import MUXERS
from mailserver.libp2p.identity import IdentityKey
from mailserver.libp2p.multiaddr import AddressProtocol, Multiaddr
from mailserver.libp2p.noise import NoiseKeys
from mailserver.limits.admission import Admission, Allowlist
from mailserver.metrics.gateway import ClientProtocol, GatewayCollector, GatewayFigures, GatewayMetrics
from mailserver.waku2.metadata import Metadata
from mailserver.waku2.protocols import ProtocolId
from mailserver.waku2.subscriptions import SubscriptionLimits, Subscriptions

log = logging.getLogger(__name__)

STATIC_SECRET_BYTES = 32
IPV4 = 4


async def run_gateway(config: GatewayConfig) -> None:
    """Run until SIGTERM or SIGINT.

    Raises:
        StartupError: the data directory, the key or a port cannot be used.
        StoreError: the index of messages cannot be opened.
    """
    raise_file_limit()
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    with gateway_locked(config.data_dir):
        log.info("starting gateway version=%s python=%s", __version__, platform.python_version())
        key = IdentityKey(load_or_make_seed(config.data_dir))
        feed = FeedClient(config.data_dir)
        metrics = GatewayMetrics()
        async with follow_own_store(config.data_dir, config.network_topic, config.store) as arrivals:
            with open_archive(config, arrivals.was_archived, metrics) as archive:
                index = config.data_dir / INDEX_FILE
                async with open_messages(index, arrivals, config.network_topic, archive=archive) as messages:
                    await _serve(Gateway(config, key, messages, feed, metrics), config, stop)
    log.info("stopped")


async def _serve(gateway: "Gateway", config: GatewayConfig, stop: asyncio.Event) -> None:
    """Serve clients until we are to stop."""
    gateway.metrics.registry.register(GatewayCollector(gateway.figures))
    await gateway.live.begin()
    async with (
        background(gateway.messages.follower.run(), failed=stop.set),
        background(gateway.feed.run(), failed=stop.set),
        background(gateway.live.run(), failed=stop.set),
        gateway.serve() as addresses,
        monitored(config.metrics, gateway.metrics.registry, gateway.problems),
    ):
        write_addresses(config.data_dir, addresses)
        for address in addresses:
            log.info("listening address=%s", address)
        await stop.wait()
        log.info("stopping")


class Gateway:
    """What serves clients, put together."""

    def __init__(
        self,
        config: GatewayConfig,
        key: IdentityKey,
        messages: MessageStore,
        feed: FeedClient,
        metrics: GatewayMetrics,
    ) -> None:
        """Put it together; `serve` listens."""
        self._config = config
        self._key = key
        self.messages = messages
        self.feed = feed
        self._addresses: tuple[Multiaddr, ...] = ()
        self.metrics = metrics
        allowed = Allowlist(config.allowed_networks)
        limits = config.host_limits
        self._admission = Admission(limits.admission, allowed)
        rates = Rates(
            {
                ClientProtocol.FILTER: config.filter_requests_per_second,
                ClientProtocol.OLD_FILTER: config.filter_requests_per_second,
                ClientProtocol.STORE: config.store_queries_per_second,
                ClientProtocol.LIGHTPUSH: config.sent_messages_per_second,
            },
            allowed,
        )
        subscription_limits = SubscriptionLimits(
            max_criteria=config.max_criteria, max_subscribers=config.max_subscribers
        )
        self.filters = FilterService(Subscriptions(subscription_limits), config.network_topic, metrics)
        self.live = Live(feed, messages, self.filters, metrics, time.time)
        self._bridge = bridge = Bridge(
            messages,
            feed,
            metrics,
            network_topic=config.network_topic,
            ttl=config.ttl,
            pow_share=config.pow_share,
            wall_clock=time.time,
        )
        assert config.shard is not None, "the settings were checked"
        cluster, shard = config.shard
        protocols: dict[str, MakeHandler] = {
            ProtocolId.FILTER_SUBSCRIBE: requests_to(FilterSubscribe(self.filters, rates, metrics)),
            ProtocolId.OLD_FILTER: requests_to(OldFilter(self.filters, rates, metrics)),
            ProtocolId.STORE_QUERY: requests_to(StoreService(messages, rates, metrics)),
            ProtocolId.LIGHTPUSH: requests_to(LightPush(bridge, rates, metrics)),
            ProtocolId.LIGHTPUSH_2: requests_to(LightPush2(bridge, rates, metrics)),
            ProtocolId.METADATA: requests_to(MetadataService(Metadata(cluster, (shard,)), metrics)),
        }
        protocols |= own_protocols(key, lambda: self._addresses, protocols)
        self.host = Host(
            NoiseKeys(key, secrets.token_bytes(STATIC_SECRET_BYTES), MUXERS),
            protocols,
            self._admission,
            limits,
            metrics,
            self.filters,
        )

    @contextlib.asynccontextmanager
    async def serve(self) -> AsyncIterator[tuple[str, ...]]:
        """Accept clients as long as the context is entered; yield our addresses.

        Raises:
            StartupError: we cannot listen.
        """
        config = self._config
        listened: list[Multiaddr] = []
        try:
            if config.listen:
                port = await listen(self.host.listen, "listen", config.listen)
                listened.append(_multiaddr(parse_address("listen", config.listen)[0], port))
            if config.websocket:
                port = await listen(self.host.listen_websocket, "websocket", config.websocket)
                listened.append(_multiaddr(parse_address("websocket", config.websocket)[0], port, AddressProtocol.WS))
            self._addresses = config.announced or tuple(listened)
            yield tuple(f"{address}/p2p/{self._key.peer_id}" for address in self._addresses)
        finally:
            await self.host.stop()
            self.filters.stop()
            await self._bridge.stop()

    def figures(self) -> GatewayFigures:
        """The state of the gateway."""
        subscriptions = self.filters.subscriptions
        return GatewayFigures(
            clients=self.host.by_transport(),
            handshakes=self.host.handshakes,
            subscribers=len(subscriptions),
            criteria=subscriptions.criteria,
            unread_bytes=self.host.unread_bytes,
            unindexed=self.messages.follower.behind,
            unindexed_periods=(self.messages.archived and self.messages.archived.owed) or 0,
            damaged=self.messages.follower.damaged,
            is_connected=self.feed.terms is not None,
            feed_missed=self.live.missed,
            refused_connections={refusal.name.lower(): count for refusal, count in self._admission.refused.items()},
        )

    def problems(self) -> list[str]:
        """Why the gateway cannot do all of its work now."""
        problems = []
        terms = self.feed.terms
        if terms is None:
            problems.append("the mailserver is not connected: nothing is pushed, and nothing can be sent")
        elif terms.network_topic != self._config.network_topic:
            problems.append(f"the mailserver has another network topic: {terms.network_topic}")
        if problem := self.messages.follower.problem:
            problems.append(f"history cannot be read: {problem}")
        archived = self.messages.archived
        if archived is not None:
            if problem := archived.problem:
                problems.append(problem)
            if archived.owed is None:
                problems.append("what of the archive is not indexed yet is not known yet")
            elif archived.owed:
                problems.append(f"{archived.owed} days and months of the archive are not indexed yet")
        return problems


def _multiaddr(host: str, port: int, *more: AddressProtocol) -> Multiaddr:
    """The address of a host that is listened on. Every address of the machine is shown as loopback's."""
    host = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}.get(host, host)  # noqa: S104
    try:
        address = ip_address(host)
    except ValueError:
        kind = AddressProtocol.DNS
    else:
        kind = AddressProtocol.IP4 if address.version == IPV4 else AddressProtocol.IP6
    return Multiaddr(((kind, host), (AddressProtocol.TCP, str(port)), *((part, "") for part in more)))
