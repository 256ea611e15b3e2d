"""Attacks with messages: floods of envelopes and requests, from peers whose handshake is over."""

import asyncio
import contextlib
import itertools
import random
import time
from collections.abc import Iterable, Mapping

from bench.data import envelope
from bench.history import DAY_S
from bench.wire import CLIENT_STATUS
from mailserver.errors import ConnectionLost
from mailserver.mail.request import Cursor, MailRequest, RequestId, encode_fields
from mailserver.waku.bloom import BLOOM_BYTES, EMPTY_BLOOM, FULL_BLOOM, Interest
from mailserver.waku.envelope import TOPIC_BYTES, EnvelopeHash, Topic, encode_envelope, encode_envelopes
from mailserver.waku.packets import MAX_TOPIC_INTEREST, PacketCode, RateLimits, StatusOptions
from mailserver.waku.payload import MAX_PADDING_BYTES, seal_symmetric
from tests.faults.peers.attacker import Target
from tests.faults.peers.flood import Packets, Tally, flood, joined
from tests.faults.peers.harness import Scenario
from tests.faults.report import Figure

MANY = 20
"""Peers of as many addresses that attack together; in the short form 5."""

_CROWD = 400
"""Peers that come together to fill our memory; more are refused. In the short form 20."""

_EVERYTHING = StatusOptions(pow_requirement=0.0, bloom=FULL_BLOOM, light_node=False, confirmations=True)


def many(target: Target) -> int:
    """How many attack together."""
    return 5 if target.is_quick else MANY


def crowd(target: Target) -> int:
    """How many come together to fill our memory."""
    return 20 if target.is_quick else _CROWD


def _topic(rng: random.Random) -> Topic:
    return Topic(rng.randbytes(TOPIC_BYTES))


# Envelopes


def _valid(target: Target, rng: random.Random) -> Packets:
    while True:
        now = int(time.time())
        yield PacketCode.MESSAGES, encode_envelopes([envelope(now, _topic(rng), rng) for _ in range(100)])


def _tiny(target: Target, rng: random.Random) -> Packets:
    """Of a few bytes each, and valid for as long as they may be without work."""
    while True:
        expiry = int(time.time()) + 15_000
        start = encode_envelope(expiry, 15_000, _topic(rng), b"\x01", 1 << 63).raw[:-7]  # a nonce of 8 bytes
        yield PacketCode.MESSAGES, encode_envelopes([start + rng.randbytes(7) for _ in range(2000)])


def _invalid(target: Target, rng: random.Random) -> Packets:
    """Invalid in each way that leaves the packet readable."""
    while True:
        now = int(time.time())
        data = rng.randbytes(300)
        made = [
            encode_envelope(now - 10, 50, _topic(rng), data, 1),  # late
            encode_envelope(now - 1000, 50, _topic(rng), data, 1),  # very old
            encode_envelope(now + 5000, 50, _topic(rng), data, 1),  # from the future
            encode_envelope(now + 50, now + 100, _topic(rng), data, 1),  # created before 1970
            encode_envelope(now + 100_000, 100_001, _topic(rng), data, rng.getrandbits(32)),  # too little work
        ]
        yield PacketCode.MESSAGES, encode_envelopes([one.raw for one in made * 20])


def _oversize(target: Target, rng: random.Random) -> Packets:
    data = bytes(1024 * 1024)
    while True:
        yield (
            PacketCode.MESSAGES,
            encode_envelopes([encode_envelope(int(time.time()) + 50, 50, _topic(rng), data, 1).raw]),
        )


def _malformed(target: Target, rng: random.Random) -> Packets:
    """What does not decode, behind envelopes that do."""
    good = [envelope(int(time.time()), _topic(rng), rng) for _ in range(20)]
    while True:
        yield (
            PacketCode.MESSAGES,
            rng.choice(
                [
                    encode_envelopes([*good, b"\xc1\x01"]),
                    encode_envelopes(good)[:-5],
                    encode_envelopes(good) + b"\x00",
                    rng.randbytes(200),
                    b"",
                ]
            ),
        )


def _duplicates(target: Target, rng: random.Random) -> Packets:
    shared = random.Random(target.seed)  # all of them send the same
    while True:
        now = int(time.time())
        payload = encode_envelopes([envelope(now, _topic(shared), shared) for _ in range(200)])
        yield from itertools.repeat((PacketCode.MESSAGES, payload), 300)


async def valid_from_one(target: Target) -> Mapping[str, Figure]:
    """New envelopes, as many as one peer can send."""
    return await flood(target, _valid, 1)


async def valid_from_many(target: Target) -> Mapping[str, Figure]:
    """New envelopes, as many as twenty peers can send."""
    return await flood(target, _valid, many(target))


async def tiny_from_many(target: Target) -> Mapping[str, Figure]:
    """Envelopes of 25 bytes that stay valid for hours."""
    return await flood(target, _tiny, many(target))


async def invalid_from_many(target: Target) -> Mapping[str, Figure]:
    """Late, old, from the future, forged, without work."""
    return await flood(target, _invalid, many(target))


