"""From live envelopes to pushes: what the daemon accepts, each message once.

Where the feed has left something out, the store has it, or gets it within moments: what arrives there is pushed from
there for a while, if it is still fresh. What has come from the feed is passed over there.
"""

import asyncio
import contextlib
import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from itertools import chain, pairwise
from typing import Generic, TypeVar

from mailserver.errors import StoreError
from mailserver.feed_socket.client import FeedClient, FeedGap
from mailserver.feed_socket.frames import FeedEnvelope
from mailserver.gateway.filter_service import FilterService
from mailserver.gateway.index.message_store import MessageStore, News
from mailserver.gateway.index.schema import PREFIX_BYTES
from mailserver.gateway.index.values import EncodedMessage
from mailserver.ids.envelopes import NS, content_topic_of
from mailserver.ids.waku_message import MessageHash
from mailserver.metrics.gateway import GatewayMetrics
from mailserver.store.arrivals import OtherStore
from mailserver.store.message_ids import BEFORE_ALL, Arrival
from mailserver.waku.envelope import EnvelopeHash, Topic
from mailserver.waku.envelope_rows import EnvelopeFields, read_fields

log = logging.getLogger(__name__)

H = TypeVar("H", bound=bytes)

FRESH_S = 120
"""What was made longer ago is not pushed when the feed has left it out: it is history, which clients ask for."""

SETTLE_S = 10.0
"""What gets into the store so long after the feed has left something out is looked at: what was accepted just before is
there a little later, when the disk has taken it."""

LOOK_S = 0.25
"""How often it is looked at meanwhile."""

MARK_S = 15.0
"""How often it is noted where the store ends, so that a look need not begin far below what may still be fresh."""

AHEAD_S = 60
"""How far the clocks of those who made an envelope, and of the mailserver that accepted it, may be ahead of ours."""

MAX_MISSED = 65_536
"""How far back it is looked through at most: some 2 s of work, in threads, `message_store.MAX_NEWS` at a time. After
each of these others get their turn: the loop itself has up to 2 ms to do with them, and then pushes in slices."""

PUSHED_AT_ONCE = 50
"""How many of the missed are pushed before sockets get their turn: more might not fit into what may wait for one."""

BATCHES_AT_ONCE = 3
"""How many batches of the feed are pushed in one go, if they wait: so many fit into what may wait for one client."""

MAX_PUSHING_S = 0.002
"""How long messages are pushed in one go. What is pushed is sent when the event loop goes on: so of 1,000 clients who
want a message, the first have it, and are at work on it, while it is still sealed for the others. But whoever gets
several messages in one go gets them in one write: to 100 clients, two or three of a flood."""

MAX_PUSHED = 2 * MAX_MISSED
"""How many messages are remembered that were pushed, so that none is pushed again from the store."""

MAX_KNOWN = MAX_MISSED
"""How many envelopes are remembered while the store is looked at, so that what came from the feed or the store is not
decoded again when it comes from the other: 3 s of 20,000 a second. The disk takes an envelope in milliseconds."""


class _Remembered(Generic[H]):
    """The last hashes that were added, and at most so many."""

    def __init__(self, most: int) -> None:
        self.all: set[H] = set()
        self._order: deque[H] = deque()  # with the set, little more than half of an OrderedDict
        self._most = most

    def add(self, name: H) -> None:
        """Remember one that is not there yet."""
        self.all.add(name)
        self._order.append(name)
        if len(self._order) > self._most:
            self.all.discard(self._order.popleft())

    def clear(self) -> None:
        """Forget all."""
        self.all.clear()
        self._order.clear()


