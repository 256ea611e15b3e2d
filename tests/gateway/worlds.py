"""A daemon's feed socket and store, and a gateway's parts on them, put together as `mailserver.app.gateway` does."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.exposition import generate_latest

from mailserver.feed_socket.client import FeedClient
from mailserver.gateway.bridge import Bridge
from mailserver.gateway.filter_service import FilterService, FilterSubscribe, OldFilter
from mailserver.gateway.handlers import requests_to
from mailserver.gateway.host import Host
from mailserver.gateway.identify import own_protocols
from mailserver.gateway.index.message_store import MessageStore, open_messages
from mailserver.gateway.index.schema import INDEX_FILE
from mailserver.gateway.lightpush_service import LightPush, LightPush2
from mailserver.gateway.limits import HostLimits
from mailserver.gateway.live import Live
from mailserver.gateway.metadata_service import MetadataService
from mailserver.gateway.peer import MakeHandler
from mailserver.gateway.rates import Rates
from mailserver.gateway.store_service import StoreService
from mailserver.ids.envelopes import NS, content_topic_of, message_of
from mailserver.ids.muid import DEFAULT_NETWORK_TOPIC
from mailserver.ids.waku_message import WakuMessage
from mailserver.limits.admission import EMPTY_ALLOWLIST, Admission, AdmissionLimits
from mailserver.live.feed import Feed
from mailserver.metrics.gateway import ClientProtocol, GatewayMetrics
from mailserver.waku.acceptance import Requirements
from mailserver.waku.envelope import Envelope, Topic
from mailserver.waku2.metadata import Metadata
from mailserver.waku2.protocols import ProtocolId
from mailserver.waku2.subscriptions import SubscriptionLimits, Subscriptions
from tests.feed_socket.worlds import World, running_world
from tests.gateway.clients import LightClient, connected
from tests.libp2p.names import LISTENER, identity, noise_keys
from tests.mailservers import NEWS, NOW, Clock
from tests.pairs import digest
from tests.store.engines import EACH_ENGINE, Engine, SqliteEngine
from tests.waiting import until

TTL = 50
NEWS_TOPIC = content_topic_of(NEWS)
TOPIC = DEFAULT_NETWORK_TOPIC

on_each_engine = pytest.mark.parametrize("gateway", EACH_ENGINE, indirect=True)
"""Of a test with the fixture `gateway`: its store is kept by each engine in turn."""


@dataclass
class Gateway:
    """What runs. `daemon` has the store, and serves the feed."""

    daemon: World
    messages: MessageStore
    feed: FeedClient
    metrics: GatewayMetrics
    clock: Clock
    filters: FilterService
    live: Live
    bridge: Bridge
    host: Host
    port: int = 0
    running: list[asyncio.Task[None]] = field(default_factory=list)

    def go_live(self) -> None:
        """Read the feed from now on."""
        self.running.append(asyncio.create_task(self.live.run()))

    def client(self, name: str = "light client", **details: Any) -> AbstractAsyncContextManager[LightClient]:
        """A client that has connected."""
        return connected(self.port, seed=digest(name), **details)

    async def accept(self, *envelopes: Envelope) -> None:
        """The daemon accepts envelopes, one after the other."""
        for envelope in envelopes:
            await self.daemon.intake.take_own(envelope)

    def scraped(self, name: str) -> float:
        """The value of a metric, with its labels as they are printed."""
        for line in generate_latest(self.metrics.registry).decode().splitlines():
            if line.startswith(f"{name} "):
                return float(line.rpartition(" ")[2])
        return 0.0


@contextlib.asynccontextmanager
async def running_gateway(
    folder: Path,
    *,
    requirements: Requirements | None = None,
    feed: Feed | None = None,
    rates: Mapping[ClientProtocol, float] | None = None,
    limits: SubscriptionLimits | None = None,
    pow_share: float = 1.0,
    is_live: bool = True,
    engine: Engine | None = None,
) -> AsyncIterator[Gateway]:
    """Serve clients on a free port.

    Args:
        is_live: whether the live feed is read; otherwise the test does that.
        engine: what keeps the store; None: a file in `folder`.
    """
    engine = engine or SqliteEngine(folder)
    async with (
        running_world(folder, requirements=requirements, feed=feed, network_topic=TOPIC, engine=engine) as daemon,
        engine.follow(TOPIC) as arrivals,
        open_messages(folder / INDEX_FILE, arrivals, TOPIC) as messages,
    ):
        gateway = _made(daemon, messages, rates or {}, limits, pow_share)
        await gateway.live.begin()
        gateway.port = await gateway.host.listen("127.0.0.1", 0)
        gateway.running.append(asyncio.create_task(messages.follower.run()))
        if is_live:
            gateway.go_live()
        try:
            await until(lambda: gateway.feed.terms is not None)
            yield gateway
        finally:
            await gateway.host.stop()
            gateway.filters.stop()
            await gateway.bridge.stop()
            for task in gateway.running:
                task.cancel()
            ended = await asyncio.gather(*gateway.running, return_exceptions=True)
            assert all(isinstance(each, asyncio.CancelledError) for each in ended), ended


def _made(
    daemon: World,
    messages: MessageStore,
    rates: Mapping[ClientProtocol, float],
    limits: SubscriptionLimits | None,
    pow_share: float,
) -> Gateway:
    metrics, clock = GatewayMetrics(), Clock()
    feed = daemon.client()
    filters = FilterService(Subscriptions(limits), TOPIC, metrics)
    live = Live(feed, messages, filters, metrics, clock)
    bridge = Bridge(messages, feed, metrics, network_topic=TOPIC, ttl=TTL, pow_share=pow_share, wall_clock=clock)
    asking = Rates(rates, EMPTY_ALLOWLIST)
    protocols: dict[str, MakeHandler] = {
        ProtocolId.FILTER_SUBSCRIBE: requests_to(FilterSubscribe(filters, asking, metrics)),
        ProtocolId.OLD_FILTER: requests_to(OldFilter(filters, asking, metrics)),
        ProtocolId.STORE_QUERY: requests_to(StoreService(messages, asking, metrics)),
        ProtocolId.LIGHTPUSH: requests_to(LightPush(bridge, asking, metrics)),
        ProtocolId.LIGHTPUSH_2: requests_to(LightPush2(bridge, asking, metrics)),
        ProtocolId.METADATA: requests_to(MetadataService(Metadata(1, (4,)), metrics)),
    }
    protocols |= own_protocols(identity(LISTENER), lambda: (), protocols)
    admission = Admission(AdmissionLimits(0, 0, 0.0, 0.0, 0), EMPTY_ALLOWLIST)
    host = Host(noise_keys(LISTENER), protocols, admission, HostLimits(), metrics, filters)
    return Gateway(daemon, messages, feed, metrics, clock, filters, live, bridge, host)


def message(number: int = 0, *, topic: Topic = NEWS, seconds: float = 0.0, **details: Any) -> WakuMessage:
    """A message as a client of v2 sends it, at the present of the tests and some seconds."""
    fields: dict[str, Any] = {"payload": f"message {number}".encode(), "timestamp": NOW * NS + int(seconds * NS) + 7}
    return WakuMessage(content_topic=content_topic_of(topic), **(fields | details))


def mapped(envelope: Envelope) -> WakuMessage:
    """The message of an envelope of v1."""
    found = message_of(envelope)
    assert found is not None
    return found
