"""What the hot paths do, counted: it is the same on every machine, so a change of it is a change of ours.

Bounds lie a tenth above what was counted. Whoever makes more work of an envelope says here why.
"""

import asyncio
import random
import shutil
import sqlite3
import time
import tracemalloc
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from eth_hash.backends import pysha3

from bench.data import Distribution, Topics, history, live_envelopes, packets
from bench.flood import Poster
from bench.history import DAY_S, QUESTIONS, Question
from bench.wire import connect
from mailserver.codec import rlp
from mailserver.codec.keys import Enode
from mailserver.history.delivery import Delivery, DeliverySettings
from mailserver.limits.admission import EMPTY_ALLOWLIST
from mailserver.limits.packet_rates import RateLimiter, RateLimitSettings
from mailserver.limits.request_quotas import RequestLimiter
from mailserver.live.feed import Feed
from mailserver.live.intake import Intake
from mailserver.metrics.registry import Metrics
from mailserver.store.sqlite.schema import STORE_FILE
from mailserver.store.sqlite.store import SqliteStore, open_store
from mailserver.waku.acceptance import Acceptance, Requirements
from mailserver.waku.bloom import Interest
from mailserver.waku.envelope import decode_envelopes
from mailserver.waku.packets import PacketCode
from mailserver.waku.peer import MessagesReceived, WakuPeer
from tests.faults.tracing import read_trace, traced_daemon
from tests.history.answered import Client
from tests.mailservers import NO_REQUEST_LIMITS, Clock
from tests.pairs import private_key

NOW = Clock().now
SEED = 7
DAYS = 30
PER_PACKET = 100
TOPICS = Topics(500, Distribution.UNIFORM)
MIN_POW = 0.002


@dataclass
class Work:
    """What was done since `begin`: statements of SQLite and steps of its machine, hashes and the bytes they were of."""

    statements: int = 0
    steps: int = 0
    hashes: int = 0
    hashed_bytes: int = 0

    def begin(self) -> None:
        self.statements = self.steps = self.hashes = self.hashed_bytes = 0


@pytest.fixture
def work(monkeypatch: pytest.MonkeyPatch) -> Work:
    """Counts on every connection of SQLite that is opened from now on, and every whole hash."""
    counted = Work()
    connect, keccak = sqlite3.connect, pysha3.keccak256

    def on_step() -> int:
        counted.steps += 1
        return 0

    def on_statement(_: str) -> None:
        counted.statements += 1

    def connect_counted(*arguments: Any, **options: Any) -> sqlite3.Connection:
        connection: sqlite3.Connection = connect(*arguments, **options)
        connection.set_progress_handler(on_step, 1)
        connection.set_trace_callback(on_statement)
        return connection

    def keccak_counted(data: bytes) -> bytes:
        counted.hashes += 1
        counted.hashed_bytes += len(data)
        return keccak(data)

    monkeypatch.setattr(sqlite3, "connect", connect_counted)
    monkeypatch.setattr(pysha3, "keccak256", keccak_counted)
    return counted


async def fill(path: Path, count: int, days: int) -> None:
    async with open_store(path) as store:
        for rows in history(count, TOPICS, end=int(NOW), span_s=days * DAY_S, rng=random.Random(SEED)):
            await store.put(rows)


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Callable[[int, int], Path]:
    """The folder of a store with so many envelopes, created evenly over so many days."""

    @cache
    def made(count: int, days: int) -> Path:
        folder = tmp_path_factory.mktemp("filled")
        asyncio.run(fill(folder / "store", count, days))
        return folder

    return made


@pytest.fixture
def stored(request: pytest.FixtureRequest, filled: Callable[[int, int], Path], tmp_path: Path) -> Path:
    """The store of its parameters, envelopes and days. It is to be made before there is `work`, which slows it."""
    shutil.copytree(filled(*request.param), tmp_path / "filled")
    return tmp_path / "filled" / "store"


# Taken in


def take_of(payload: bytes) -> MessagesReceived:
    """A Messages packet as it comes out of the protocol."""
    peer = WakuPeer(light_node=False)
    peer.receive_packet(PacketCode.STATUS, rlp.encode([]))
    event = peer.receive_packet(PacketCode.MESSAGES, payload)
    assert isinstance(event, MessagesReceived)
    return event


def intake_of(store: SqliteStore) -> Intake:
    return Intake(
        store,
        Acceptance(Requirements(MIN_POW)),
        Clock(),
        feed=Feed(),
        limiter=RateLimiter(RateLimitSettings()),
        metrics=Metrics(),
    )


def new_packets(count: int) -> list[bytes]:
    """Packets of envelopes that are new and acceptable."""
    raws = live_envelopes(count * PER_PACKET, TOPICS, int(NOW), min_pow=MIN_POW, rng=random.Random(SEED))
    return packets(raws, PER_PACKET)


