"""mailserver.live.others, and what becomes of it in the relay, with another mailserver in memory."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from mailserver.limits.packet_rates import RateLimiter
from mailserver.live.feed import Feed, LiveEnvelope
from mailserver.live.intake import SUBNET_OF_OTHERS, Intake
from mailserver.live.others import OthersIntake
from mailserver.live.pool import Pool, memory_of
from mailserver.metrics.figures import DatabaseFigures
from mailserver.metrics.registry import Metrics, count_of
from mailserver.store.sqlite.store import SqliteStore, open_store
from mailserver.waku.acceptance import Acceptance, Requirements
from tests.mailservers import NO_LIMITS, NOW, Clock, make_envelope, make_envelopes
from tests.waiting import DEADLINE_S, until


class Another:
    """Another mailserver: what it has put is read as it is given here."""

    def __init__(self) -> None:
        self.put: asyncio.Queue[list[bytes]] = asyncio.Queue()
        self.missed = self.outages = 0
        self.is_listened_to = False
        self.ended = False

    async def begin(self) -> None:
        self.is_listened_to = True

    async def run(self) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            self.ended = True

    async def figures(self) -> DatabaseFigures:
        return DatabaseFigures(0, 0, 0, 0.0, 0, others_waiting=self.put.qsize())

    async def read(self) -> list[bytes]:
        return await self.put.get()


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[SqliteStore]:
    async with open_store(tmp_path / "mailserver.db") as store:
        yield store


@contextlib.asynccontextmanager
async def hearing(store: SqliteStore, another: Another, feed: Feed, metrics: Metrics) -> AsyncIterator[None]:
    """Take in what another puts."""
    acceptance, limiter = Acceptance(Requirements(0.0)), RateLimiter(NO_LIMITS)
    intake = Intake(store, acceptance, Clock(), feed=feed, limiter=limiter, metrics=metrics)
    others = OthersIntake(another, intake, feed.left_out, metrics)
    await others.begin()
    running = asyncio.create_task(others.run())
    yield
    running.cancel()
    await asyncio.wait([running])
    assert running.cancelled()


async def test_what_another_puts_is_published(store: SqliteStore) -> None:
    another, feed, metrics = Another(), Feed(), Metrics()
    reader, envelopes = feed.reader(), make_envelopes(5)

    async with hearing(store, another, feed, metrics):
        another.put.put_nowait([envelope.raw for envelope in envelopes[:3]])
        another.put.put_nowait([envelope.raw for envelope in envelopes[3:]])
        await until(lambda: feed.end == 5)

    assert another.is_listened_to
    assert another.ended
    assert [live.envelope for live in reader.read_nowait()] == envelopes
    assert count_of(metrics.of_others) == 5


async def test_damaged_row_is_left_out(store: SqliteStore) -> None:
    another, feed = Another(), Feed()
    reader, envelope = feed.reader(), make_envelope(1)

    async with hearing(store, another, feed, Metrics()):
        another.put.put_nowait([b"", b"\xff" * 40, envelope.raw[:-1], envelope.raw])
        await until(lambda: feed.end == 1)

    assert [live.envelope for live in reader.read_nowait()] == [envelope]


async def test_what_was_missed_is_counted_and_logged_once(store: SqliteStore, caplog: pytest.LogCaptureFixture) -> None:
    another, feed, metrics = Another(), Feed(), Metrics()

    async with hearing(store, another, feed, metrics):
        for number, missed in enumerate((0, 7, 7, 9)):
            another.missed = missed
            another.put.put_nowait([make_envelope(number).raw])
            await until(lambda: feed.end == number + 1)  # noqa: B023 - it is over before the next round

    assert count_of(metrics.others_missed) == 9
    assert (feed.left_out.times, feed.left_out.envelopes) == (2, 9)
    assert caplog.messages == [
        "live envelopes of other mailservers missed count=7",
        "live envelopes of other mailservers missed count=2",
    ]


async def test_outage_is_told_though_nobody_knows_what_was_missed(
    store: SqliteStore, caplog: pytest.LogCaptureFixture
) -> None:
    another, feed, metrics = Another(), Feed(), Metrics()

    async with hearing(store, another, feed, metrics):
        another.outages = 1
        another.put.put_nowait([])
        await asyncio.wait_for(feed.left_out.wait(0), DEADLINE_S)

    assert (feed.left_out.times, feed.left_out.envelopes) == (1, 0)
    assert count_of(metrics.others_missed) == 0
    assert caplog.messages == []  # the store says for how long


def test_flood_of_others_displaces_nothing_that_peers_have_sent() -> None:
    ours = [make_envelope(number) for number in range(5)]
    flood = [make_envelope(number) for number in range(100, 200)]
    lives = [LiveEnvelope(envelope, envelope.hash(), subnet=b"\x0a\x01\x02") for envelope in ours]
    pool = Pool(max_bytes=20 * memory_of(lives[0]))

    pool.add(lives, NOW)
    for envelope in flood:
        pool.add([LiveEnvelope(envelope, envelope.hash(), subnet=SUBNET_OF_OTHERS)], NOW)

    first = pool.first(0)
    assert first is not None
    assert [live.envelope for live in first.envelopes] == ours
    assert len(pool) < 20
