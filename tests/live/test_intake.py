"""mailserver.live.intake, with a real store and a clock of the test's."""

import asyncio
import contextlib
import sqlite3
from collections.abc import AsyncIterator, Hashable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import pytest

from mailserver.errors import StoreError
from mailserver.limits.packet_rates import RATE_BURST_S, RateLimiter, RateLimitSettings
from mailserver.live.feed import Feed, LiveEnvelope
from mailserver.live.intake import SUBNET_OF_OTHERS, TIMELY_S, EnvelopeRefused, Intake
from mailserver.metrics.registry import Metrics, count_of
from mailserver.store.interface import NewEnvelope, Query
from mailserver.store.sqlite.store import SqliteStore, open_store
from mailserver.waku.acceptance import MAX_AHEAD_S, MAX_EXPIRED_S, Acceptance, Requirements, Verdict
from mailserver.waku.bloom import FULL_INTEREST, Interest
from mailserver.waku.envelope import MAX_U32, Envelope, Topic, encode_envelope
from mailserver.waku.packets import (
    MAX_PACKET_BYTES,
    MAX_RECEIVED_PACKET_BYTES,
    NO_RATE_LIMITS,
    EnvelopeError,
    EnvelopeErrorCode,
    MessageResponse,
    RateLimits,
)
from mailserver.waku.peer import MessagesReceived
from tests.mailservers import NEWS, NO_LIMITS, NOW, SPORT, Clock, in_order, make_envelope, make_envelopes
from tests.store.samples import EVERY_BYTE
from tests.waiting import DEADLINE_S, turns

HASH = bytes(range(32))
EVERYTHING = Query(0, MAX_U32, FULL_INTEREST)


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[SqliteStore]:
    async with open_store(tmp_path / "mailserver.db") as store:
        yield store


async def take(
    intake: Intake, envelopes: Sequence[Envelope], *, peer: int, subnet: bytes = b"", is_limited: bool = True
) -> MessageResponse:
    """Take a packet in, alone."""
    packet = MessagesReceived([*envelopes], HASH)
    (response,) = await intake.take([packet], peer=peer, subnet=subnet, is_limited=is_limited)
    return response


def intake_of(
    store: SqliteStore,
    *,
    min_pow: float = 0.0,
    interest: Interest = FULL_INTEREST,
    clock: Clock | None = None,
    feed: Feed | None = None,
    limits: RateLimitSettings = NO_LIMITS,
    metrics: Metrics | None = None,
) -> Intake:
    acceptance = Acceptance(Requirements(min_pow, interest))
    return Intake(
        store,
        acceptance,
        clock or Clock(),
        feed=feed or Feed(),
        limiter=RateLimiter(limits),
        metrics=metrics or Metrics(),
    )


async def all_in(store: SqliteStore) -> list[bytes]:
    """Everything that is stored, newest first."""
    page = await store.find(EVERYTHING, 100_000)
    return (await page.read(page.left, EVERY_BYTE)).split()


def refused(envelope: Envelope, verdict: Verdict) -> EnvelopeError:
    """What the sender is told."""
    assert verdict.code is not None
    return EnvelopeError(envelope.hash(), verdict.code, verdict.value)


async def test_acceptable_envelopes_are_stored_as_received_and_confirmed(store: SqliteStore) -> None:
    envelopes = make_envelopes(5)

    response = await take(intake_of(store), envelopes, peer=1)

    assert response == MessageResponse(HASH)
    assert await all_in(store) == [envelope.raw for envelope in in_order(envelopes)]


async def test_time_of_reception_is_our_clock_and_of_creation_the_senders_claim(store: SqliteStore) -> None:
    envelope = make_envelope(1, created=NOW - 7)

    await take(intake_of(store), [envelope], peer=1)

    assert (await store.find(Query(NOW - 7, NOW - 7, FULL_INTEREST), 1)).left == 1


