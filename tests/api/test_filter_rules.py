"""mailserver.api.filters: what a filter may ask for, what opens with its key, and what its rules let through."""

import logging
import random
from collections.abc import Callable

import pytest

from mailserver.api import filters as module
from mailserver.api.filters import (
    MAX_FILTER_TOPICS,
    Criteria,
    Message,
)
from mailserver.waku.envelope import Envelope, Topic, encode_envelope
from mailserver.waku.payload import OpenedPayload, open_symmetric
from tests.api.filter_world import (
    ALICE,
    ANY_FOR_BOB,
    ANY_NEWS,
    BOB,
    CAROL,
    CREATED,
    KEY,
    NEWS,
    OTHER_KEY,
    PADDING,
    SPORT,
    TTL,
    World,
    live,
    nonces,
    running_world,
    sealed,
    sealed_to,
    taken,
)
from tests.waiting import turns

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
    opened = OpenedPayload(b"hello", ALICE.public_key, padding)
    assert news.take() == [Message(envelope, envelope.hash(), opened, None, envelope.pow(), is_p2p=False)]


async def test_message_is_what_was_sealed_to_a_public_key() -> None:
    envelope = sealed_to(BOB, b"hello")
    async with running_world() as world:
        for_bob = world.filters.install(ANY_FOR_BOB)

        await world.offer(envelope)

    opened = OpenedPayload(b"hello", None, PADDING[: 256 - 1 - 1 - 5])
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

    def watched(data: bytes, key: bytes) -> OpenedPayload:
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

    def watched(data: bytes, key: bytes) -> OpenedPayload:
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