async def oversize_from_many(target: Target) -> Mapping[str, Figure]:
    """Envelopes of a MiB that compress to 50 kB, and are too long."""
    return await flood(target, _oversize, many(target))


async def malformed_from_many(target: Target) -> Mapping[str, Figure]:
    """Packets that do not decode; each is the end of its connection."""
    return await flood(target, _malformed, many(target))


async def duplicates_from_many(target: Target) -> Mapping[str, Figure]:
    """The same envelopes from all, again and again."""
    return await flood(target, _duplicates, many(target))


async def hit_and_run(target: Target) -> Mapping[str, Figure]:
    """Send a packet and go away before its confirmation, again and again."""
    tally = Tally()
    deadline = asyncio.get_running_loop().time() + target.seconds

    async def one(number: int) -> None:
        rng = random.Random(f"{target.seed} {number}")
        packets = _valid(target, rng)
        while asyncio.get_running_loop().time() < deadline:
            with contextlib.suppress(ConnectionLost, OSError):
                async with joined(target, number, rng, tally) as (wire, _):
                    for code, payload in itertools.islice(packets, 5):
                        wire.send(PacketCode(code), payload)
                        tally.sent += 1
                    wire.flush()
                    wire.on_lost = lambda error: None
                    wire.transport.abort()

    await asyncio.gather(*(one(number) for number in range(many(target))))
    return tally.figures()


async def reconnecting(target: Target) -> Mapping[str, Figure]:
    """Come again and again, and take all that floats, every time."""
    await flood(target, _valid, many(target))
    tally = Tally()
    deadline = asyncio.get_running_loop().time() + target.seconds
    joins = 0

    async def one(number: int) -> None:
        nonlocal joins
        rng = random.Random(f"{target.seed} {number}")
        while asyncio.get_running_loop().time() < deadline:
            with contextlib.suppress(ConnectionLost, OSError):
                async with joined(target, number % 4, rng, tally, status=_EVERYTHING):
                    joins += 1
                    await asyncio.sleep(0.5)

    await asyncio.gather(*(one(100 + number) for number in range(many(target))))
    return {"joins": joins, "relayed_packets": tally.heard[PacketCode.MESSAGES]}


# Status


def _updates(target: Target, rng: random.Random) -> Packets:
    """Other topics, as many as there may be, then a bloom filter, then limits of topics."""
    interests = [frozenset(_topic(rng) for _ in range(MAX_TOPIC_INTEREST)) for _ in range(3)]
    while True:
        for topics in interests:
            yield PacketCode.STATUS_UPDATE, StatusOptions(topic_interest=topics).encode()
            yield PacketCode.STATUS_UPDATE, StatusOptions(bloom=rng.randbytes(BLOOM_BYTES)).encode()
            limits = RateLimits(*(rng.randrange(1, 1000) for _ in range(3)))
            yield (
                PacketCode.STATUS_UPDATE,
                StatusOptions(
                    packet_rate_limits=limits, byte_rate_limits=limits, pow_requirement=rng.random()
                ).encode(),
            )


async def updates_from_many(target: Target) -> Mapping[str, Figure]:
    """Status Updates without an end."""
    return await flood(target, _updates, many(target))


async def topics_of_a_crowd(target: Target) -> Mapping[str, Figure]:
    """Hundreds of peers that want 10,000 topics each, at their limits for each, and envelopes of all of them."""
    tally = Tally()
    held = 0
    async with contextlib.AsyncExitStack() as stack:
        for number in range(crowd(target)):
            rng = random.Random(f"{target.seed} {number}")
            topics = frozenset(Topic(b"\x00" + rng.randbytes(3)) for _ in range(MAX_TOPIC_INTEREST))
            status = StatusOptions(pow_requirement=0.0, topic_interest=topics, packet_rate_limits=RateLimits(0, 0, 1))
            with contextlib.suppress(ConnectionLost, OSError):
                await stack.enter_async_context(joined(target, number, rng, tally, status=status))
                held += 1
        figures = await flood(target, _valid, 3)
    return {"held": held, **figures}


# History requests


def sealed(target: Target, fields: bytes, rng: random.Random, key: bytes | None = None) -> bytes:
    """An envelope with these fields, sealed with the password or another key."""
    data = seal_symmetric(
        fields,
        key or bytes.fromhex(target.request_key),
        nonce=rng.randbytes(12),
        padding=rng.randbytes(MAX_PADDING_BYTES),
    )
    return encode_envelope(int(time.time()) + 50, 50, bytes(4), data, rng.getrandbits(60)).raw


def _request(target: Target, rng: random.Random, interest: Interest, **more: object) -> bytes:
    end = target.history_end
    return encode_fields(MailRequest(RequestId(bytes(32)), end - 30 * DAY_S, end, interest, **more))  # type: ignore[arg-type]


