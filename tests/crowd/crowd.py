"""Light clients that come and go, beside a daemon and its gateway, which are processes of their own.

A client of v1 posts all the time. Members of the crowd come from addresses of their own, read history, subscribe, and
some of them send; then they leave: with a goodbye, without one, or after an unsubscribe. Others are a nuisance: they
are silent, send garbage, or read nothing. Each member compares what it got with what was posted. In between, the
gateway's memory is looked at; in the end, all that clients had must have been given back. The store has a history
before the first comes: what the gateway's caches hold of it is there from the beginning, and does not look like a leak.
"""

import asyncio
import contextlib
import hashlib
import itertools
import random
import statistics
import time
import urllib.request
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from pathlib import Path

from bench.addresses import MANY, address
from bench.data import Distribution, Topics, live_envelopes
from bench.helper import HelperFailed
from bench.light_client import MUXERS, LightClient, connect
from bench.store import StoreSpec, prepare_store
from mailserver.client.mail_client import MailClient
from mailserver.client.mail_client import connect as connect_v1
from mailserver.ids.envelopes import NS, content_topic_of
from mailserver.ids.muid import DEFAULT_NETWORK_TOPIC
from mailserver.ids.waku_message import WakuMessage
from mailserver.libp2p.multiaddr import AddressProtocol, Multiaddr
from mailserver.waku.envelope import Topic, decode_envelope
from mailserver.waku2.codes import FilterStatus, LightPushStatus, StoreStatus
from mailserver.waku2.filter_packets import (
    FilterSubscribeRequest,
    FilterSubscribeType,
    decode_filter_subscribe_response,
    decode_message_push,
)
from mailserver.waku2.lightpush import LightPushRequest, decode_light_push_response
from mailserver.waku2.protocols import ProtocolId
from mailserver.waku2.store_query import StoreQueryRequest, decode_store_query_response
from mailserver.waku2.subscriptions import UNREACHABLE_S
from tests.integration.daemons import DEADLINE_S, Daemon, running_daemon
from tests.integration.gateways import METRICS, GatewayProcess, running_gateway

MAX_GATEWAY_BYTES = 300 * 10**6
"""What the gateway may take with a thousand clients."""

MAX_GROWTH = 0.10
GROWTH_FLOOR_BYTES = 10 * 2**20
"""How much more it may take in the last third of the time than in the second, by a share or so many bytes."""

MAX_MORE_FILES = 8

HISTORY_S = 300
"""How far back members look when they come."""

TOPICS_EACH = 3
SENDERS_SHARE = 0.05
"""How many of the members send something, if their sends are not too many for the gateway's proof of work."""

LATE_S = 20.0
"""How long anything may take when the machine is busy, before it counts as lost."""

INDEXED_S = 300.0
"""How long the gateway may take to index what is stored before anybody comes."""

HALF = 0.5
TICK_S = 0.05
SAMPLE_S = 2.0
AT_ONCE = 3
"""How many come in a tick: 60 a second."""

GIVEN_BACK = ("gateway_clients", "gateway_handshakes", "gateway_subscribers", "gateway_unread_bytes")
NEVER = ("gateway_internal_errors_total", "gateway_damaged_envelopes", "gateway_feed_missed_envelopes_total")
"""Metrics that are 0 when all have left; and those that always are."""


@dataclass(frozen=True, slots=True)
class Settings:
    """How many, how long, how much: `clients` are there at a time, and stay `life_s` in the mean; `stored` envelopes
    are there before them."""

    minutes: float = 60.0
    stored: int = 200_000
    clients: int = 1000
    life_s: float = 120.0
    posts_per_s: float = 40.0
    topics: int = 200
    nuisances: int = 20
    seed: int = 0


@dataclass(slots=True)
class Message:
    """One that was offered. `is_stored`: its sender was told so."""

    topic: Topic
    digest: bytes
    created: float
    is_stored: bool = False


