"""What a gateway does for light clients: pushes, answers, handshakes, what idle clients take, what they send.

Daemon, gateway and clients are processes of their own, and the envelopes come from here: the way of each is the real
one, by the daemon's intake, the feed socket and the gateway. Pushes are offered at an even rate, so that it shows
whether they are dropped. What the gateway uses of CPU for each says more than how many there were in a second.
"""

import asyncio
import contextlib
import random
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.daemon import Daemon, Gateway
from bench.data import Distribution, Topics, envelope, live_envelopes
from bench.gateway_results import (
    GatewayResults,
    IdleClientsRun,
    LightHandshakesRun,
    MessageHistory,
    Pushes,
    PushesRun,
    Queries,
    QueriesRun,
    SentRun,
)
from bench.helper import Helper, HelperFailed, helper
from bench.ingest import check_responses
from bench.light_clients import posted_of
from bench.store import FilledStore, copied
from bench.targets import progress
from bench.wire import Wire, connect
from mailserver.gateway.index.schema import INDEX_FILE
from mailserver.gateway.push_streams import PROBE_S
from mailserver.ids.envelopes import NS
from mailserver.waku.envelope import encode_envelopes
from mailserver.waku.packets import PacketCode

FRIENDS = ("--allowed-addresses", "127.0.0.0/8")
"""For the gateway: no limit by address holds for loopback."""

STRANGERS = ("--connections-per-second", "0")
"""For the gateway: each client is counted by its address, but all together may come as fast as they like."""

DAEMON = ("--feed-socket",)
PACKETS_PER_S = 200.0
MAX_PER_PACKET = 100
LATE_INTERVAL_S = 0.1
"""Between single envelopes, in the mean; with many clients so long that a tenth of the rate of pushes is offered."""

PAGE = 100
CLIENTS_AT_ONCE = 25
QUESTIONS = (("any topic", 1, 0), ("one topic", 1, 1), ("ten topics", 1, 10), ("one topic", CLIENTS_AT_ONCE, 1))
"""Name, clients at once, topics. Each finds a page of messages, if the store has that many; those of any topic lie side
by side in the store, those of one have a page of their own each."""

SENDERS = 16
HANDSHAKES_AT_ONCE = 16
_MAX_UNSENT_BYTES = 256 * 1024
_POLL_S = 0.001


@dataclass(frozen=True, slots=True)
class GatewaySpec:
    """How much is measured."""

    pushes: int
    pushes_per_s: float
    clients: int
    late: int
    queries: int
    handshakes: int
    idle_s: float
    sent: int


@dataclass(frozen=True, slots=True)
class _Audience:
    """A kind of run of pushes: who gets them. `topics`: how many there are, each of as many clients as any other."""

    name: str
    clients: int
    topics: int
    muxer: str


@contextlib.asynccontextmanager
async def _gateway(password: str, *flags: str, muxer: str = "yamux") -> AsyncIterator[tuple[Daemon, Gateway, Helper]]:
    """A new mailserver, its gateway, and clients that are not connected yet."""
    with (
        tempfile.TemporaryDirectory(prefix="bench-gateway-") as folder,
        Daemon(Path(folder), password, DAEMON) as daemon,
        Gateway(Path(folder), flags) as gateway,
    ):
        async with _clients_of(gateway, muxer) as clients:
            yield daemon, gateway, clients


@contextlib.asynccontextmanager
async def _clients_of(gateway: Gateway, muxer: str) -> AsyncIterator[Helper]:
    async with helper("bench.light_clients") as clients:
        await clients.ask({"address": gateway.address, "muxer": muxer})
        yield clients


async def _ask(clients: Helper, do: str, **arguments: Any) -> Any:
    return await clients.ask({"do": do, **arguments})


