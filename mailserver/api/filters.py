"""Filters: which live envelopes the users of this node want and can open (9/WAKU-RPC "Filter").

One task reads the feed, opens what matches, and queues it for each filter until the filter is polled or its
subscription has sent it. A filter sees what is published after its installation. An envelope that does not open with
the key of a filter is not meant for it: anyone can send any number of those, so they are neither logged nor counted.

The cheapest rules come first: topic, by an index; peer to peer; proof of work; opening, which takes 50 to 100 us and is
done once for all filters with the same key; signer.
"""

import asyncio
import logging
import math
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import islice

from mailserver.api.topic_index import TopicIndex
from mailserver.codec.keys import NodeId, PrivateKey
from mailserver.errors import DecodeError, MailserverError
from mailserver.live.feed import Feed, LiveEnvelope
from mailserver.waku.envelope import TOPIC_BYTES, Envelope, EnvelopeHash
from mailserver.waku.payload import SYMMETRIC_KEY_BYTES, OpenedPayload, open_asymmetric, open_symmetric

log = logging.getLogger(__name__)

MAX_FILTERS = 1000
"""Maximum number of installed filters, including those of subscriptions. Deployed clients install one for each chat."""

MAX_FILTER_TOPICS = 1000
"""Maximum number of topics of a filter: as many as a history request may name."""

MAX_QUEUED_MESSAGES = 1000
MAX_QUEUED_BYTES = 4 * 1024 * 1024
"""How much may wait for the user of one filter. Beyond either limit, the oldest message is dropped; the store still
has its envelope."""

MAX_ALL_QUEUED_BYTES = 256 * 1024 * 1024
"""How much may wait for all users together. Beyond it, the oldest message of the fullest queue is dropped, so that
users who poll lose nothing to those who do not."""

MESSAGE_OVERHEAD_BYTES = 1024
"""How much each message counts besides its bytes, for the objects around them."""

SENT_TOGETHER_BYTES = 64 * 1024
"""How much a subscription takes out of its queue at a time. It holds that while its user does not read, and the limits
above do not count it."""

FILTER_IDLE_S = 300.0
"""How long a filter stays without being polled. Deployed nodes do the same; 9/WAKU-RPC says nothing about it."""

MAX_EXPIRED_TOGETHER = 10
"""How many filters are removed at a time; each takes 0.3 ms if it has 1,000 topics. The next poll or envelope removes
more."""

FILTER_ID_BYTES = 32
"""Number of random bytes of an id, which is written as lowercase hex digits."""

WORK_S = 0.002
PAUSE_S = 0.002
"""How long filters work at a time, and how long they then pause: they never take more than half of the loop's time."""

WARNING_INTERVAL_S = 60.0
"""Shortest time between two warnings that envelopes were missed."""


class FilterNotFound(MailserverError):
    """No filter has this id: there never was one, it was removed, or nobody polled it for FILTER_IDLE_S."""

    def __str__(self) -> str:
        return "no filter has this id"


class TooManyFilters(MailserverError):
    """The maximum number of filters is installed."""

    def __init__(self, limit: int) -> None:
        super().__init__(limit)
        self.limit = limit

    def __str__(self) -> str:
        return f"no room for another filter, the limit is {self.limit}"


@dataclass(frozen=True, slots=True)
class Criteria:
    """Which envelopes a filter takes: those that its key opens and that satisfy all other rules.

    Args:
        symmetric_key: 32 bytes. Give either this or `private_key`.
        private_key: that of the recipient.
        signer: take only what this key has signed.
        min_pow: lowest proof of work; with 0 or less, any will do.
        topics: take only these, of 1 to 4 bytes each. Fewer than 4 bytes stand for all topics that begin with them.
            Without any, the filter takes every topic, which is not allowed with a symmetric key.
        allow_p2p: also take what trusted peers send outside gossip, such as the answer to a history request.
    Raises:
        ValueError: a value breaks one of these rules.
    """

    symmetric_key: bytes | None = field(default=None, repr=False)
    private_key: PrivateKey | None = None
    signer: NodeId | None = None
    min_pow: float = 0.0
    topics: tuple[bytes, ...] = ()
    allow_p2p: bool = False

    def __post_init__(self) -> None:
        if (self.symmetric_key is None) == (self.private_key is None):
            raise ValueError("a filter has either a symmetric key or a private key")
        if self.symmetric_key is not None and len(self.symmetric_key) != SYMMETRIC_KEY_BYTES:
            raise ValueError(f"a symmetric key has {SYMMETRIC_KEY_BYTES} bytes, not {len(self.symmetric_key)}")
        if self.symmetric_key is not None and not self.topics:
            raise ValueError("a filter with a symmetric key names its topics")
        if len(self.topics) > MAX_FILTER_TOPICS:
            raise ValueError(f"a filter has at most {MAX_FILTER_TOPICS} topics, not {len(self.topics)}")
        if not all(1 <= len(topic) <= TOPIC_BYTES for topic in self.topics):
            raise ValueError(f"a topic of a filter has 1 to {TOPIC_BYTES} bytes")
        if not math.isfinite(self.min_pow):
            raise ValueError("the proof of work of a filter is a finite number")

    @property
    def recipient(self) -> NodeId | None:
        """The public key that messages are sealed to; None with a symmetric key."""
        return None if self.private_key is None else self.private_key.public_key