class Live:
    """Reads the feed, and pushes."""

    def __init__(
        self,
        feed: FeedClient,
        messages: MessageStore,
        filters: FilterService,
        metrics: GatewayMetrics,
        wall_clock: Callable[[], float],
    ) -> None:
        """Take where messages come from, and who pushes them."""
        self._feed = feed
        self._messages = messages
        self._filters = filters
        self._metrics = metrics
        self._wall_clock = wall_clock
        self._pushed: _Remembered[MessageHash] = _Remembered(MAX_PUSHED)
        self._known: _Remembered[bytes] = _Remembered(MAX_KNOWN)  # prefixes of hashes, while the store is looked at
        self._identity = ""  # of the store
        self._after = BEFORE_ALL  # the place in it behind which the next look begins
        self._last = BEFORE_ALL  # where it ended at the last look
        self._ends: deque[tuple[float, Arrival]] = deque()  # when it was known to end where: MARK_S apart, oldest first
        self._goal: Arrival | None = None  # where it ended when the time was over: so far it is looked through
        self._turn = asyncio.Lock()  # whoever pushes has it, so that messages stay in order
        self._owes = asyncio.Event()  # whether the store is to be looked at
        self._owes_until = 0.0
        self._has_come = False  # whether something has come from the feed since the last look
        self._problem = ""
        self.missed = 0
        """How many envelopes the feed has left out."""

    async def begin(self) -> None:
        """Note where the store ends, before the first client comes: what is there already is history.

        If there is no store yet, all that it will have is news.
        """
        with contextlib.suppress(StoreError):
            self._after = await self._end()

    async def run(self) -> None:
        """Push what is live until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._read_feed(), name="live feed")
            tasks.create_task(self._read_store(), name="live store")
            tasks.create_task(self._note_ends(), name="live ends")

    async def _read_feed(self) -> None:
        while True:
            item = await self._feed.next()
            if isinstance(item, FeedGap):
                self.missed += item.missed or 0
                await self._go_on_from_store()
                continue
            batches = [item]
            while len(batches) < BATCHES_AT_ONCE and (more := self._feed.next_envelopes()):
                batches.append(more)
            try:
                async with self._turn:
                    await self._push_live(batches)
            except StoreError as error:
                log.error("live messages not pushed error=%r", str(error))
                await self._go_on_from_store()

    async def _push_live(self, batches: Sequence[Sequence[FeedEnvelope]]) -> None:
        """Push what has come of the feed. Messages that nobody wants are not even made.

        All are made in one trip to a thread, which has to wait for Python's lock where it is busy. Between two batches
        sockets get their turn.
        """
        began = asyncio.get_running_loop().time()
        wanted: list[tuple[EnvelopeFields, EnvelopeHash]] = []
        ends = [0]
        known = self._known.all
        is_wanted: dict[Topic, bool] = {}
        for batch in batches:
            raws = [raw for _, raw in batch]
            for (envelope_hash, _), fields in zip(batch, read_fields(b"".join(raws), map(len, raws)), strict=True):
                if fields is None or (known and envelope_hash[:PREFIX_BYTES] in known):
                    continue  # the daemon sends none that does not decode
                topic = fields[2]
                if topic not in is_wanted:
                    is_wanted[topic] = self._filters.wants(content_topic_of(topic))
                if is_wanted[topic]:
                    wanted.append((fields, envelope_hash))
            ends.append(len(wanted))
        if wanted:
            messages = await self._messages.messages_of(wanted)
            for at, end in pairwise(ends):
                await self._push(messages[at:end])
                await asyncio.sleep(0)
            self._metrics.push_delay.observe(asyncio.get_running_loop().time() - began)
        if self._owes.is_set():
            self._has_come = True
            for envelope_hash, _ in chain.from_iterable(batches):
                if (prefix := envelope_hash[:PREFIX_BYTES]) not in known:
                    self._known.add(prefix)

    async def _go_on_from_store(self) -> None:
        """Push what the store has got, before anything else that is live, and for a while what it still gets."""
        async with self._turn:
            self._owes_until = asyncio.get_running_loop().time() + SETTLE_S
            self._goal = None
            self._owes.set()
            while await self._look(is_to_known=False):
                pass

    async def _read_store(self) -> None:
        """Push what the store gets later.

        While something comes from the feed, what has arrived behind it is left alone: it comes from there, too, by a
        shorter way.
        """
        while True:
            await self._owes.wait()
            self._has_come = False
            await asyncio.sleep(LOOK_S)
            is_to_known, has_more = self._has_come, True
            while has_more:
                async with self._turn:
                    has_more = await self._look(is_to_known=is_to_known)
            if not self._problem and asyncio.get_running_loop().time() >= self._owes_until:
                self._goal = self._last if self._goal is None else min(self._goal, self._last)
                if self._after >= self._goal:
                    self._owes.clear()
                    self._known.clear()

    async def _look(self, *, is_to_known: bool) -> bool:
        """Push some of what the store has got since the last time; return whether to look for more at once.

        Whoever calls this has the turn.

        Args:
            is_to_known: whether to go no farther than to the last that has come from the feed.
        """
        try:
            news = await self._news(max(self._after, self._not_fresh()), is_to_known=is_to_known)
            earliest = Arrival(news.last - MAX_MISSED)
            if news.end < earliest:
                news = await self._news(earliest, is_to_known=is_to_known)
        except StoreError as error:
            self._note_problem(str(error))
            return False
        self._note_problem("")
        await self._push_missed(news)
        self._after, self._last = news.end, news.last
        return news.has_more

    async def _push_missed(self, news: News) -> None:
        """Push what is fresh."""
        fresh = (self._wall_clock() - FRESH_S) * NS
        missed = []
        for each, envelope in zip(news.messages, news.envelopes, strict=True):
            if each.timestamp >= fresh:
                missed.append(each)
                self._known.add(envelope)
        for at in range(0, len(missed), PUSHED_AT_ONCE):
            await self._push(missed[at : at + PUSHED_AT_ONCE])
            await asyncio.sleep(0)

    async def _note_ends(self) -> None:
        """Note from time to time where the store ends, until cancelled."""
        now = asyncio.get_running_loop().time
        while True:
            with contextlib.suppress(StoreError):  # then a look begins farther back
                began = now()
                self._ends.append((began, await self._end()))
                self._not_fresh()  # which forgets what is too old to be of use
            await asyncio.sleep(MARK_S)

    def _not_fresh(self) -> Arrival:
        """A place up to which nothing in the store is fresh any more, since it was there long ago."""
        long_ago = asyncio.get_running_loop().time() - FRESH_S - AHEAD_S
        while len(self._ends) > 1 and self._ends[1][0] <= long_ago:
            self._ends.popleft()
        return self._ends[0][1] if self._ends and self._ends[0][0] <= long_ago else BEFORE_ALL

    async def _end(self) -> Arrival:
        """Where the store ends."""
        try:
            return await self._messages.end(of=self._identity)
        except OtherStore as other:
            self._follow(other)
            return await self._messages.end(of=self._identity)

    def _follow(self, other: OtherStore) -> None:
        self._identity = other.identity
        self._after = BEFORE_ALL
        self._ends.clear()

    async def _news(self, after: Arrival, *, is_to_known: bool = False) -> News:
        """What has arrived after a place; from the beginning, if the store is another by now."""
        try:
            return await self._messages.news(after, of=self._identity, known=self._known.all, is_to_known=is_to_known)
        except OtherStore as other:
            self._follow(other)
            return await self._messages.news(BEFORE_ALL, of=self._identity)

    async def _push(self, messages: Sequence[EncodedMessage | None]) -> None:
        """Push those that were not pushed yet. Whoever calls this has the turn."""
        began = time.perf_counter()  # the loop's own clock stands still amidst an iteration of uvloop
        for message in messages:
            if message is None or message.hash in self._pushed.all:
                continue
            self._pushed.add(message.hash)
            for _ in self._filters.push(message.encoded, message.content_topic):
                if time.perf_counter() - began >= MAX_PUSHING_S:
                    await asyncio.sleep(0)
                    began = time.perf_counter()

    def _note_problem(self, problem: str) -> None:
        if problem and problem != self._problem:
            log.error("missed messages not pushed error=%r", problem)
        self._problem = problem