async def measure_gateway(
    spec: GatewaySpec, runs: int, password: str, store: FilledStore, envelopes: int, topics: Topics
) -> GatewayResults:
    """Measure everything. `topics`: those of the store.

    Raises:
        HelperFailed: a client lost its connection, was refused, or got what it should not.
        IngestFailed: an envelope was refused.
        ConnectionLost: the daemon ended the connection of whoever posts.
        DaemonFailed: the daemon or the gateway.
    """
    return GatewayResults(
        pushes=tuple(await _pushes(spec, runs, password)),
        history=await _queried(spec, runs, store, envelopes, topics),
        handshakes=tuple(await _handshakes(spec, runs, password)),
        idle=tuple(await _idle_clients(spec, runs, password)),
        sent=tuple(await _sent(spec, runs, password)),
    )


# Pushes


async def _pushes(spec: GatewaySpec, runs: int, password: str) -> list[Pushes]:
    """Push to one client, by either muxer, and to many: with a topic each, and all with the same one."""
    audiences = (
        _Audience("one client", 1, 1, "yamux"),
        _Audience("one client", 1, 1, "mplex"),
        _Audience("a topic each", spec.clients, spec.clients, "mplex"),
        _Audience("one topic for all", spec.clients, 1, "mplex"),
    )
    measured = []
    for audience in audiences:
        done = []
        for run in range(runs):
            progress(
                f"gateway: pushes to {audience.clients:,} clients, {audience.name}, {audience.muxer}, run {run + 1}"
            )
            done.append(await _pushes_to(spec, audience, password))
        measured.append(Pushes(audience.name, audience.clients, audience.muxer, spec.pushes_per_s, tuple(done)))
        progress(f"gateway: median {sorted(measured[-1].rates())[len(done) // 2]:,.0f} pushes/s")
    return measured


async def _pushes_to(spec: GatewaySpec, audience: _Audience, password: str) -> PushesRun:
    rng = random.Random(time.time_ns())
    topics = Topics(audience.topics, Distribution.UNIFORM)
    each = audience.clients // audience.topics  # pushes of an envelope
    room = str(audience.clients)
    flags = (*FRIENDS, "--max-clients", room, "--max-subscribers", room)
    async with (
        _gateway(password, *flags, muxer=audience.muxer) as (daemon, gateway, clients),
        connect(daemon.enode) as (wire, settings),
    ):
        await _ask(clients, "connect", count=audience.clients, first=None)
        await _ask(clients, "subscribe", topics=[topic.hex() for topic in topics.all])
        poster = _Poster(wire)
        # By the first push to each client the gateway finds out what kind it is: that is no part of the rate.
        raws = [envelope(int(time.time()), topic, rng) for topic in topics.all]
        await poster.post_evenly(raws, spec.pushes_per_s / each)
        ready = await _ask(clients, "wait", count=audience.clients)
        await asyncio.sleep(2 * PROBE_S)
        count, min_pow = spec.pushes // each, settings.pow_requirement
        posted = live_envelopes(count, topics, int(time.time()), min_pow=min_pow, rng=rng)
        before, daemon_before = gateway.usage(), daemon.usage()
        began = time.perf_counter()
        waiting = asyncio.create_task(_ask(clients, "wait", count=audience.clients + count * each))
        await poster.post_evenly(posted, spec.pushes_per_s / each)
        arrived = await waiting
        after, daemon_after = gateway.usage(), daemon.usage()
        late, posted_at = await poster.post_late(spec, each, topics, min_pow, rng)
        await _ask(clients, "wait", count=arrived["count"] + len(late) * each)
        raws += [*posted, *late]
        checked = await _ask(clients, "check", posted=[*map(posted_of, raws)], late=len(late))
        poster.check()
    if checked["repeated"] or checked["unwanted"]:
        raise HelperFailed(f"{checked['repeated']} pushes were repeated, {checked['unwanted']} unwanted")
    return PushesRun(
        seconds=arrived["last_at"] - began,
        pushes=arrived["count"] - ready["count"],
        dropped=checked["lacking"],
        gateway_cpu_s=after.cpu_s - before.cpu_s,
        daemon_cpu_s=daemon_after.cpu_s - daemon_before.cpu_s,
        clients_cpu_s=arrived["cpu_s"] - ready["cpu_s"],
        memory_bytes=after.memory_bytes,
        peak_bytes=after.peak_bytes,
        late_s=tuple(at - sent for moments, sent in zip(checked["arrivals"], posted_at, strict=True) for at in moments),
    )


