"""mailserver.api.filters: each rule of a filter, what it sees, its queue and its end, and whom it leaves time."""

import asyncio
import contextlib
import itertools
import logging
import random
from collections.abc import AsyncIterator, Callable

import pytest

from mailserver.api import filters as module
from mailserver.api.filters import (
    FILTER_IDLE_S,
    MAX_EXPIRED_TOGETHER,
    MAX_FILTER_TOPICS,
    MAX_FILTERS,
    MESSAGE_OVERHEAD_BYTES,
    SENT_TOGETHER_BYTES,
    WARNING_INTERVAL_S,
    WORK_S,
    Criteria,
    Filter,
    FilterLimits,
    FilterNotFound,
    Filters,
    Message,
    TooManyFilters,
)
from mailserver.codec.keys import PrivateKey
from mailserver.live.feed import Feed, LiveEnvelope
from mailserver.waku.envelope import Envelope, EnvelopeHash, Topic, encode_envelope
from mailserver.waku.payload import Opened, open_symmetric, seal_asymmetric, seal_symmetric
from tests.pairs import digest, private_key
from tests.waiting import DEADLINE_S, turns, until

KEY, OTHER_KEY = digest("symmetric key"), digest("other symmetric key")
ALICE, BOB, CAROL = private_key("alice"), private_key("bob"), private_key("carol")
NEWS, SPORT = Topic(b"news"), Topic(b"nest")
CREATED, TTL = 1_792_324_800, 60
PADDING = bytes(range(255))

LONG_STEP = 2 * WORK_S
"""Of the clock: there is a pause after each piece of work."""

SHORT_STEP = 0.6 * WORK_S
"""Of the clock: there is a pause after every second piece of work."""

ANY_NEWS = Criteria(symmetric_key=KEY, topics=(NEWS,))
ANY_FOR_BOB = Criteria(private_key=BOB)

nonces = itertools.count()