@dataclass(frozen=True, slots=True)
class Message:
    """An envelope that a filter has opened. `recipient` is the public key that it was sealed to; None if symmetric."""

    envelope: Envelope
    hash: EnvelopeHash
    opened: OpenedPayload
    recipient: NodeId | None
    pow: float
    is_p2p: bool

    @property
    def size(self) -> int:
        """How much it counts in a queue, which is about the memory that it takes."""
        opened = self.opened
        return len(self.envelope.raw) + len(opened.payload) + len(opened.padding) + MESSAGE_OVERHEAD_BYTES


@dataclass(frozen=True, slots=True)
class FilterLimits:
    """How many filters there may be, and how much may wait for one and for all of them."""

    filters: int = MAX_FILTERS
    messages: int = MAX_QUEUED_MESSAGES
    bytes: int = MAX_QUEUED_BYTES
    all_bytes: int = MAX_ALL_QUEUED_BYTES


class _Usage:
    """The bytes that are queued in all filters together."""

    __slots__ = ("bytes",)

    def __init__(self) -> None:
        self.bytes = 0


class Filter:
    """One installed filter and its queue."""

    def __init__(self, criteria: Criteria, first: int, limits: FilterLimits, usage: _Usage) -> None:
        """Begin with an empty queue.

        Args:
            first: number, in the feed, of the first envelope that the filter sees.
        """
        self.id = secrets.token_hex(FILTER_ID_BYTES)
        self.criteria = criteria
        self.first = first
        self.queued_bytes = 0
        self._limits = limits
        self._usage = usage
        self._queue: OrderedDict[EnvelopeHash, Message] = OrderedDict()
        self._arrived = asyncio.Event()
        self._ended = False

    def take(self) -> list[Message]:
        """All messages since the last call, oldest first."""
        messages = list(self._queue.values())
        self._queue.clear()
        self._count(-self.queued_bytes)
        return messages

    async def next(self) -> list[Message]:
        """Wait for messages; return the oldest, at least one. Return an empty list once the filter is uninstalled.

        Call again for the rest: at most SENT_TOGETHER_BYTES are returned at a time, or one message that is longer.
        """
        while not self._queue and not self._ended:
            self._arrived.clear()
            await self._arrived.wait()
        messages: list[Message] = []
        size = 0
        for message in self._queue.values():
            size += message.size
            if messages and size > SENT_TOGETHER_BYTES:
                break
            messages.append(message)
        for _ in messages:
            self.drop()
        return messages

    def put(self, message: Message) -> None:
        """Queue a message, unless it is already queued: it may have arrived both by gossip and from a mailserver."""
        if self._ended or message.hash in self._queue:
            return
        self._queue[message.hash] = message
        self._count(message.size)
        while len(self._queue) > self._limits.messages or self.queued_bytes > self._limits.bytes:
            self.drop()
        self._arrived.set()

    def drop(self) -> None:
        """Drop the oldest message."""
        _, message = self._queue.popitem(last=False)
        self._count(-message.size)

    def end(self) -> None:
        """Drop what is queued, take no more, and wake whoever waits."""
        self._ended = True
        self.take()
        self._arrived.set()

    def _count(self, size: int) -> None:
        self.queued_bytes += size
        self._usage.bytes += size


