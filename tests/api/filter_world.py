"""Filters at work on a feed, and envelopes that open with the keys of these tests."""

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator

from mailserver.api.filters import (
    Criteria,
    Filter,
    FilterLimits,
    Filters,
    Message,
)
from mailserver.codec.keys import PrivateKey
from mailserver.live.feed import Feed, LiveEnvelope
from mailserver.waku.envelope import Envelope, Topic, encode_envelope
from mailserver.waku.payload import seal_asymmetric, seal_symmetric
from tests.pairs import digest, private_key
from tests.waiting import DEADLINE_S, turns

KEY, OTHER_KEY = digest("symmetric key"), digest("other symmetric key")
ALICE, BOB, CAROL = private_key("alice"), private_key("bob"), private_key("carol")
NEWS, SPORT = Topic(b"news"), Topic(b"nest")
CREATED, TTL = 1_792_324_800, 60
PADDING = bytes(range(255))

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