@pytest.mark.parametrize("step", [-31_536_000, -86_400, -3600, -5, -1, 1, 5])
async def test_envelope_that_comes_again_after_the_clock_was_stepped_is_stored_once(
    store: SqliteStore, step: int
) -> None:
    clock, ahead = Clock(NOW), 0 if step > 0 else -step
    envelope = make_envelope(1, created=NOW - ahead, ttl=ahead + 50)  # acceptable before and after
    intake = intake_of(store, clock=clock)
    await take(intake, [envelope], peer=1)

    clock.now += step
    newer = [make_envelope(number, created=int(clock.now)) for number in range(2, 5)]  # what is seen ages by these
    response = await take(intake, [*newer, envelope], peer=2)

    assert response == MessageResponse(HASH)
    assert sorted(await all_in(store)) == sorted(one.raw for one in [envelope, *newer])


async def test_new_envelopes_of_peers_from_within_five_minutes_are_timely(store: SqliteStore) -> None:
    metrics = Metrics()
    intake = intake_of(store, metrics=metrics)
    timely = [make_envelope(1, created=NOW - TIMELY_S, ttl=1000), make_envelope(2, created=NOW + MAX_AHEAD_S)]
    others = [make_envelope(3, created=NOW - TIMELY_S - 1, ttl=1000), make_envelope(4, created=NOW - 100, ttl=50)]

    await take(intake, [*timely, *others], peer=1)
    await take(intake, timely, peer=2)  # known
    await intake.take_own(make_envelope(5))

    assert count_of(metrics.timely) == 2


async def test_empty_packet_is_confirmed(store: SqliteStore) -> None:
    assert await take(intake_of(store), [], peer=1) == MessageResponse(HASH)


async def test_duplicates_are_confirmed_and_stored_once(store: SqliteStore) -> None:
    intake, envelope = intake_of(store), make_envelope(1)

    first = await take(intake, [envelope, envelope], peer=1)
    second = await take(intake, [envelope], peer=1)

    assert first == second == MessageResponse(HASH)
    assert await all_in(store) == [envelope.raw]


async def test_bad_envelopes_are_reported_in_order_and_the_others_stored(store: SqliteStore) -> None:
    good = [make_envelope(number) for number in range(2)]
    future = make_envelope(10, created=NOW + MAX_AHEAD_S + 1)
    old = make_envelope(11, created=NOW - MAX_EXPIRED_S - 51, ttl=50)
    forged = encode_envelope(NOW, NOW + 1, NEWS, b"data", 0)
    unwanted = make_envelope(12, topic=SPORT)
    huge = make_envelope(13, data_bytes=MAX_PACKET_BYTES)
    intake = intake_of(store, interest=Interest(topics=frozenset({NEWS})))

    response = await take(intake, [future, good[0], old, forged, unwanted, good[1], huge], peer=1)

    assert response == MessageResponse(
        HASH,
        (
            refused(future, Verdict.FROM_THE_FUTURE),
            refused(old, Verdict.VERY_OLD),
            refused(forged, Verdict.FORGED_TIME),
            refused(unwanted, Verdict.UNWANTED_TOPIC),
            refused(huge, Verdict.OVERSIZE),
        ),
    )
    codes = [error.code for error in response.errors]
    time_sync, invalid = EnvelopeErrorCode.TIME_SYNC, EnvelopeErrorCode.INVALID
    assert codes == [time_sync, time_sync, invalid, invalid, invalid]
    assert await all_in(store) == [envelope.raw for envelope in in_order(good)]


async def test_low_proof_of_work_is_reported(store: SqliteStore) -> None:
    envelope = make_envelope(1)

    response = await take(intake_of(store, min_pow=1000.0), [envelope], peer=1)

    assert response.errors == (refused(envelope, Verdict.LOW_POW),)
    assert await all_in(store) == []