@dataclass(frozen=True, slots=True)
class Sample:
    """How the gateway was at a moment, in seconds from the start."""

    at: float
    rss_bytes: int
    peak_bytes: int
    files: int
    clients: int
    subscribers: int
    unread_bytes: int


@dataclass
class Result:
    """What came of it.

    `lost`: pushes and history that members lacked, or had too often, and errors in the logs. `left`: metrics that are
    not as they were before the first client.
    """

    samples: list[Sample] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    lost: list[str] = field(default_factory=list)
    left: dict[str, float] = field(default_factory=dict)

    def broken(self) -> list[str]:
        """Everything that is not as it should be."""
        found = [*self.lost]
        found += [f"{name} is {value:g} when all have left" for name, value in self.left.items() if value]
        peak = max(sample.peak_bytes for sample in self.samples)
        if peak > MAX_GATEWAY_BYTES:
            found.append(f"the gateway took {peak / 10**6:.0f} MB")
        thirds = len(self.samples) // 3
        before, after = (
            statistics.median(sample.rss_bytes for sample in self.samples[at : at + thirds] or self.samples)
            for at in (thirds, 2 * thirds)
        )
        if after > before + max(before * MAX_GROWTH, GROWTH_FLOOR_BYTES):
            found.append(f"the gateway grew from {before / 10**6:.0f} to {after / 10**6:.0f} MB")
        if self.samples[-1].files > self.samples[0].files + MAX_MORE_FILES:
            found.append(f"open files: {self.samples[0].files} at first, {self.samples[-1].files} in the end")
        return found

    def as_text(self) -> str:
        """For people."""
        peak = max(sample.peak_bytes for sample in self.samples)
        most = max(sample.clients for sample in self.samples)
        lines = [f"most clients {most}, peak of memory {peak / 10**6:.0f} MB", f"{dict(sorted(self.counts.items()))}"]
        return "\n".join([*lines, *(self.broken() or ["nothing was lost, and nothing grew"])])


@dataclass
class Got:
    """What was pushed to a member: the digests of messages, and their content topics."""

    digests: Counter[bytes] = field(default_factory=Counter)
    topics: set[str] = field(default_factory=set)

    def add(self, pushes: Iterable[bytes]) -> None:
        """Take pushes, in their protobuf form."""
        for each in pushes:
            message = decode_message_push(each).waku_message
            self.digests[digest_of(message.payload)] += 1
            self.topics.add(message.content_topic)

    def faults(self, due: AbstractSet[bytes], topics: Iterable[Topic]) -> list[str]:
        """What is wrong with it, if these were due, and pushes of these topics asked for."""
        found = []
        if missing := due - self.digests.keys():
            found.append(f"{len(missing)} of {len(due)} pushes are missing")
        if twice := self.digests.total() - len(self.digests):
            found.append(f"{twice} pushes came twice")
        if others := self.topics - {*map(content_topic_of, topics)}:
            found.append(f"there were pushes of {len(others)} other topics")
        return found


def digest_of(payload: bytes) -> bytes:
    """What is kept of a message's payload."""
    return hashlib.sha256(payload).digest()[:16]


