"""Attacks on the search for history: a stranger fills a day, and then a dozen ask for what takes the store most to
find.

One puts in as many tiny envelopes as there are topics, or fills a few topics. The others, each from an address of its
own, ask again and again, for one envelope at a time. All of it is lawful, within the default limits.
"""

import asyncio
import contextlib
import random
import time
from collections.abc import Callable, Iterable, Iterator, Mapping

from bench.history import DAY_S
from mailserver.errors import ConnectionLost
from mailserver.mail.request import MailRequest, RequestId, encode_fields
from mailserver.waku.bloom import BLOOM_BYTES, Interest, bloom_of
from mailserver.waku.envelope import Topic, encode_envelope, encode_envelopes
from mailserver.waku.packets import PacketCode
from mailserver.waku.payload import MAX_PADDING_BYTES, seal_symmetric
from tests.faults.peers.attacker import Target
from tests.faults.peers.flood import MAX_UNSENT_BYTES, RETRY_S, Tally, joined
from tests.faults.peers.harness import Scenario
from tests.faults.report import Figure
from tests.waiting import until

ENVELOPES = 171_000
MORE_ENVELOPES = 321_000
"""How many are put in. In the short form 4,000."""

STRANGERS = 12
"""How many ask. In the short form 4."""

TTL_S = 10
"""So short that an envelope of 30 bytes takes no work."""

FILLED_WITHIN_S = 600.0
ANSWERED_WITHIN_S = 60.0
_PER_PACKET = 1000
_THIRD = 0x42  # the byte by which the topics of a day are found
_FILLED_TOPICS = 10

Interests = Callable[[random.Random], Iterator[Interest]]


def _any_topic(number: int) -> Topic:
    return Topic(bytes([number >> 8 & 0xFF, number & 0xFF, _THIRD, number >> 16 & 0xFF]))


def _few_topics(number: int) -> Topic:
    return Topic(b"few" + bytes([number % _FILLED_TOPICS]))


def _tiny(count: int, topic_of: Callable[[int], Topic], rng: random.Random) -> Iterator[bytes]:
    for at in range(0, count, _PER_PACKET):
        expiry = int(time.time()) + TTL_S
        numbers = range(at, min(at + _PER_PACKET, count))
        nonces = [rng.getrandbits(60) for _ in numbers]
        yield encode_envelopes(
            [
                encode_envelope(expiry, TTL_S, topic_of(number), b"\x01", nonce).raw
                for number, nonce in zip(numbers, nonces, strict=True)
            ]
        )


async def _fill(target: Target, count: int, topic_of: Callable[[int], Topic]) -> float:
    """Have one stranger put in so many envelopes; return how long that took."""
    rng, tally, sent = random.Random(target.seed), Tally(), 0
    began = time.perf_counter()
    async with joined(target, 1000, rng, tally) as (wire, lost):
        for payload in _tiny(count, topic_of, rng):
            await until(lambda: lost.is_set() or wire.unsent_bytes < MAX_UNSENT_BYTES, FILLED_WITHIN_S)
            wire.send(PacketCode.MESSAGES, payload)
            wire.flush()
            sent += 1
        await until(lambda: lost.is_set() or tally.heard[PacketCode.BATCH_ACKNOWLEDGED] == sent, FILLED_WITHIN_S)
        assert not lost.is_set(), tally.ended
    return time.perf_counter() - began


def _request(target: Target, rng: random.Random, interest: Interest) -> bytes:
    now = int(time.time())
    fields = encode_fields(MailRequest(RequestId(bytes(32)), now - 30 * DAY_S, now, interest, limit=1))
    key = bytes.fromhex(target.request_key)
    data = seal_symmetric(fields, key, nonce=rng.randbytes(12), padding=rng.randbytes(MAX_PADDING_BYTES))
    return encode_envelope(now + 50, 50, bytes(4), data, rng.getrandbits(60)).raw