@pytest.mark.parametrize("late", [1, MAX_EXPIRED_S])
async def test_late_envelope_is_dropped_without_a_word(store: SqliteStore, late: int) -> None:
    envelope = make_envelope(1, created=NOW - 50 - late, ttl=50)

    response = await take(intake_of(store), [envelope], peer=1)

    assert response == MessageResponse(HASH)
    assert await all_in(store) == []


async def test_long_packet_leaves_others_their_turn(store: SqliteStore) -> None:
    late = make_envelope(1, created=NOW - 60, ttl=50)
    taking = asyncio.create_task(take(intake_of(store), [late] * 4096, peer=1))

    await turns(3)

    assert not taking.done()
    assert await taking == MessageResponse(HASH)


async def test_many_long_packets_are_judged_one_piece_in_each_round_of_the_loop(store: SqliteStore) -> None:
    late = make_envelope(1, created=NOW - 60, ttl=50)
    metrics = Metrics()
    intake = intake_of(store, metrics=metrics)
    taking = [asyncio.create_task(take(intake, [late] * 1024, peer=number)) for number in range(10)]
    await turns(1)
    judged = [count_of(metrics.rejected[Verdict.EXPIRED])]  # the first piece of each
    while not all(task.done() for task in taking):
        await asyncio.sleep(0)
        judged.append(count_of(metrics.rejected[Verdict.EXPIRED]))

    assert max(after - before for before, after in pairwise(judged)) == 256
    assert judged[-1] == 10 * 1024


async def test_every_envelope_of_a_long_packet_is_judged_and_stored(store: SqliteStore) -> None:
    envelopes = [make_envelope(number, data_bytes=10) for number in range(2500)]
    future = make_envelope(1, created=NOW + MAX_AHEAD_S + 1)

    response = await take(intake_of(store), [*envelopes, future], peer=1)

    assert [error.hash for error in response.errors] == [future.hash()]
    assert len(await all_in(store)) == 2500


async def test_nothing_is_confirmed_that_could_not_be_stored(tmp_path: Path) -> None:
    async with open_store(tmp_path / "mailserver.db") as store:
        intake = intake_of(store)

    with pytest.raises(StoreError):
        await take(intake, [make_envelope(1)], peer=1)


async def test_clock_is_read_anew_for_each_packet(store: SqliteStore) -> None:
    clock = Clock()
    intake = intake_of(store, clock=clock)
    envelope = make_envelope(1)

    clock.now = NOW - 60
    early = await take(intake, [envelope], peer=1)
    clock.now = NOW
    in_time = await take(intake, [envelope], peer=1)

    assert [error.code for error in early.errors] == [EnvelopeErrorCode.TIME_SYNC]
    assert in_time.errors == ()


# Once to the feed, once to the disk


@contextlib.contextmanager
def disk_full(folder: Path) -> Iterator[None]:
    """Let every write fail."""
    with contextlib.closing(sqlite3.connect(folder / "mailserver.db", isolation_level=None)) as connection:
        connection.execute("CREATE TRIGGER full BEFORE INSERT ON envelopes BEGIN SELECT raise(ABORT, 'disk full'); END")
        yield
        connection.execute("DROP TRIGGER full")


class PutsCounted:
    """A store, and how often each envelope was put into it."""

    def __init__(self, store: SqliteStore, monkeypatch: pytest.MonkeyPatch) -> None:
        self.puts: list[bytes] = []
        put = store.put

        async def counted(envelopes: Sequence[NewEnvelope], source: Hashable = None, *, is_live: bool = False) -> None:
            self.puts += [envelope.raw for envelope in envelopes]
            await put(envelopes, source, is_live=is_live)

        monkeypatch.setattr(store, "put", counted)


def raws(published: list[LiveEnvelope]) -> list[bytes]:
    return [live.envelope.raw for live in published]