class Filters:
    """All filters, and the task that reads the feed for them."""

    def __init__(
        self, feed: Feed, *, limits: FilterLimits | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._feed = feed
        self._reader = feed.reader()
        self._limits = limits or FilterLimits()
        self._clock = clock
        self._filters: dict[str, Filter] = {}
        self._index = TopicIndex[Filter]()
        self._polled: OrderedDict[str, float] = OrderedDict()  # when each was last polled, the longest ago first
        self._usage = _Usage()
        self._warned_missed = 0
        self._warned_at = -math.inf

    def __len__(self) -> int:
        return len(self._filters)

    @property
    def queued_bytes(self) -> int:
        """The bytes queued in all filters together. A message that several filters hold counts several times."""
        return self._usage.bytes

    @property
    def missed(self) -> int:
        """How many envelopes of the feed no filter has seen, because opening was too slow."""
        return self._reader.missed

    def install(self, criteria: Criteria, *, expires: bool = True) -> Filter:
        """Install a filter for what is published from now on.

        Args:
            expires: remove it when nobody has polled it for FILTER_IDLE_S. Filters of subscriptions do not expire.
        Raises:
            TooManyFilters: MAX_FILTERS are installed.
        """
        self._expire()
        if len(self._filters) >= self._limits.filters:
            raise TooManyFilters(self._limits.filters)
        new = Filter(criteria, self._feed.end, self._limits, self._usage)
        self._filters[new.id] = new
        self._index.add(new, criteria.topics)
        if expires:
            self._polled[new.id] = self._clock()
        return new

    def get(self, filter_id: str) -> Filter:
        """The filter with this id. This counts as a poll.

        Raises:
            FilterNotFound: there is none, or it belongs to a subscription, which reads it.
        """
        self._expire()
        if filter_id not in self._polled:
            raise FilterNotFound
        self._polled[filter_id] = self._clock()
        self._polled.move_to_end(filter_id)
        return self._filters[filter_id]

    def uninstall(self, filter_id: str) -> bool:
        """Remove a filter, be it polled or of a subscription, with all that is queued; return whether there was one."""
        old = self._filters.pop(filter_id, None)
        if old is None:
            return False
        self._polled.pop(filter_id, None)
        self._index.remove(old, old.criteria.topics)
        old.end()
        return True

    async def run(self) -> None:
        """Open what the feed brings, forever."""
        while True:
            envelopes = await self._reader.read()
            first = self._feed.end - len(envelopes)  # exact, because nothing was published since the read
            self._expire()
            if not self._filters:
                continue
            self._warn()
            began = self._clock()
            for number, live in enumerate(envelopes, first):
                for _ in self._offer(live, number):
                    if self._clock() - began >= WORK_S:
                        await asyncio.sleep(PAUSE_S)
                        began = self._clock()

    def _offer(self, live: LiveEnvelope, number: int) -> Iterator[None]:
        """Offer an envelope to the filters that take its topic. Yields after each piece of work."""
        opened: dict[bytes, Message | None] = {}
        for candidate in self._index.find(live.envelope.topic):
            if number >= candidate.first and _passes(live, candidate.criteria):
                self._open_for(candidate, live, opened)
            yield
        yield

    def _open_for(self, taker: Filter, live: LiveEnvelope, opened: dict[bytes, Message | None]) -> None:
        """Queue an envelope for a filter, if it opens. `opened` caches the result for each key."""
        criteria = taker.criteria
        key = criteria.symmetric_key or criteria.recipient
        assert key is not None
        if key not in opened:
            opened[key] = _open(live, criteria)
        message = opened[key]
        if message is None or (criteria.signer is not None and message.opened.signer != criteria.signer):
            return
        taker.put(message)
        while self.queued_bytes > self._limits.all_bytes:
            max(self._filters.values(), key=lambda filter_: filter_.queued_bytes).drop()

    def _expire(self) -> None:
        """Remove filters that nobody has polled for too long, the most neglected first."""
        now = self._clock()
        for filter_id, polled in list(islice(self._polled.items(), MAX_EXPIRED_TOGETHER)):
            if now - polled < FILTER_IDLE_S:
                return
            self.uninstall(filter_id)

    def _warn(self) -> None:
        """Log a warning if envelopes were missed since the last one."""
        now = self._clock()
        if self.missed > self._warned_missed and now - self._warned_at >= WARNING_INTERVAL_S:
            log.warning("filters missed envelopes count=%d filters=%d", self.missed - self._warned_missed, len(self))
            self._warned_missed = self.missed
            self._warned_at = now


def _passes(live: LiveEnvelope, criteria: Criteria) -> bool:
    """Whether an envelope satisfies the rules that need no key."""
    if live.is_p2p and not criteria.allow_p2p:
        return False
    return criteria.min_pow <= 0 or live.pow >= criteria.min_pow


def _open(live: LiveEnvelope, criteria: Criteria) -> Message | None:
    """Open an envelope; None if it is not for this key."""
    data = live.envelope.data
    try:
        if criteria.private_key is not None:
            opened = open_asymmetric(data, criteria.private_key)
        else:
            assert criteria.symmetric_key is not None
            opened = open_symmetric(data, criteria.symmetric_key)
    except DecodeError:
        return None
    return Message(live.envelope, live.hash, opened, criteria.recipient, live.pow, live.is_p2p)