def _blooms(rng: random.Random) -> Iterator[Interest]:
    """Filters that have all of the topics looked at: some match none of them, some a few, some many."""
    none = bytearray(b"\x01" * BLOOM_BYTES)
    none[_THIRD // 8] |= 1 << _THIRD % 8
    some = bytearray(none)
    for first in range(40):
        some[first // 8] |= 1 << first % 8
    while True:
        yield Interest(bloom=bytes(none))
        yield Interest(bloom=bytes(some))
        bits = sum(1 << bit for bit in rng.sample(range(8 * BLOOM_BYTES), 300)) | 1 << _THIRD
        yield Interest(bloom=bits.to_bytes(BLOOM_BYTES, "little"))
        yield Interest(bloom=bloom_of([_any_topic(rng.getrandbits(17)) for _ in range(20)]))


def _topics(rng: random.Random) -> Iterator[Interest]:
    """The topics that were filled, and as many more as there may be."""
    filled = frozenset(_few_topics(number) for number in range(_FILLED_TOPICS))
    while True:
        yield Interest(topics=filled)
        yield Interest(topics=filled | {Topic(rng.randbytes(4)) for _ in range(990)})


async def _ask(target: Target, interests: Interests) -> Mapping[str, Figure]:
    """Have strangers ask, each for the next as soon as it is answered, until the time is over."""
    loop, tally, slowest_s = asyncio.get_running_loop(), Tally(), 0.0
    deadline, began = loop.time() + target.seconds, time.perf_counter()

    async def one(number: int) -> None:
        nonlocal slowest_s
        rng, mine = random.Random(f"{target.seed} {number}"), Tally()
        wanted = interests(rng)
        while loop.time() < deadline:
            with contextlib.suppress(ConnectionLost, OSError):
                async with joined(target, number, rng, mine) as (wire, lost):
                    while loop.time() < deadline and not lost.is_set():
                        asked_at, mine.sent = loop.time(), mine.sent + 1
                        wire.send(PacketCode.P2P_REQUEST, _request(target, rng, next(wanted)))
                        wire.flush()
                        await until(
                            lambda: lost.is_set() or mine.heard[PacketCode.P2P_REQUEST_COMPLETE] == mine.sent,
                            ANSWERED_WITHIN_S,
                        )
                        slowest_s = max(slowest_s, loop.time() - asked_at)
            await asyncio.sleep(RETRY_S)
        tally.sent += mine.sent
        tally.failures += mine.failures
        tally.heard += mine.heard
        tally.ended += mine.ended

    await asyncio.gather(*(one(number) for number in range(4 if target.is_quick else STRANGERS)))
    from_and_until = {"from_s": began, "until_s": time.perf_counter()}
    return {**tally.figures(), **from_and_until, "slowest_of_strangers_ms": 1000 * slowest_s}


async def _fill_and_ask(
    target: Target, count: int, topic_of: Callable[[int], Topic], interests: Interests
) -> Mapping[str, Figure]:
    filled_s = await _fill(target, 4000 if target.is_quick else count, topic_of)
    return {"filled_s": filled_s, **await _ask(target, interests)}


async def blooms_of_many_topics(target: Target) -> Mapping[str, Figure]:
    """Bloom filters on a day with as many topics as envelopes."""
    return await _fill_and_ask(target, ENVELOPES, _any_topic, _blooms)


async def blooms_of_more_topics(target: Target) -> Mapping[str, Figure]:
    """The same with more than a page may take to look at."""
    return await _fill_and_ask(target, MORE_ENVELOPES, _any_topic, _blooms)


async def topics_that_are_filled(target: Target) -> Mapping[str, Figure]:
    """A few topics that have all of these envelopes."""
    return await _fill_and_ask(target, ENVELOPES, _few_topics, _topics)


def answered(figures: Mapping[str, Figure]) -> Iterable[str]:
    """What is lawful is answered, whoever asks, and is the end of no connection."""
    ended = sorted(name for name in figures if name.startswith("ended_"))
    if ended:
        yield f"lawful requests ended in {ended}"
    if figures["answered"] != figures["packets"]:
        yield f"{figures['packets']} were asked, {figures['answered']} answered"


SCENARIOS: tuple[Scenario, ...] = (
    Scenario("search by bloom", blooms_of_many_topics, check=answered, is_timed=True),
    Scenario("search by bloom, eight clients", blooms_of_many_topics, check=answered, askers=8, is_timed=True),
    Scenario("search by bloom of more topics", blooms_of_more_topics, check=answered, askers=8, is_timed=True),
    Scenario("search for topics that are filled", topics_that_are_filled, check=answered, askers=8, is_timed=True),
)