async def test_accepted_envelope_goes_to_the_feed_once_with_the_peers_that_have_it(store: SqliteStore) -> None:
    feed = Feed()
    reader = feed.reader()
    intake, envelopes = intake_of(store, feed=feed), make_envelopes(3)

    await take(intake, envelopes, peer=7)
    await take(intake, [envelopes[1], envelopes[1]], peer=9)
    published = reader.read_nowait()

    assert raws(published) == [envelope.raw for envelope in envelopes]
    assert [live.hash for live in published] == [envelope.hash() for envelope in envelopes]
    assert [live.sighting.peers for live in published] == [(7,), (7, 9), (7,)]
    assert not any(live.is_own or live.is_p2p for live in published)


async def test_what_is_refused_or_late_goes_nowhere(store: SqliteStore) -> None:
    feed = Feed()
    reader = feed.reader()
    late, future = make_envelope(1, created=NOW - 60, ttl=50), make_envelope(2, created=NOW + MAX_AHEAD_S + 1)

    await take(intake_of(store, feed=feed), [late, future], peer=1)

    assert reader.read_nowait() == []


async def test_envelope_from_the_future_counts_the_lower_work_that_its_receivers_count(store: SqliteStore) -> None:
    feed = Feed()
    reader = feed.reader()
    present, ahead = make_envelope(1, created=NOW - 3), make_envelope(2, created=NOW + 4)

    await take(intake_of(store, feed=feed, clock=Clock(NOW + 0.9)), [present, ahead], peer=1)

    assert [live.pow for live in reader.read_nowait()] == [present.pow(), ahead.pow(4)]