class Crowd:
    """Everybody who comes and goes."""

    def __init__(self, settings: Settings, daemon: Daemon, gateway: GatewayProcess, v1: MailClient) -> None:
        self._settings = settings
        self._daemon = daemon
        self._gateway = gateway
        self._v1 = v1
        self._rng = random.Random(settings.seed)
        self._topics = Topics(settings.topics, Distribution.UNIFORM)
        self._offered: list[Message] = []
        self._numbers = itertools.count()
        self._left_subscribed: list[float] = []  # when each left that had a subscription then
        self._is_over = asyncio.Event()
        self._began = time.monotonic()
        self.result = Result()

    async def run(self) -> Result:
        """Have them come and go, and see whether all is given back."""
        await self._look()
        async with asyncio.TaskGroup() as everybody:
            everybody.create_task(self._post())
            everybody.create_task(self._watch())
            everybody.create_task(self._keep(self._settings.clients, self._member))
            everybody.create_task(self._keep(self._settings.nuisances, self._nuisance))
            await asyncio.sleep(self._settings.minutes * 60)
            self._is_over.set()
        await self._until_given_back()
        await self._look()
        return self.result

    async def _keep(self, count: int, live: Callable[[int], Awaitable[None]]) -> None:
        """Keep so many of a kind present until it is over, then wait until they have left."""
        async with asyncio.TaskGroup() as present:
            there: set[asyncio.Task[None]] = set()
            while not self._is_over.is_set():
                there = {task for task in there if not task.done()}
                for _ in range(min(count - len(there), AT_ONCE)):
                    there.add(present.create_task(_awaited(live(next(self._numbers)))))
                await asyncio.sleep(TICK_S)

    async def _while_it_lasts(self, seconds: float) -> None:
        """Wait so long, or until it is over."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._is_over.wait()

    # Those who post, and those who look.

    async def _post(self) -> None:
        """Post at an even rate, as a client of Waku v1."""
        per_tick = self._settings.posts_per_s * TICK_S
        due, min_pow = 0.0, self._v1.settings.pow_requirement
        while not self._is_over.is_set():
            due += per_tick
            some, due = int(due), due - int(due)
            if some:
                raws = live_envelopes(some, self._topics, int(time.time()), min_pow=min_pow, rng=self._rng)
                envelopes = [decode_envelope(raw) for raw in raws]
                messages = [Message(each.topic, digest_of(each.data), each.created) for each in envelopes]
                self._offered += messages
                response = await self._v1.post(envelopes)
                assert not response.errors, response
                for message in messages:
                    message.is_stored = True
                self.result.counts["posted"] += some
            await asyncio.sleep(TICK_S)

    async def _watch(self) -> None:
        while not self._is_over.is_set():
            await self._while_it_lasts(SAMPLE_S)
            await self._look()

    async def _look(self) -> None:
        metrics = await asyncio.to_thread(_scrape, self._gateway)
        process = Path("/proc", str(self._gateway.process.pid))
        status = dict(line.split(":", 1) for line in (process / "status").read_text().splitlines())
        sample = Sample(
            at=time.monotonic() - self._began,
            rss_bytes=int(status["VmRSS"].split()[0]) * 1024,
            peak_bytes=int(status["VmHWM"].split()[0]) * 1024,
            files=len([*(process / "fd").iterdir()]),
            clients=int(metrics["gateway_clients"]),
            subscribers=int(metrics["gateway_subscribers"]),
            unread_bytes=int(metrics["gateway_unread_bytes"]),
        )
        self.result.samples.append(sample)

    async def _until_given_back(self) -> None:
        """Wait until clients that have gone are forgotten: subscriptions a minute later, if the run was that long."""
        now = time.monotonic()
        lasting = [at for at in self._left_subscribed if now - at < UNREACHABLE_S + LATE_S]
        allowed = 0 if self._settings.minutes >= 1 else len(lasting)
        end = now + LATE_S + (UNREACHABLE_S if self._settings.minutes >= 1 else 0)
        while True:
            metrics = await asyncio.to_thread(_scrape, self._gateway)
            left = {name: metrics[name] for name in GIVEN_BACK}
            left["gateway_subscribers"] = max(0, metrics["gateway_subscribers"] - allowed)
            if not any(left.values()) or time.monotonic() > end:
                break
            await asyncio.sleep(TICK_S)
        self.result.left = {**left, **{name: metrics[name] for name in NEVER}}
        for name, log in (("daemon", self._daemon.log), ("gateway", self._gateway.log)):
            self.result.lost += [f"{name}: {line}" for line in log.splitlines() if " ERROR " in line]

    # Members.

    async def _member(self, number: int) -> None:
        """Come, read history, subscribe, stay, leave, and compare."""
        rng = random.Random(f"{self._settings.seed} {number}")
        topics = self._topics.choose_distinct(rng.randint(1, TOPICS_EACH), rng)
        try:
            async with connect(self._gateway.tcp, rng.choice([*MUXERS]), source=address(number % MANY)) as client:
                self.result.counts["members"] += 1
                await self._read_history(client, rng.choice([*topics]), rng)
                await client.subscribe(DEFAULT_NETWORK_TOPIC, tuple(map(content_topic_of, topics)))
                begin = len(self._offered)
                if rng.random() < SENDERS_SHARE:
                    await self._send(client, rng.choice([*topics]), rng)
                await self._while_it_lasts(rng.expovariate(1 / self._settings.life_s))
                await self._compare(client, topics, self._offered[begin:])
                await self._leave(client, rng)
        except (HelperFailed, OSError) as error:
            self.result.lost.append(f"member {number}: {error}")

    async def _leave(self, client: LightClient, rng: random.Random) -> None:
        """Leave without subscriptions and see that nothing comes any more; or with them, with a goodbye or without."""
        way = rng.choice(("unsubscribed", "goodbye", "vanished"))
        self.result.counts[way] += 1
        if way == "unsubscribed":
            request = FilterSubscribeRequest("1", FilterSubscribeType.UNSUBSCRIBE_ALL)
            packet, _ = await client.ask(ProtocolId.FILTER_SUBSCRIBE, request.encode())
            if decode_filter_subscribe_response(packet).status_code != FilterStatus.OK:
                self.result.lost.append("there was no subscription to take back")
            before = len(client.pushed)
            await self._while_it_lasts(self._settings.life_s / 10)
            if len(client.pushed) > before:
                self.result.lost.append("something was pushed after an unsubscribe")
        else:
            self._left_subscribed.append(time.monotonic())
            if way == "vanished":
                client.transport.abort()

    async def _compare(self, client: LightClient, topics: Collection[Topic], offered: Sequence[Message]) -> None:
        """Look whether all that was stored meanwhile, and nothing else, was pushed, each once."""
        due = {each.digest for each in offered if each.is_stored and each.topic in topics}
        end, got, at = time.monotonic() + LATE_S, Got(), 0
        while True:
            for _, bodies in client.pushed[at:]:
                got.add(bodies)
            at = len(client.pushed)
            if due <= got.digests.keys() or time.monotonic() > end:
                break
            if client.lost is not None:
                raise client.lost
            await asyncio.sleep(TICK_S)
        self.result.counts["pushes"] += got.digests.total()
        self.result.lost += got.faults(due, topics)

    async def _read_history(self, client: LightClient, topic: Topic, rng: random.Random) -> None:
        """Read what a topic has had lately, page by page, and look whether all of it is there, each once."""
        start = time.time() - HISTORY_S
        due = {each.digest for each in self._offered if each.is_stored and each.topic == topic and each.created > start}
        request = StoreQueryRequest(
            "1",
            include_data=True,
            pubsub_topic=DEFAULT_NETWORK_TOPIC,
            content_topics=(content_topic_of(topic),),
            time_start=int(start * NS),
            pagination_forward=rng.random() < HALF,
            pagination_limit=rng.randint(5, 100),
        )
        found: Counter[bytes] = Counter()
        while True:
            packet, _ = await client.ask(ProtocolId.STORE_QUERY, request.encode())
            page = decode_store_query_response(packet)
            if page.status_code != StoreStatus.OK:
                self.result.lost.append(f"a query was answered with {page.status_code} {page.status_desc}")
                return
            found.update(digest_of(each.message.payload) for each in page.messages if each.message)
            self.result.counts["pages"] += 1
            if page.pagination_cursor is None:
                break
            request = replace(request, pagination_cursor=page.pagination_cursor)
        if missing := due - found.keys():
            self.result.lost.append(f"{len(missing)} of {len(due)} messages are not in the history")
        if found.total() > len(found):
            self.result.lost.append("a message is twice in the history")

    async def _send(self, client: LightClient, topic: Topic, rng: random.Random) -> None:
        """Send a message; others may be told that there are too many."""
        payload = rng.randbytes(200)
        now = time.time_ns()
        message = Message(topic, digest_of(payload), now / NS)
        self._offered.append(message)
        sent = WakuMessage(payload, content_topic_of(topic), version=1, timestamp=now)
        packet, _ = await client.ask(ProtocolId.LIGHTPUSH, LightPushRequest("1", DEFAULT_NETWORK_TOPIC, sent).encode())
        status = decode_light_push_response(packet).status_code
        message.is_stored = status == LightPushStatus.OK
        self.result.counts[f"sent {status}"] += 1
        if status not in (LightPushStatus.OK, LightPushStatus.TOO_MANY_REQUESTS):
            self.result.lost.append(f"a message was answered with {status}")

    # Nuisances.

    async def _nuisance(self, number: int) -> None:
        """Be silent, send garbage, or subscribe to much and read nothing."""
        rng = random.Random(f"{self._settings.seed} {number}")
        kind = rng.choice(("silent", "garbage", "reads nothing"))
        self.result.counts[kind] += 1
        if kind == "reads nothing":
            with contextlib.suppress(HelperFailed):
                async with connect(self._gateway.tcp, "mplex", source=address(number % MANY)) as client:
                    await client.subscribe(DEFAULT_NETWORK_TOPIC, tuple(map(content_topic_of, self._topics.all[:100])))
                    client.transport.pause_reading()
                    await self._while_it_lasts(rng.expovariate(1 / self._settings.life_s))
                    self._left_subscribed.append(time.monotonic())
            return
        parsed = Multiaddr.parse(self._gateway.tcp)
        host, port = parsed.value(AddressProtocol.IP4) or "", int(parsed.value(AddressProtocol.TCP) or 0)
        _, writer = await asyncio.open_connection(host, port, local_addr=(address(number % MANY), 0))
        if kind == "garbage":
            writer.write(rng.randbytes(1000))
        await self._while_it_lasts(min(rng.expovariate(1 / self._settings.life_s), self._settings.life_s))
        writer.transport.abort()


async def _awaited(work: Awaitable[None]) -> None:
    await work


def _scrape(gateway: GatewayProcess) -> Counter[str]:
    """The metrics of a gateway, those with labels summed up."""
    port = gateway.wait_for_line("serving metrics").rpartition("port=")[2]
    found: Counter[str] = Counter()
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=DEADLINE_S) as answer:
        for line in answer.read().decode().splitlines():
            if not line.startswith("#"):
                name, _, value = line.rpartition(" ")
                found[name.partition("{")[0]] += float(value)  # type: ignore[assignment] # a sum of floats
    return found


async def _until_indexed(gateway: GatewayProcess) -> None:
    """Wait until it answers from all that is stored."""
    request = StoreQueryRequest("1", pagination_limit=1)
    async with asyncio.timeout(INDEXED_S), connect(gateway.tcp, "yamux") as client:
        while True:
            packet, _ = await client.ask(ProtocolId.STORE_QUERY, request.encode())
            if decode_store_query_response(packet).status_code == StoreStatus.OK:
                return
            await asyncio.sleep(TICK_S)


async def run_crowd(settings: Settings, folder: Path) -> Result:
    """Run a daemon and its gateway in a folder, with the crowd around them."""
    room = str(settings.clients + settings.nuisances)
    flags = ("--max-clients", room, "--max-subscribers", str(4 * settings.clients + 100))
    stored = StoreSpec(settings.stored, settings.topics, 1, Distribution.UNIFORM.value)
    await asyncio.to_thread(prepare_store, folder / "data", stored)
    with (
        running_daemon(folder / "data", "--feed-socket") as daemon,
        running_gateway(folder / "data", *METRICS, *flags) as gateway,
    ):
        gateway.wait_for_line("feed connected")
        await _until_indexed(gateway)
        async with connect_v1(daemon.enode, "crowd") as v1:
            result = await Crowd(settings, daemon, gateway, v1).run()
        gateway.stop()
        daemon.stop()
    return result