class Clock:
    """Says what it is told to, and `step` seconds more at each call."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.step = 0.0

    def __call__(self) -> float:
        self.now += self.step
        return self.now


def sealed(
    payload: bytes = b"hello",
    *,
    key: bytes = KEY,
    topic: Topic = NEWS,
    signing_key: PrivateKey | None = None,
    nonce: int | None = None,
) -> Envelope:
    """An envelope with a symmetric key, unlike any other unless its nonce is given."""
    data = seal_symmetric(payload, key, nonce=bytes(12), padding=PADDING, signing_key=signing_key)
    return encode_envelope(CREATED + TTL, TTL, topic, data, next(nonces) if nonce is None else nonce)


def sealed_to(
    recipient: PrivateKey, payload: bytes = b"hello", *, topic: Topic = NEWS, signing_key: PrivateKey | None = None
) -> Envelope:
    """An envelope to a public key."""
    data = seal_asymmetric(
        payload,
        recipient.public_key,
        ephemeral_key=private_key("ephemeral"),
        iv=bytes(16),
        padding=PADDING,
        signing_key=signing_key,
    )
    return encode_envelope(CREATED + TTL, TTL, topic, data, next(nonces))


def live(envelope: Envelope, *, ahead: int = 0, is_p2p: bool = False) -> LiveEnvelope:
    return LiveEnvelope(envelope, envelope.hash(), ahead=ahead, is_p2p=is_p2p)


class World:
    """Filters at work on a feed. Its clock stands, so that all that is published is looked at in one go."""

    def __init__(self, feed: Feed | None = None, limits: FilterLimits | None = None) -> None:
        self.feed = feed or Feed()
        self.clock = Clock()
        self.filters = Filters(self.feed, limits=limits, clock=self.clock)

    def publish(self, *envelopes: Envelope) -> None:
        for envelope in envelopes:
            self.feed.publish(live(envelope))

    async def offer(self, *envelopes: Envelope) -> None:
        """Publish envelopes, and wait until the filters have had them."""
        self.publish(*envelopes)
        await turns()

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator["World"]:
        task = asyncio.create_task(self.filters.run())
        try:
            yield self
            assert not task.done()
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task


@contextlib.asynccontextmanager
async def running_world(*, feed: Feed | None = None, limits: FilterLimits | None = None) -> AsyncIterator[World]:
    async with World(feed, limits).running() as world:
        yield world


def payloads(messages: list[Message]) -> list[bytes]:
    return [message.opened.payload for message in messages]


def taken(one: Filter) -> list[bytes]:
    return payloads(one.take())


async def next_of(one: Filter) -> list[bytes]:
    async with asyncio.timeout(DEADLINE_S):
        return payloads(await one.next())


# Criteria


@pytest.mark.parametrize(
    ("criteria", "fault"),
    [
        pytest.param(lambda: Criteria(topics=(NEWS,)), "either", id="no key"),
        pytest.param(lambda: Criteria(KEY, BOB, topics=(NEWS,)), "either", id="both keys"),
        pytest.param(lambda: Criteria(KEY[1:], topics=(NEWS,)), "32 bytes, not 31", id="symmetric key of 31 bytes"),
        pytest.param(lambda: Criteria(b"", topics=(NEWS,)), "32 bytes, not 0", id="symmetric key of no bytes"),
        pytest.param(lambda: Criteria(KEY), "names its topics", id="symmetric key without topics"),
        pytest.param(lambda: Criteria(KEY, topics=(NEWS, b"")), "1 to 4 bytes", id="topic of no bytes"),
        pytest.param(lambda: Criteria(KEY, topics=(b"newsy",)), "1 to 4 bytes", id="topic of 5 bytes"),
        pytest.param(lambda: Criteria(None, BOB, topics=(NEWS,) * 1001), "at most 1000", id="1,001 topics"),
        pytest.param(lambda: Criteria(None, BOB, min_pow=float("nan")), "finite", id="proof of work that is no number"),
        pytest.param(lambda: Criteria(None, BOB, min_pow=float("inf")), "finite", id="infinite proof of work"),
    ],
)
def test_criteria_against_the_rules_are_a_mistake_of_the_caller(criteria: Callable[[], Criteria], fault: str) -> None:
    with pytest.raises(ValueError, match=fault):
        criteria()


def test_filter_may_have_a_thousand_topics() -> None:
    assert len(Criteria(KEY, topics=(NEWS,) * MAX_FILTER_TOPICS).topics) == 1000


def test_keys_do_not_show() -> None:
    shown = repr(ANY_NEWS) + repr(ANY_FOR_BOB) + repr(World().filters.install(ANY_NEWS))

    for secret in (KEY, BOB.secret):
        assert repr(secret)[2:-1] not in shown
        assert secret.hex() not in shown


# Opening


async def test_message_is_what_was_sealed_with_a_symmetric_key() -> None:
    envelope = sealed(b"hello", signing_key=ALICE)
    async with running_world() as world:
        news = world.filters.install(ANY_NEWS)

        await world.offer(envelope)

    padding = PADDING[: 512 - 256 - 1 - 1 - 5 - 65]
    opened = Opened(b"hello", ALICE.public_key, padding)
    assert news.take() == [Message(envelope, envelope.hash(), opened, None, envelope.pow(), is_p2p=False)]


async def test_message_is_what_was_sealed_to_a_public_key() -> None:
    envelope = sealed_to(BOB, b"hello")
    async with running_world() as world:
        for_bob = world.filters.install(ANY_FOR_BOB)

        await world.offer(envelope)

    opened = Opened(b"hello", None, PADDING[: 256 - 1 - 1 - 5])
    assert for_bob.take() == [Message(envelope, envelope.hash(), opened, BOB.public_key, envelope.pow(), is_p2p=False)]


async def test_filter_takes_only_what_its_key_opens() -> None:
    async with running_world() as world:
        news = world.filters.install(ANY_NEWS)
        for_bob = world.filters.install(Criteria(private_key=BOB, topics=(NEWS,)))
        other = world.filters.install(Criteria(symmetric_key=OTHER_KEY, topics=(NEWS,)))

        await world.offer(
            sealed(b"with the key"),
            sealed(b"with the other key", key=OTHER_KEY),
            sealed_to(BOB, b"to Bob"),
            sealed_to(CAROL, b"to Carol"),
        )

    assert taken(news) == [b"with the key"]
    assert taken(other) == [b"with the other key"]
    assert taken(for_bob) == [b"to Bob"]


async def test_what_does_not_open_is_passed_over_in_silence(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    noise = random.Random(1)
    async with running_world() as world:
        news = world.filters.install(ANY_NEWS)
        for_bob = world.filters.install(ANY_FOR_BOB)
        whole = [sealed(), sealed_to(BOB)]
        damaged = [envelope.data[:-1] + bytes([envelope.data[-1] ^ 1]) for envelope in whole]
        # The form of ECIES, and no point of the curve: whoever looks at the form alone tries to open it.
        shaped = [b"\x04" + noise.randbytes(length) for length in (112, 113, 400)]

        await world.offer(
            *(
                encode_envelope(CREATED + TTL, TTL, NEWS, data, next(nonces))
                for data in (b"", b"\x04", bytes(11), bytes(28), noise.randbytes(300), *shaped, *damaged)
            ),
            sealed(b"after"),
            sealed_to(BOB, b"after"),
        )

    assert taken(news) == taken(for_bob) == [b"after"]
    assert world.filters.missed == 0
    assert caplog.messages == []


async def test_envelope_is_opened_once_for_all_filters_with_the_same_key(monkeypatch: pytest.MonkeyPatch) -> None:
    opened_with: list[bytes] = []

    def watched(data: bytes, key: bytes) -> Opened:
        opened_with.append(key)
        return open_symmetric(data, key)

    monkeypatch.setattr(module, "open_symmetric", watched)
    async with running_world() as world:
        same = [world.filters.install(ANY_NEWS) for _ in range(10)]
        others = [world.filters.install(Criteria(symmetric_key=OTHER_KEY, topics=(NEWS,))) for _ in range(10)]

        await world.offer(sealed())

    assert [taken(one) for one in same] == [[b"hello"]] * 10
    assert [taken(one) for one in others] == [[]] * 10
    assert sorted(opened_with) == sorted([KEY, OTHER_KEY])  # also that it does not open is found out once


async def test_nothing_is_opened_for_filters_that_do_not_match(monkeypatch: pytest.MonkeyPatch) -> None:
    opened = 0

    def watched(data: bytes, key: bytes) -> Opened:
        nonlocal opened
        opened += 1
        return open_symmetric(data, key)

    monkeypatch.setattr(module, "open_symmetric", watched)
    async with running_world() as world:
        world.filters.install(Criteria(symmetric_key=KEY, topics=(SPORT,)))
        world.filters.install(Criteria(symmetric_key=KEY, topics=(NEWS,), min_pow=1e9))
        world.filters.uninstall(world.filters.install(ANY_NEWS).id)

        await world.offer(sealed())
        world.feed.publish(live(sealed(topic=SPORT), is_p2p=True))
        await turns()
        assert opened == 0

        await world.offer(sealed(topic=SPORT))
        assert opened == 1


async def test_proof_of_work_is_not_hashed_for_filters_that_ask_for_none(monkeypatch: pytest.MonkeyPatch) -> None:
    hashed: list[Envelope] = []
    proof_of_work = Envelope.pow

    def watched(envelope: Envelope, ahead: int = 0) -> float:
        hashed.append(envelope)
        return proof_of_work(envelope, ahead)

    monkeypatch.setattr(Envelope, "pow", watched)
    async with running_world() as world:
        world.filters.install(Criteria(symmetric_key=OTHER_KEY, topics=(NEWS,)))
        world.filters.install(Criteria(symmetric_key=OTHER_KEY, topics=(NEWS,), min_pow=-1.0))

        await world.offer(sealed())
        assert hashed == []

        world.filters.install(Criteria(symmetric_key=OTHER_KEY, topics=(NEWS,), min_pow=1e-9))
        await world.offer(sealed())
        assert len(hashed) == 1


# Rules


@pytest.mark.parametrize(
    ("topics", "expected"),
    [
        pytest.param((NEWS,), [b"news"], id="whole"),
        pytest.param((NEWS, Topic(b"else")), [b"news"], id="several"),
        pytest.param((Topic(b"else"),), [], id="another"),
        pytest.param((b"new",), [b"news"], id="3 bytes"),
        pytest.param((b"ne",), [b"news", b"nest"], id="2 bytes"),
        pytest.param((b"n",), [b"news", b"nest", b"noon"], id="1 byte"),
        pytest.param((b"ews",), [], id="not at the beginning"),
        pytest.param((b"ne", b"n", NEWS, NEWS), [b"news", b"nest", b"noon"], id="each once"),
        pytest.param((b"\x00",), [b"\x00\x00\x00\x00"], id="zeros"),
    ],
)
@pytest.mark.parametrize("private", [False, True], ids=["symmetric", "private"])
async def test_filter_takes_its_topics_and_those_that_begin_like_a_partial_one(
    topics: tuple[bytes, ...], expected: list[bytes], *, private: bool
) -> None:
    async with running_world() as world:
        one = world.filters.install(
            Criteria(private_key=BOB, topics=topics) if private else Criteria(symmetric_key=KEY, topics=topics)
        )

        for topic in (NEWS, SPORT, Topic(b"noon"), Topic(bytes(4)), Topic(b"else")[::-1]):
            await world.offer(
                sealed_to(BOB, topic, topic=Topic(topic)) if private else sealed(topic, topic=Topic(topic))
            )

    assert taken(one) == expected


async def test_filter_with_a_private_key_and_no_topics_takes_any() -> None:
    async with running_world() as world:
        for_bob = world.filters.install(ANY_FOR_BOB)

        await world.offer(*(sealed_to(BOB, topic, topic=Topic(topic)) for topic in (NEWS, SPORT, bytes(4))))

    assert taken(for_bob) == [NEWS, SPORT, bytes(4)]


async def test_filter_with_a_signer_takes_only_what_that_key_has_signed() -> None:
    async with running_world() as world:
        by_alice = world.filters.install(Criteria(symmetric_key=KEY, topics=(NEWS,), signer=ALICE.public_key))
        by_alice_to_bob = world.filters.install(Criteria(private_key=BOB, signer=ALICE.public_key))
        by_any = world.filters.install(ANY_NEWS)

        for signing_key in (ALICE, CAROL, None):
            name = b"nobody" if signing_key is None else signing_key.public_key
            await world.offer(
                sealed(name, signing_key=signing_key), sealed_to(BOB, b"to Bob " + name, signing_key=signing_key)
            )

    assert taken(by_alice) == [ALICE.public_key]
    assert taken(by_alice_to_bob) == [b"to Bob " + ALICE.public_key]
    assert taken(by_any) == [ALICE.public_key, CAROL.public_key, b"nobody"]


@pytest.mark.parametrize(
    ("factor", "takes"), [(-1.0, True), (0.0, True), (0.99, True), (1.0, True), (1.01, False), (1e6, False)]
)
async def test_filter_takes_what_has_its_proof_of_work_or_more(factor: float, *, takes: bool) -> None:
    envelope = sealed()
    async with running_world() as world:
        one = world.filters.install(Criteria(symmetric_key=KEY, topics=(NEWS,), min_pow=factor * live(envelope).pow))

        await world.offer(envelope)

    assert bool(one.take()) is takes


async def test_proof_of_work_is_that_of_the_feed() -> None:
    envelope = sealed()
    from_the_future = live(envelope, ahead=10)
    assert from_the_future.pow < envelope.pow()
    async with running_world() as world:
        one = world.filters.install(Criteria(symmetric_key=KEY, topics=(NEWS,), min_pow=envelope.pow()))
        other = world.filters.install(Criteria(symmetric_key=KEY, topics=(NEWS,), min_pow=from_the_future.pow))

        world.feed.publish(from_the_future)
        await turns()

    assert one.take() == []
    assert [message.pow for message in other.take()] == [from_the_future.pow]


async def test_what_came_outside_gossip_is_for_filters_that_allow_it() -> None:
    async with running_world() as world:
        gossip = world.filters.install(ANY_NEWS)
        both = world.filters.install(Criteria(symmetric_key=KEY, topics=(NEWS,), allow_p2p=True))

        world.feed.publish(live(sealed(b"history"), is_p2p=True))
        await world.offer(sealed(b"gossip"))

    assert taken(gossip) == [b"gossip"]
    assert [(message.opened.payload, message.is_p2p) for message in both.take()] == [
        (b"history", True),
        (b"gossip", False),
    ]


# Installation


async def test_filter_sees_what_is_published_after_its_installation() -> None:
    world = World()
    early = world.filters.install(ANY_NEWS)
    world.publish(sealed(b"before"))
    late = world.filters.install(ANY_NEWS)
    world.publish(sealed(b"after"))

    async with world.running():
        await turns()

    assert taken(early) == [b"before", b"after"]
    assert taken(late) == [b"after"]


async def test_filter_installed_while_the_feed_is_worked_off_does_not_see_what_was_there() -> None:
    async with running_world() as world:
        early = world.filters.install(ANY_NEWS)
        world.clock.step = LONG_STEP
        world.publish(*(sealed(b"%d" % number) for number in range(4)))
        await until(lambda: early.queued_bytes > 0)

        late = world.filters.install(ANY_NEWS)
        world.publish(sealed(b"after"))
        world.clock.step = 0.0
        await until(lambda: late.queued_bytes > 0)

    assert taken(early) == [b"0", b"1", b"2", b"3", b"after"]
    assert taken(late) == [b"after"]


async def test_what_was_published_before_a_feed_is_read_is_not_seen() -> None:
    feed = Feed()
    feed.publish(live(sealed(b"before")))
    async with running_world(feed=feed) as world:
        news = world.filters.install(ANY_NEWS)

        await world.offer(sealed(b"after"))

    assert taken(news) == [b"after"]


def test_ids_are_64_hex_digits_and_differ() -> None:
    filters = World().filters

    ids = {filters.install(ANY_NEWS).id for _ in range(100)}

    assert len(ids) == 100
    assert all(len(one) == 64 and set(one) <= set("0123456789abcdef") for one in ids)


def test_filter_is_found_by_its_id() -> None:
    filters = World().filters
    one = filters.install(ANY_NEWS)
    filters.install(ANY_NEWS)

    assert filters.get(one.id) is one


@pytest.mark.parametrize("filter_id", ["", 64 * "0", "\ud800"])
def test_unknown_id_is_said_not_to_be_found(filter_id: str) -> None:
    filters = World().filters
    filters.install(ANY_NEWS)

    with pytest.raises(FilterNotFound, match="no filter has this id"):
        filters.get(filter_id)
    assert not filters.uninstall(filter_id)


async def test_uninstalled_filter_is_gone_with_its_messages() -> None:
    async with running_world() as world:
        one, other = world.filters.install(ANY_NEWS), world.filters.install(ANY_NEWS)
        await world.offer(sealed())

        assert world.filters.uninstall(one.id)

        await world.offer(sealed())
        assert not world.filters.uninstall(one.id)
        with pytest.raises(FilterNotFound):
            world.filters.get(one.id)
        assert one.take() == []
        assert len(world.filters) == 1
        assert len(other.take()) == 2
        assert world.filters.queued_bytes == 0


async def test_filter_uninstalled_while_an_envelope_is_offered_gets_nothing_any_more() -> None:
    async with running_world() as world:
        ahead, behind = world.filters.install(ANY_NEWS), world.filters.install(ANY_NEWS)
        world.clock.step = LONG_STEP
        world.publish(sealed(b"first"), sealed(b"last"))
        await until(lambda: ahead.queued_bytes > 0)
        assert behind.queued_bytes == 0

        world.filters.uninstall(behind.id)
        first = ahead.queued_bytes
        await until(lambda: ahead.queued_bytes > first)
        await turns()

    assert behind.take() == []
    assert world.filters.queued_bytes == ahead.queued_bytes
    assert taken(ahead) == [b"first", b"last"]


def test_filters_are_bounded() -> None:
    filters = World(limits=FilterLimits(filters=2)).filters
    polled = filters.install(ANY_NEWS)
    subscription = filters.install(ANY_NEWS, expires=False)

    with pytest.raises(TooManyFilters, match="no room for another filter, limit 2"):
        filters.install(ANY_NEWS)
    assert len(filters) == 2

    for one in (polled, subscription):
        filters.uninstall(one.id)
        filters.install(ANY_NEWS)
        with pytest.raises(TooManyFilters):
            filters.install(ANY_NEWS)


def test_a_thousand_filters_may_be_installed_by_default() -> None:
    filters = World().filters

    for _ in range(MAX_FILTERS):
        filters.install(ANY_NEWS)

    assert len(filters) == 1000
    with pytest.raises(TooManyFilters):
        filters.install(ANY_NEWS)


# Polling


async def test_messages_are_taken_once_oldest_first() -> None:
    async with running_world() as world:
        news = world.filters.install(ANY_NEWS)

        await world.offer(*(sealed(b"%d" % number) for number in range(5)))

        assert taken(news) == [b"0", b"1", b"2", b"3", b"4"]
        assert taken(news) == []
        await world.offer(sealed(b"5"))
        assert taken(news) == [b"5"]


async def test_message_that_waits_already_is_not_queued_again() -> None:
    envelope = sealed()
    async with running_world() as world:
        news = world.filters.install(Criteria(symmetric_key=KEY, topics=(NEWS,), allow_p2p=True))

        await world.offer(envelope)
        size = news.queued_bytes
        world.feed.publish(live(envelope, is_p2p=True))
        await turns()

        assert news.queued_bytes == world.filters.queued_bytes == size
        assert taken(news) == [b"hello"]
        await world.offer(envelope)  # asked for again
        assert taken(news) == [b"hello"]


async def test_beyond_so_many_messages_the_oldest_falls_out() -> None:
    async with running_world(limits=FilterLimits(messages=3)) as world:
        news = world.filters.install(ANY_NEWS)
        other = world.filters.install(Criteria(symmetric_key=KEY, topics=(SPORT,)))

        await world.offer(*(sealed(b"%d" % number) for number in range(5)), sealed(b"sport", topic=SPORT))

    assert taken(news) == [b"2", b"3", b"4"]
    assert taken(other) == [b"sport"]


async def test_beyond_so_many_bytes_the_oldest_falls_out() -> None:
    size = size_of(sealed(bytes(1000)))
    async with running_world(limits=FilterLimits(bytes=2 * size + 100)) as world:
        news = world.filters.install(ANY_NEWS)

        await world.offer(*(sealed(bytes([number]) * 1000) for number in range(4)))
        assert size < news.queued_bytes <= 2 * size + 100
        assert taken(news) == [bytes([number]) * 1000 for number in (2, 3)]
        await world.offer(sealed(bytes(1000)))
        await world.offer(sealed(bytes(5000)))  # longer than all that may wait

    assert news.queued_bytes == 0
    assert taken(news) == []


async def test_message_is_counted_with_what_it_holds() -> None:
    envelope = sealed(bytes(1000))
    async with running_world() as world:
        news = world.filters.install(ANY_NEWS)

        await world.offer(envelope)

        counted = news.queued_bytes
        (message,) = news.take()
    assert counted == message.size
    assert counted == len(envelope.raw) + 1024 - 1 - 2 + MESSAGE_OVERHEAD_BYTES  # of the plaintext: flags, length


async def test_beyond_so_many_bytes_of_all_filters_the_fullest_pays() -> None:
    size = size_of(sealed(bytes(1000)))
    async with running_world(limits=FilterLimits(all_bytes=5 * size + 100)) as world:
        full = world.filters.install(ANY_NEWS)
        few = world.filters.install(Criteria(symmetric_key=KEY, topics=(SPORT,)))

        await world.offer(*(sealed(bytes([number]) * 1000) for number in range(5)))
        await world.offer(*(sealed(bytes([number]) * 1000, topic=SPORT) for number in range(2)))

        assert world.filters.queued_bytes <= 5 * size + 100
        assert len(full.take()) == 3
        assert len(few.take()) == 2
        assert world.filters.queued_bytes == 0


async def test_bytes_are_given_back_however_messages_leave() -> None:
    async with running_world() as world:
        one, two, three = (world.filters.install(ANY_NEWS, expires=False) for _ in range(3))
        await world.offer(*(sealed() for _ in range(3)))
        assert world.filters.queued_bytes == 3 * one.queued_bytes > 0

        one.take()
        await two.next()
        world.filters.uninstall(three.id)

        assert world.filters.queued_bytes == one.queued_bytes == two.queued_bytes == three.queued_bytes == 0


# Idle filters


def test_filter_that_nobody_polls_is_removed() -> None:
    world = World()
    one = world.filters.install(ANY_NEWS)

    world.clock.now += FILTER_IDLE_S - 0.1
    assert world.filters.get(one.id) is one
    world.clock.now += FILTER_IDLE_S - 0.1
    assert world.filters.get(one.id) is one
    world.clock.now += FILTER_IDLE_S

    with pytest.raises(FilterNotFound):
        world.filters.get(one.id)
    assert len(world.filters) == 0


def test_only_filters_that_nobody_polls_are_removed() -> None:
    world = World()
    polled, idle = world.filters.install(ANY_NEWS), world.filters.install(ANY_NEWS)
    world.clock.now += FILTER_IDLE_S / 2
    late = world.filters.install(ANY_NEWS)
    world.filters.get(polled.id)
    world.clock.now += FILTER_IDLE_S / 2

    with pytest.raises(FilterNotFound):
        world.filters.get(idle.id)
    assert world.filters.get(polled.id) is polled
    assert world.filters.get(late.id) is late


def test_idle_filter_makes_room_for_a_new_one() -> None:
    world = World(limits=FilterLimits(filters=1))
    world.filters.install(ANY_NEWS)
    world.clock.now += FILTER_IDLE_S

    new = world.filters.install(ANY_NEWS)

    assert world.filters.get(new.id) is new
    assert len(world.filters) == 1


def test_idle_filters_are_removed_a_few_at_a_time() -> None:
    world = World()
    for _ in range(2 * MAX_EXPIRED_TOGETHER):
        world.filters.install(ANY_NEWS)
    world.clock.now += FILTER_IDLE_S

    new = [world.filters.install(ANY_NEWS) for _ in range(3)]

    assert len(world.filters) == len(new)
    assert [world.filters.get(one.id) for one in new] == new


def test_removing_idle_filters_never_takes_long() -> None:
    world = World()
    for _ in range(2 * MAX_EXPIRED_TOGETHER):
        world.filters.install(ANY_NEWS)
    world.clock.now += FILTER_IDLE_S

    world.filters.install(ANY_NEWS)

    assert len(world.filters) == MAX_EXPIRED_TOGETHER + 1


async def test_idle_filter_takes_nothing_any_more_and_leaves_its_bytes() -> None:
    async with running_world() as world:
        idle = world.filters.install(ANY_NEWS)
        await world.offer(sealed())
        assert world.filters.queued_bytes > 0

        world.clock.now += FILTER_IDLE_S
        await world.offer(sealed())

        assert len(world.filters) == 0
        assert world.filters.queued_bytes == 0
        assert idle.take() == []


async def test_subscription_stays_and_is_no_filter_to_poll() -> None:
    async with running_world() as world:
        subscription = world.filters.install(ANY_NEWS, expires=False)

        world.clock.now += 100 * FILTER_IDLE_S
        await world.offer(sealed())

        assert await next_of(subscription) == [b"hello"]
        with pytest.raises(FilterNotFound):
            world.filters.get(subscription.id)
        assert world.filters.uninstall(subscription.id)


# Subscriptions


async def test_next_waits_for_a_message() -> None:
    async with running_world() as world:
        news = world.filters.install(ANY_NEWS, expires=False)
        waiting = asyncio.create_task(next_of(news))
        await turns()
        assert not waiting.done()

        await world.offer(sealed(b"one"))

        assert await waiting == [b"one"]
        await world.offer(sealed(b"two"), sealed(b"three"))
        assert await next_of(news) == [b"two", b"three"]


async def test_next_brings_so_many_bytes_together_and_the_rest_thereafter() -> None:
    count = 2 * SENT_TOGETHER_BYTES // size_of(sealed(bytes(1000)))
    async with running_world() as world:
        news = world.filters.install(ANY_NEWS, expires=False)
        await world.offer(*(sealed(bytes([number]) * 1000) for number in range(count)))

        async with asyncio.timeout(DEADLINE_S):
            brought = [await news.next() for _ in range(2)]

        sizes = [sum(message.size for message in messages) for messages in brought]
        assert all(SENT_TOGETHER_BYTES * 0.9 < size <= SENT_TOGETHER_BYTES for size in sizes)
        rest = news.take()
        assert [message.opened.payload[0] for message in [*brought[0], *brought[1], *rest]] == [*range(count)]


async def test_next_brings_a_message_that_is_longer_by_itself() -> None:
    async with running_world() as world:
        news = world.filters.install(ANY_NEWS, expires=False)
        await world.offer(sealed(b"short"), sealed(bytes(SENT_TOGETHER_BYTES)), sealed(b"short, too"))

        assert await next_of(news) == [b"short"]
        assert await next_of(news) == [bytes(SENT_TOGETHER_BYTES)]
        assert await next_of(news) == [b"short, too"]


async def test_who_waits_learns_that_the_filter_is_uninstalled() -> None:
    async with running_world() as world:
        news = world.filters.install(ANY_NEWS, expires=False)
        waiting = asyncio.create_task(next_of(news))
        await turns()

        world.filters.uninstall(news.id)

        assert await waiting == []
        assert await next_of(news) == []


async def test_who_gives_up_waiting_loses_nothing() -> None:
    async with running_world() as world:
        news = world.filters.install(ANY_NEWS, expires=False)
        waiting = asyncio.create_task(news.next())
        await turns()

        world.publish(sealed())
        waiting.cancel()
        await turns()

        assert waiting.cancelled()
        assert await next_of(news) == [b"hello"]


async def test_message_that_is_longer_than_the_queue_wakes_nobody_for_nothing() -> None:
    async with running_world(limits=FilterLimits(bytes=4000)) as world:
        news = world.filters.install(ANY_NEWS, expires=False)
        waiting = asyncio.create_task(next_of(news))
        await turns()

        await world.offer(sealed(bytes(5000)))
        assert not waiting.done()
        await world.offer(sealed(b"short"))

        assert await waiting == [b"short"]


# The loop's time


async def progress(done: Callable[[], int], total: int) -> list[int]:
    """How far something gets between one turn of ours and the next."""
    steps = []
    async with asyncio.timeout(DEADLINE_S):
        before = 0
        while before < total:
            await asyncio.sleep(0)
            now = done()
            steps.append(now - before)
            before = now
    return steps


async def test_others_have_their_turn_between_envelopes() -> None:
    async with running_world() as world:
        for_bob = world.filters.install(ANY_FOR_BOB)
        await world.offer(sealed_to(BOB))
        size = for_bob.queued_bytes
        for_bob.take()
        world.clock.step = SHORT_STEP
        world.publish(*(sealed_to(BOB) for _ in range(20)))

        steps = await progress(lambda: round(for_bob.queued_bytes / size), 20)

    assert max(steps) == 1  # two pieces of work: to open it for the filter, and to be done with it


async def test_others_have_their_turn_while_one_envelope_is_offered_to_many_filters() -> None:
    async with running_world() as world:
        many = [world.filters.install(ANY_NEWS) for _ in range(20)]
        world.clock.step = SHORT_STEP
        world.publish(sealed())

        steps = await progress(lambda: sum(one.queued_bytes > 0 for one in many), 20)

    assert [step for step in steps if step] == [2] * 10  # the time is taken anew after each pause


async def test_others_have_their_turn_while_envelopes_match_nothing() -> None:
    feed = Feed()
    async with running_world(feed=feed) as world:
        last = world.filters.install(Criteria(symmetric_key=KEY, topics=(SPORT,)))
        world.clock.step = SHORT_STEP
        world.publish(*(sealed() for _ in range(20)), sealed(topic=SPORT))

        steps = await progress(lambda: int(last.queued_bytes > 0), 1)

    assert len(steps) > 5


async def test_work_that_is_short_is_done_without_a_pause() -> None:
    async with running_world() as world:
        news = world.filters.install(ANY_NEWS)
        world.clock.step = WORK_S / 1000
        world.publish(*(sealed() for _ in range(20)))

        steps = await progress(lambda: int(news.queued_bytes > 0), 1)

    assert len(news.take()) == 20
    assert len(steps) <= 5


async def test_filters_that_are_too_slow_miss_envelopes_and_say_so(caplog: pytest.LogCaptureFixture) -> None:
    async with running_world(feed=Feed(max_envelopes=4)) as world:
        news = world.filters.install(ANY_NEWS)

        async def fall_behind() -> None:
            world.clock.step = LONG_STEP
            world.publish(sealed())
            await until(lambda: news.queued_bytes > 0)
            world.publish(*(sealed(b"%d" % number) for number in range(10)))
            world.clock.step = 0.0
            news.take()
            await until(lambda: news.queued_bytes > 0)

        await fall_behind()
        assert taken(news) == [b"6", b"7", b"8", b"9"]
        assert world.filters.missed == 6
        assert caplog.messages == ["filters missed envelopes count=6 filters=1"]

        await fall_behind()
        assert world.filters.missed == 12
        assert len(caplog.messages) == 1

        world.clock.now += WARNING_INTERVAL_S
        await world.offer(sealed())
        assert caplog.messages[1:] == ["filters missed envelopes count=6 filters=1"]

        world.clock.now += WARNING_INTERVAL_S
        await world.offer(sealed())
        assert len(caplog.messages) == 2


async def test_envelopes_that_pass_without_a_filter_are_not_missed(caplog: pytest.LogCaptureFixture) -> None:
    async with running_world(feed=Feed(max_envelopes=4)) as world:
        await world.offer(*(sealed() for _ in range(10)))

        assert caplog.messages == []


def size_of(envelope: Envelope) -> int:
    """What the message of an envelope with the symmetric key is counted with."""
    opened = open_symmetric(envelope.data, KEY)
    return Message(envelope, EnvelopeHash(bytes(32)), opened, None, 0.0, is_p2p=False).size