async def test_relay_does_not_wait_for_the_disk(store: SqliteStore, tmp_path: Path) -> None:
    feed = Feed()
    reader = feed.reader()
    envelope = make_envelope(1)

    with contextlib.closing(sqlite3.connect(tmp_path / "mailserver.db", isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        taking = asyncio.create_task(take(intake_of(store, feed=feed), [envelope], peer=1))
        published = await asyncio.wait_for(reader.read(), DEADLINE_S)
        stored = taking.done()

    assert raws(published) == [envelope.raw]
    assert not stored
    assert await taking == MessageResponse(HASH)


async def test_duplicate_is_confirmed_and_not_put_again(store: SqliteStore, monkeypatch: pytest.MonkeyPatch) -> None:
    counted, intake = PutsCounted(store, monkeypatch), intake_of(store)
    envelope, another = make_envelope(1), make_envelope(2)

    await take(intake, [envelope], peer=1)
    for peer in (1, 2, 3):
        assert await take(intake, [envelope], peer=peer) == MessageResponse(HASH)
    await take(intake, [envelope, another], peer=2)

    assert counted.puts == [envelope.raw, another.raw]


async def test_duplicate_of_what_waits_for_the_disk_is_confirmed_only_when_that_is_there(
    store: SqliteStore, tmp_path: Path
) -> None:
    intake, envelope = intake_of(store), make_envelope(1)

    with contextlib.closing(sqlite3.connect(tmp_path / "mailserver.db", isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        taking = [asyncio.create_task(take(intake, [envelope], peer=peer)) for peer in (1, 2)]
        await turns(50)
        assert not any(task.done() for task in taking)

    assert await asyncio.gather(*taking) == [MessageResponse(HASH)] * 2
    assert await all_in(store) == [envelope.raw]


async def test_what_could_not_be_stored_is_stored_when_sent_again_but_not_relayed_again(
    store: SqliteStore, tmp_path: Path
) -> None:
    feed = Feed()
    reader = feed.reader()
    intake, envelopes = intake_of(store, feed=feed), make_envelopes(2)

    with disk_full(tmp_path):
        for peer in (1, 2):
            with pytest.raises(StoreError):
                await take(intake, envelopes, peer=peer)
    assert await all_in(store) == []
    response = await take(intake, envelopes, peer=1)

    assert response == MessageResponse(HASH)
    assert await all_in(store) == [envelope.raw for envelope in envelopes]
    assert raws(reader.read_nowait()) == [envelope.raw for envelope in envelopes]


async def test_envelope_in_the_second_of_its_expiry_is_taken_and_known_again(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted, feed = PutsCounted(store, monkeypatch), Feed()
    reader = feed.reader()
    intake = intake_of(store, feed=feed, clock=Clock(NOW + 0.5))
    envelope = make_envelope(1, created=NOW - 50, ttl=50)

    for peer in (1, 2):
        assert await take(intake, [envelope], peer=peer) == MessageResponse(HASH)

    assert counted.puts == raws(reader.read_nowait()) == [envelope.raw]


# Envelopes of our own


async def test_own_envelope_is_stored_and_published_as_such(store: SqliteStore) -> None:
    feed = Feed()
    reader = feed.reader()
    envelope = make_envelope(1)

    await intake_of(store, feed=feed).take_own(envelope)

    assert await all_in(store) == [envelope.raw]
    (live,) = reader.read_nowait()
    assert (live.envelope, live.is_own, live.is_p2p, live.sighting.peers) == (envelope, True, False, ())
    assert live.subnet is None


async def test_own_envelope_that_comes_back_is_known(store: SqliteStore) -> None:
    feed = Feed()
    reader = feed.reader()
    intake, envelope = intake_of(store, feed=feed), make_envelope(1)

    await intake.take_own(envelope)
    await take(intake, [envelope], peer=5)
    await intake.take_own(envelope)

    (live,) = reader.read_nowait()
    assert live.sighting.peers == (5,)


@pytest.mark.parametrize(
    ("envelope", "verdict"),
    [
        (make_envelope(1, created=NOW + MAX_AHEAD_S + 1), Verdict.FROM_THE_FUTURE),
        (make_envelope(1, created=NOW - 60, ttl=50), Verdict.EXPIRED),
        (make_envelope(1, topic=SPORT), Verdict.UNWANTED_TOPIC),
    ],
)
async def test_own_envelope_that_no_node_would_take_is_refused(
    store: SqliteStore, envelope: Envelope, verdict: Verdict
) -> None:
    feed = Feed()
    reader = feed.reader()

    with pytest.raises(EnvelopeRefused) as refusal:
        await intake_of(store, feed=feed, interest=Interest(topics=frozenset({NEWS}))).take_own(envelope)

    assert refusal.value.verdict is verdict
    assert str(refusal.value) == verdict.value
    assert reader.read_nowait() == []


async def test_own_envelope_is_relayed_also_if_it_cannot_be_stored(store: SqliteStore, tmp_path: Path) -> None:
    feed = Feed()
    reader = feed.reader()
    intake, envelope = intake_of(store, feed=feed), make_envelope(1)

    with disk_full(tmp_path), pytest.raises(StoreError):
        await intake.take_own(envelope)

    assert raws(reader.read_nowait()) == [envelope.raw]
    await intake.take_own(envelope)
    assert await all_in(store) == [envelope.raw]
    assert reader.read_nowait() == []


# Limits of topics. Their buckets hold RATE_BURST_S seconds' worth.

TWO_A_SECOND = RateLimitSettings(RateLimits(topic=2), NO_RATE_LIMITS)
BURST = int(2 * RATE_BURST_S)


@dataclass
class Time:
    """Monotonic seconds, which stand still unless they are moved: buckets do not fill by themselves."""

    now: float = 1000.0


@pytest.fixture
def time(monkeypatch: pytest.MonkeyPatch) -> Time:
    """The time that limits go by."""
    time = Time()
    take_topic = RateLimiter.take_topic

    def take_topic_then(limiter: RateLimiter, topic: Topic, size: int, now: float) -> bool:
        assert now == pytest.approx(asyncio.get_running_loop().time(), abs=DEADLINE_S)
        return take_topic(limiter, topic, size, time.now)

    monkeypatch.setattr(RateLimiter, "take_topic", take_topic_then)
    return time


async def test_envelope_over_its_topics_limit_is_refused_and_neither_stored_nor_relayed(
    store: SqliteStore, time: Time
) -> None:
    feed = Feed()
    reader = feed.reader()
    intake = intake_of(store, feed=feed, limits=TWO_A_SECOND)
    news, sport = make_envelopes(BURST + 5), make_envelope(1000, topic=SPORT)

    response = await take(intake, [*news, sport], peer=1)

    assert response.errors == tuple(refused(envelope, Verdict.TOPIC_LIMIT) for envelope in news[BURST:])
    assert {error.code for error in response.errors} == {EnvelopeErrorCode.INVALID}
    taken = [envelope.raw for envelope in [*news[:BURST], sport]]
    assert raws(reader.read_nowait()) == taken
    assert sorted(await all_in(store)) == sorted(taken)


async def test_limit_of_bytes_of_a_topic_is_kept_too(store: SqliteStore, time: Time) -> None:
    size = len(make_envelope(0, data_bytes=MAX_PACKET_BYTES // 2).raw)
    intake = intake_of(store, limits=RateLimitSettings(NO_RATE_LIMITS, RateLimits(topic=1000)))

    envelopes = [make_envelope(number, data_bytes=MAX_PACKET_BYTES // 2) for number in range(5)]
    response = await take(intake, envelopes, peer=1)

    fit = MAX_RECEIVED_PACKET_BYTES // size  # a bucket is never too small for one packet
    assert response.errors == tuple(refused(envelope, Verdict.TOPIC_LIMIT) for envelope in envelopes[fit:])


async def test_envelope_counts_once_however_many_peers_send_it(store: SqliteStore, time: Time) -> None:
    intake = intake_of(store, limits=TWO_A_SECOND)
    envelopes = make_envelopes(BURST)

    responses = [await take(intake, envelopes, peer=peer) for peer in range(5)]
    over = await take(intake, [make_envelope(1000)], peer=1)

    assert responses == [MessageResponse(HASH)] * 5
    assert [error.description for error in over.errors] == [Verdict.TOPIC_LIMIT.value]


async def test_envelope_that_was_refused_is_taken_when_its_topic_has_room_again(store: SqliteStore, time: Time) -> None:
    intake = intake_of(store, limits=TWO_A_SECOND)
    await take(intake, make_envelopes(BURST), peer=1)
    envelope = make_envelope(1000)

    time.now += 0.49
    assert (await take(intake, [envelope], peer=1)).errors == (refused(envelope, Verdict.TOPIC_LIMIT),)
    time.now += 0.02
    assert await take(intake, [envelope], peer=1) == MessageResponse(HASH)

    assert envelope.raw in await all_in(store)


async def test_allowed_peers_and_we_ourselves_use_up_nothing_of_a_topic(store: SqliteStore, time: Time) -> None:
    intake = intake_of(store, limits=TWO_A_SECOND)
    envelopes = make_envelopes(2 * BURST)

    allowed = await take(intake, envelopes, peer=1, is_limited=False)
    await intake.take_own(make_envelope(1000))
    limited = await take(intake, [make_envelope(number) for number in range(2000, 2000 + BURST)], peer=2)

    assert allowed == limited == MessageResponse(HASH)


async def test_refused_for_another_reason_an_envelope_uses_up_nothing_of_its_topic(
    store: SqliteStore, time: Time
) -> None:
    intake = intake_of(store, limits=TWO_A_SECOND)
    future = [make_envelope(number, created=NOW + MAX_AHEAD_S + 1) for number in range(BURST)]

    await take(intake, future, peer=1)

    assert await take(intake, make_envelopes(BURST), peer=1) == MessageResponse(HASH)


# Metrics


async def test_what_becomes_of_envelopes_is_counted(store: SqliteStore) -> None:
    metrics = Metrics()
    intake = intake_of(store, interest=Interest(topics=frozenset({NEWS})), metrics=metrics)
    good, unwanted = make_envelopes(3), make_envelope(12, topic=SPORT)
    future = make_envelope(10, created=NOW + MAX_AHEAD_S + 1)

    await take(intake, [*good, future, unwanted], peer=1)
    await take(intake, good, peer=2)

    assert count_of(metrics.received) == 8
    assert (count_of(metrics.new), count_of(metrics.known), count_of(metrics.stored)) == (3, 3, 3)
    rejected = {verdict: count_of(counter) for verdict, counter in metrics.rejected.items() if count_of(counter)}
    assert rejected == {Verdict.FROM_THE_FUTURE: 1, Verdict.UNWANTED_TOPIC: 1}
    assert metrics.registry.get_sample_value("waku_envelopes_size_bytes_sum") == sum(len(one.raw) for one in good)


async def test_envelopes_over_a_topics_limit_are_counted_as_rejected(store: SqliteStore) -> None:
    metrics = Metrics()
    intake = intake_of(store, limits=RateLimitSettings(RateLimits(topic=1), NO_RATE_LIMITS), metrics=metrics)

    await take(intake, make_envelopes(int(RATE_BURST_S) + 2), peer=1)

    assert count_of(metrics.rejected[Verdict.TOPIC_LIMIT]) == 2


async def test_envelopes_that_are_not_stored_are_counted(store: SqliteStore, tmp_path: Path) -> None:
    metrics = Metrics()
    connection = sqlite3.connect(tmp_path / "mailserver.db")
    connection.execute("DROP TABLE days")
    connection.commit()
    connection.close()

    with pytest.raises(StoreError):
        await take(intake_of(store, metrics=metrics), make_envelopes(3), peer=1)

    assert (count_of(metrics.not_stored), count_of(metrics.stored)) == (3, 0)


async def test_each_envelope_is_counted_once_by_what_became_of_it(store: SqliteStore) -> None:
    metrics = Metrics()
    intake = intake_of(store, metrics=metrics)
    late = make_envelope(1000, created=NOW - MAX_EXPIRED_S - 51)

    many = [make_envelope(number) for number in range(300)]  # more than are judged together

    await take(intake, [*many, late], peer=1)
    await take(intake, [*many, make_envelope(300)], peer=2)
    await intake.take_own(make_envelope(301))

    assert count_of(metrics.received) == 602  # of peers
    assert count_of(metrics.new) == 302
    assert count_of(metrics.known) == 300
    assert count_of(metrics.stored) == 302
    assert {verdict for verdict, counter in metrics.rejected.items() if count_of(counter)} == {Verdict.VERY_OLD}


async def test_what_is_not_stored_is_counted_again_when_it_comes_again(store: SqliteStore, tmp_path: Path) -> None:
    metrics = Metrics()
    intake, envelopes = intake_of(store, metrics=metrics), make_envelopes(3)
    with disk_full(tmp_path), pytest.raises(StoreError):
        await take(intake, envelopes, peer=1)
    await take(intake, envelopes, peer=1)

    assert count_of(metrics.not_stored) == 3
    assert (count_of(metrics.new), count_of(metrics.known), count_of(metrics.stored)) == (3, 3, 3)


async def test_nothing_is_confirmed_that_the_store_may_have_lost_meanwhile(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    generation, put = 0, store.put
    monkeypatch.setattr(SqliteStore, "generation", property(lambda _: generation))
    intake, (known, new) = intake_of(store), make_envelopes(2)
    await take(intake, [known], peer=1)

    async def put_and_lose(envelopes: Sequence[NewEnvelope], source: Hashable = None, *, is_live: bool = False) -> None:
        nonlocal generation
        await put(envelopes, source, is_live=is_live)
        generation += 1

    with monkeypatch.context() as patch:
        patch.setattr(store, "put", put_and_lose)
        with pytest.raises(StoreError, match="send them again"):
            await take(intake, [known, new], peer=2)
    counted = PutsCounted(store, monkeypatch)

    assert await take(intake, [known, new], peer=2) == MessageResponse(HASH)
    assert counted.puts == [known.raw, new.raw]


# Envelopes that other mailservers have put into the store


async def test_envelope_of_others_is_published_once_and_neither_own_nor_stored_again(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted, feed, metrics = PutsCounted(store, monkeypatch), Feed(), Metrics()
    reader = feed.reader()
    intake, envelopes = intake_of(store, feed=feed, metrics=metrics), make_envelopes(3)

    await intake.take_of_others(envelopes, store.generation)
    await intake.take_of_others(envelopes[:2], store.generation)
    response = await take(intake, envelopes, peer=5)

    assert response == MessageResponse(HASH)
    published = reader.read_nowait()
    assert raws(published) == [envelope.raw for envelope in envelopes]
    assert [(live.hash, live.subnet, live.sighting.peers) for live in published] == [
        (envelope.hash(), SUBNET_OF_OTHERS, (5,)) for envelope in envelopes
    ]
    assert not any(live.is_own or live.is_p2p for live in published)
    assert counted.puts == []
    assert (count_of(metrics.of_others), count_of(metrics.new), count_of(metrics.known)) == (3, 0, 3)


async def test_envelope_of_others_that_is_not_acceptable_here_goes_nowhere(store: SqliteStore) -> None:
    feed, metrics = Feed(), Metrics()
    reader = feed.reader()
    intake = intake_of(store, feed=feed, metrics=metrics, interest=Interest(topics=frozenset({NEWS})))
    expired = make_envelope(1, created=NOW - 51, ttl=50)
    in_its_last_second = make_envelope(2, created=NOW - 50, ttl=50)
    future, unwanted = make_envelope(3, created=NOW + MAX_AHEAD_S + 1), make_envelope(4, topic=SPORT)

    await intake.take_of_others([expired, in_its_last_second, future, unwanted], store.generation)

    assert raws(reader.read_nowait()) == [in_its_last_second.raw]
    assert count_of(metrics.of_others) == 1
    assert sum(count_of(counter) for counter in metrics.rejected.values()) == 0  # no peer has sent them


async def test_envelope_of_others_from_the_future_counts_the_lower_work(store: SqliteStore) -> None:
    feed = Feed()
    reader = feed.reader()
    ahead = make_envelope(1, created=NOW + 4)

    await intake_of(store, feed=feed, clock=Clock(NOW + 0.9)).take_of_others([ahead], store.generation)

    assert [live.pow for live in reader.read_nowait()] == [ahead.pow(4)]


async def test_what_could_not_be_stored_here_and_others_have_stored_is_confirmed(
    store: SqliteStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    feed = Feed()
    reader = feed.reader()
    intake, envelope = intake_of(store, feed=feed), make_envelope(1)
    with disk_full(tmp_path), pytest.raises(StoreError):
        await take(intake, [envelope], peer=1)
    counted = PutsCounted(store, monkeypatch)

    await intake.take_of_others([envelope], store.generation)
    response = await take(intake, [envelope], peer=1)

    assert response == MessageResponse(HASH)
    assert counted.puts == []
    assert raws(reader.read_nowait()) == [envelope.raw]


async def test_limits_of_topics_are_for_what_peers_send_and_not_for_others(store: SqliteStore) -> None:
    feed = Feed()
    reader = feed.reader()
    limits = RateLimitSettings(RateLimits(0, 0, 1), NO_RATE_LIMITS)
    envelopes = make_envelopes(20)

    await intake_of(store, feed=feed, limits=limits).take_of_others(envelopes, store.generation)

    assert len(reader.read_nowait()) == 20


async def test_flood_of_others_is_taken_in_pieces(store: SqliteStore) -> None:
    feed = Feed()
    intake, envelopes = intake_of(store, feed=feed), [make_envelope(number) for number in range(1024)]
    taking = [asyncio.create_task(intake.take_of_others(envelopes[at : at + 512], store.generation)) for at in (0, 512)]

    published = [feed.end]
    while not all(task.done() for task in taking):
        await asyncio.sleep(0)
        published.append(feed.end)

    assert max(after - before for before, after in pairwise(published)) == 256
    assert published[-1] == 1024