async def test_envelope_is_hashed_twice_and_its_packet_once(tmp_path: Path, work: Work) -> None:
    (payload,) = new_packets(1)
    async with open_store(tmp_path / "store") as store:
        intake = intake_of(store)
        work.begin()

        event = take_of(payload)
        (response,) = await intake.take([event], peer=1)

    assert response.errors == ()
    assert work.hashes == 2 * PER_PACKET + 1  # its hash and its proof of work
    assert work.hashed_bytes <= 3 * len(payload)


@pytest.mark.parametrize("stored", [(0, DAYS), (20_000, DAYS)], ids=["0", "20000"], indirect=True)
async def test_envelope_costs_as_much_to_store_however_many_there_are(stored: Path, work: Work) -> None:
    first, payload = new_packets(2)
    async with open_store(stored) as store:
        intake = intake_of(store)
        await intake.take([take_of(first)], peer=1)  # begins to count transactions
        event = take_of(payload)
        work.begin()

        await intake.take([event], peer=1)

        assert work.statements <= 9  # all of the one transaction, its number included
        assert work.steps / PER_PACKET < 100


async def test_packet_takes_three_times_its_length_in_memory_until_it_is_stored(tmp_path: Path) -> None:
    first, payload = new_packets(2)
    async with open_store(tmp_path / "store") as store:
        intake = intake_of(store)
        await intake.take([take_of(first)], peer=1)  # fills caches

        tracemalloc.start()
        event = take_of(payload)
        await intake.take([event], peer=1)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()

    assert peak < 3.2 * len(payload)


async def post(enode: Enode, raws: Sequence[bytes]) -> None:
    """Post envelopes one by one, each when the one before is confirmed."""
    async with connect(enode) as (wire, _):
        poster = Poster(wire)
        for raw in raws:
            await poster.post(raw)


@pytest.mark.integration
def test_packet_costs_one_send_one_sync_and_few_writes(tmp_path: Path) -> None:
    # What it costs is what more packets cost: less the handshake and the first pages of a store.
    counts: list[Counter[str]] = []
    for number in (20, 120):
        rng, trace = random.Random(SEED), tmp_path / f"trace {number}"
        raws = live_envelopes(number, TOPICS, int(time.time()), min_pow=MIN_POW, rng=rng)
        with traced_daemon(tmp_path / str(number), trace) as daemon:
            asyncio.run(post(daemon.enode, raws))
        log = f"{STORE_FILE}-wal"
        kinds: Counter[str] = Counter()
        for call in read_trace(trace):
            kinds["sends"] += call.is_send
            kinds["receives"] += call.is_receive
            kinds["syncs"] += call.is_sync and call.on.endswith(log)
            kinds["writes"] += call.name == "pwrite64" and call.on.endswith(log)
        counts.append(kinds)

    each = {kind: (counts[1][kind] - counts[0][kind]) / 100 for kind in counts[1]}
    assert each["sends"] <= 1.05
    assert each["receives"] <= 1.05
    assert 1 <= each["syncs"] <= 1.05
    assert each["writes"] <= 20  # a header and a page each: nine pages change


# Served


def request_of(interest: Interest, lower: float) -> bytes:
    """A request in the clear for a first page."""
    bloom = b"" if interest.topics is not None else interest.bloom
    fields: list[rlp.Encodable] = [b"7" * 32, rlp.encode_uint(int(lower)), rlp.encode_uint(int(NOW)), b"", b"", bloom]
    return rlp.encode([*fields, sorted(interest.topics or ())])


ALONE = [question for question in QUESTIONS if question.clients == 1]


MOST = {
    "one topic, 24 h": (300, 3),
    "one topic, 30 days": (231, 3),
    "100 topics, 7 days": (152, 8),
    "bloom of 3 topics, 30 days": (583, 12),
    "full bloom, 24 h": (52, 3),
}
"""By question: steps for each envelope that is served, and statements for the page. 16 steps for each are the price of
looking up topics with an end: a row says of which topic it is, and that with too many is read by itself."""


# What lies outside of the time asked for costs nothing.
@pytest.mark.parametrize("stored", [(200 * days, days) for days in (DAYS, 3 * DAYS)], ids=["30", "90"], indirect=True)
@pytest.mark.parametrize("question", ALONE, ids=lambda question: question.name)
async def test_envelope_costs_as_much_to_serve_however_many_there_are(
    stored: Path, work: Work, question: Question
) -> None:
    interest = question.interest(TOPICS, random.Random(SEED))
    requester = RequestLimiter(NO_REQUEST_LIMITS, NO_REQUEST_LIMITS, EMPTY_ALLOWLIST).requester(
        "192.0.2.1", private_key("client").public_key
    )
    async with open_store(stored) as store:
        delivery = Delivery(store, DeliverySettings(b"", private_key("node")), Clock(), metrics=Metrics())
        client = Client()
        work.begin()

        await delivery.answer(request_of(interest, NOW - question.span_s), client, requester)
        done = replace(work)  # before the store is closed, which takes a statement

    served = sum(len(decode_envelopes(payload)) for _, payload in client.sent[:-1])
    most_steps, most_statements = MOST[question.name]
    assert done.steps / served < most_steps
    assert done.statements <= most_statements
    assert done.hashes <= 2  # the last envelope's, for the completion