class _Poster:
    """Posts envelopes to the daemon."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        self._responses: list[bytes] = []
        wire.on_packet = self._on_packet

    async def post_evenly(self, raws: Sequence[bytes], per_s: float) -> None:
        """Post at an even rate; what could not be sent in time is sent as soon as it can be."""
        per_packet = max(min(int(per_s / PACKETS_PER_S), MAX_PER_PACKET), 1)
        began, sent = time.perf_counter(), 0
        while sent < len(raws):
            due = (time.perf_counter() - began) * per_s
            while sent <= due and sent < len(raws) and self._wire.unsent_bytes < _MAX_UNSENT_BYTES:
                self._send(raws[sent : sent + per_packet])
                sent += per_packet
            await asyncio.sleep(max(began + sent / per_s - time.perf_counter(), _POLL_S))

    async def post_late(
        self, spec: GatewaySpec, each: int, topics: Topics, min_pow: float, rng: random.Random
    ) -> tuple[list[bytes], list[float]]:
        """Post single envelopes, of `each` pushes, at random intervals; return them, and when each was posted."""
        raws, posted_at = [], []
        interval_s = max(LATE_INTERVAL_S, 10 * each / spec.pushes_per_s)
        for _ in range(spec.late):
            await asyncio.sleep(rng.expovariate(1 / interval_s))
            [raw] = live_envelopes(1, topics, int(time.time()), min_pow=min_pow, rng=rng)
            raws.append(raw)
            posted_at.append(time.perf_counter())
            self._send([raw])
        return raws, posted_at

    def check(self) -> None:
        """Look whether any was refused.

        Raises:
            IngestFailed: one was.
        """
        check_responses(self._responses)

    def _send(self, raws: Sequence[bytes]) -> None:
        self._wire.send(PacketCode.MESSAGES, encode_envelopes(list(raws)))
        self._wire.flush()

    def _on_packet(self, code: int, payload: bytes) -> None:
        if code == PacketCode.MESSAGE_RESPONSE:
            self._responses.append(payload)


# Store queries


async def _queried(spec: GatewaySpec, runs: int, store: FilledStore, envelopes: int, topics: Topics) -> MessageHistory:
    """Have a new gateway index a store, and ask it for pages of PAGE messages. No daemon runs."""
    rng = random.Random(time.time_ns())
    with copied(store) as data_dir, Gateway(data_dir, FRIENDS) as gateway:
        began = time.perf_counter() - gateway.start_s
        async with _clients_of(gateway, "mplex") as clients:
            await _ask(clients, "connect", count=CLIENTS_AT_ONCE, first=None)
            progress(f"gateway: waiting for the index of {envelopes:,} envelopes")
            indexed = await _ask(clients, "await index")
            questions = []
            for name, count, topics_each in QUESTIONS:
                done = []
                for run in range(runs + 1):  # the first meets a cold gateway, and is not counted
                    progress(f"gateway: {name}, {count} at once, run {run}")
                    asked = [_queries(spec, store, topics, topics_each, count, rng) for _ in range(count)]
                    before = gateway.usage()
                    answered = await _ask(clients, "query", queries=asked, limit=PAGE)
                    cpu_s = gateway.usage().cpu_s - before.cpu_s
                    done.append(QueriesRun(tuple(answered["times_s"]), answered["found"], cpu_s))
                questions.append(Queries(name, count, tuple(done[1:])))
            peak_bytes = gateway.usage().peak_bytes
        index_bytes = sum(path.stat().st_size for path in data_dir.glob(INDEX_FILE + "*"))
    return MessageHistory(envelopes, indexed["at"] - began, index_bytes, peak_bytes, tuple(questions))


def _queries(
    spec: GatewaySpec, store: FilledStore, topics: Topics, topics_each: int, clients: int, rng: random.Random
) -> list[tuple[list[str], int]]:
    """What one client asks: random topics, from a random moment in the first half of the history on."""
    first = store.end - store.days * 86_400
    return [
        (
            [topic.hex() for topic in (topics.choose_distinct(topics_each, rng) if topics_each else ())],
            rng.randrange(first, (first + store.end) // 2) * NS,
        )
        for _ in range(max(spec.queries // clients, 1))
    ]


# Handshakes, idle clients, what clients send


async def _handshakes(spec: GatewaySpec, runs: int, password: str) -> list[LightHandshakesRun]:
    """Have clients connect and leave: Noise, and all that agrees on the muxer."""
    done = []
    for run in range(runs):
        progress(f"gateway: {spec.handshakes:,} handshakes, run {run + 1}")
        async with _gateway(password, *STRANGERS) as (_, gateway, clients):
            warm_up = {"first": spec.handshakes, "end": spec.handshakes + HANDSHAKES_AT_ONCE}
            ready = await _ask(clients, "dial", **warm_up, step=1, at_once=HANDSHAKES_AT_ONCE)
            before, began = gateway.usage(), time.perf_counter()
            dialled = await _ask(clients, "dial", first=0, end=spec.handshakes, step=1, at_once=HANDSHAKES_AT_ONCE)
            cpu_s = gateway.usage().cpu_s - before.cpu_s
            clients_cpu_s = dialled["cpu_s"] - ready["cpu_s"]
            done.append(LightHandshakesRun(dialled["done_at"] - began, spec.handshakes, cpu_s, clients_cpu_s))
    return done


async def _idle_clients(spec: GatewaySpec, runs: int, password: str) -> list[IdleClientsRun]:
    """Have clients connect, each from an address of its own, and be idle; then subscribe to a topic each."""
    topics = [topic.hex() for topic in Topics(spec.clients, Distribution.UNIFORM).all]
    room = str(spec.clients)
    done = []
    for run in range(runs):
        progress(f"gateway: {spec.clients:,} idle clients, run {run + 1}")
        flags = (*STRANGERS, "--max-clients", room, "--max-subscribers", room)
        async with _gateway(password, *flags, muxer="mplex") as (_, gateway, clients):
            before = gateway.usage()
            await _ask(clients, "connect", count=spec.clients, first=0)
            await asyncio.sleep(spec.idle_s)
            idle = gateway.usage()
            await _ask(clients, "subscribe", topics=topics)
            subscribed = gateway.usage()
        sizes = (each.memory_bytes for each in (before, idle, subscribed))
        done.append(IdleClientsRun(spec.clients, *sizes))
    return done


async def _sent(spec: GatewaySpec, runs: int, password: str) -> list[SentRun]:
    """Have SENDERS clients send messages by lightpush, each its next one when the last is answered."""
    [topic] = Topics(1, Distribution.UNIFORM).all
    done = []
    for run in range(runs):
        progress(f"gateway: {spec.sent:,} messages by {SENDERS} clients, run {run + 1}")
        flags = (*FRIENDS, "--pow-share", "1")
        async with _gateway(password, *flags, muxer="mplex") as (daemon, gateway, clients):
            await _ask(clients, "connect", count=SENDERS, first=None)
            await _ask(clients, "send", count=SENDERS, topic=topic.hex())
            before, daemon_before, began = gateway.usage(), daemon.usage(), time.perf_counter()
            sent = await _ask(clients, "send", count=spec.sent, topic=topic.hex())
            seconds = sent["done_at"] - began
            gateway_cpu_s = gateway.usage().cpu_s - before.cpu_s
            daemon_cpu_s = daemon.usage().cpu_s - daemon_before.cpu_s
            done.append(SentRun(seconds, SENDERS, tuple(sent["times_s"]), gateway_cpu_s, daemon_cpu_s))
    return done