def _requests(target: Target, rng: random.Random) -> Packets:
    """Each kind of request, lawful or not, in turn."""
    full, end = Interest(bloom=FULL_BLOOM), target.history_end
    while True:
        somewhere = Cursor(end - rng.randrange(30 * DAY_S), EnvelopeHash(rng.randbytes(32)))
        fields = (
            _request(target, rng, full),
            _request(target, rng, full, limit=1),
            _request(target, rng, full, cursor=somewhere),
            _request(target, rng, full, cursor=Cursor(end - 30 * DAY_S + 1, EnvelopeHash(bytes(32)))),
            _request(target, rng, Interest(topics=frozenset(_topic(rng) for _ in range(1000)))),
            _request(target, rng, Interest(topics=frozenset(_topic(rng) for _ in range(1001)))),
            _request(target, rng, Interest(bloom=rng.randbytes(BLOOM_BYTES))),
            _request(target, rng, Interest(bloom=EMPTY_BLOOM), limit=2**32 - 1),
            rng.randbytes(300),
        )
        for one in fields:
            yield PacketCode.P2P_REQUEST, sealed(target, one, rng)
        yield PacketCode.P2P_REQUEST, sealed(target, fields[0], rng, key=rng.randbytes(32))  # another password
        yield PacketCode.P2P_REQUEST, rng.randbytes(300)
        yield PacketCode.P2P_REQUEST, b"\xc0"
        yield PacketCode.P2P_REQUEST, bytes(100_000)


async def requests_from_one(target: Target) -> Mapping[str, Figure]:
    """All kinds of requests, as many as one peer can send."""
    return await flood(target, _requests, 1)


async def requests_from_many(target: Target) -> Mapping[str, Figure]:
    """All kinds of requests, from twenty peers."""
    return await flood(target, _requests, many(target))


async def answers_unread(target: Target) -> Mapping[str, Figure]:
    """Hundreds of peers that ask for everything, 16 times, want all that is relayed, and read nothing."""
    tally = Tally()
    held = 0
    async with contextlib.AsyncExitStack() as stack:
        for number in range(crowd(target)):
            rng = random.Random(f"{target.seed} {number}")
            with contextlib.suppress(ConnectionLost, OSError):
                wire, _ = await stack.enter_async_context(joined(target, number, rng, tally, status=_EVERYTHING))
                wire.transport.pause_reading()
                for _ in range(16):
                    payload = sealed(target, _request(target, rng, Interest(bloom=FULL_BLOOM)), rng)
                    wire.send(PacketCode.P2P_REQUEST, payload)
                wire.flush()
                held += 1
        figures = await flood(target, _valid, 1)
    return {"held": held, **figures}


# Packets that say nothing


def _nonsense(target: Target, rng: random.Random) -> Packets:
    """Confirmations of what was never sent, answers that nobody asked for, codes that nobody knows."""
    made = [envelope(target.history_end, _topic(rng), rng) for _ in range(100)]
    while True:
        yield PacketCode.P2P_REQUEST_COMPLETE, rng.randbytes(64)
        yield PacketCode.P2P_MESSAGE, encode_envelopes(made)
        yield PacketCode.BATCH_ACKNOWLEDGED, b"\xa0" + rng.randbytes(32)
        yield PacketCode.STATUS, CLIENT_STATUS.encode()
        for code in (2, 3, 10, 20, 99, 124):
            yield code, rng.randbytes(rng.randrange(2000))


async def nonsense_from_many(target: Target) -> Mapping[str, Figure]:
    """Packets that a mailserver has no use for."""
    return await flood(target, _nonsense, many(target))


# What must be true of the attack itself


def all_for_their_fault(figures: Mapping[str, Figure]) -> Iterable[str]:
    """Who sends what does not decode is told so, and nothing else."""
    others = {name for name in figures if name.startswith("ended_")} - {"ended_subprotocol_error", "ended_silently"}
    if not figures.get("ended_subprotocol_error") or others:
        yield f"malformed packets ended in {sorted(others) or 'nothing'}"


def took_some(figures: Mapping[str, Figure]) -> Iterable[str]:
    """A flood is slowed, and not shut out."""
    if not figures["confirmed"]:
        yield "nothing of the flood was confirmed"


def stayed(figures: Mapping[str, Figure]) -> Iterable[str]:
    """What is lawful, if useless, is the end of no connection."""
    ended = sorted(name for name in figures if name.startswith("ended_"))
    if ended:
        yield f"lawful packets ended in {ended}"


SCENARIOS: tuple[Scenario, ...] = (
    Scenario("valid envelopes from one", valid_from_one, check=took_some),
    Scenario("valid envelopes from many", valid_from_many, check=took_some),
    Scenario("tiny envelopes from many", tiny_from_many),
    Scenario("invalid envelopes from many", invalid_from_many, check=took_some),
    Scenario("oversize envelopes from many", oversize_from_many, check=took_some),
    Scenario("malformed packets from many", malformed_from_many, check=all_for_their_fault),
    Scenario("duplicates from many", duplicates_from_many, check=took_some),
    Scenario("packets and away", hit_and_run),
    Scenario("reconnecting for the pool", reconnecting),
    Scenario("updates from many", updates_from_many, check=stayed),
    Scenario("10,000 topics each", topics_of_a_crowd),
    Scenario("requests from one", requests_from_one),
    Scenario("requests from many", requests_from_many),
    Scenario("answers unread", answers_unread),
    Scenario("packets of no use", nonsense_from_many, check=stayed),
)
