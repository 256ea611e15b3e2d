"""From live envelopes to pushes: what the daemon accepts, each message once.

Where the feed has left something out, the store has it, or gets it within moments: what arrives there is pushed from
there for a while, if it is still fresh. What has been pushed from the feed is not pushed again.
"""

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Callable, Sequence

from mailserver.errors import DecodeError, StoreError
from mailserver.feed_socket.client import FeedClient, Gap
from mailserver.feed_socket.frames import FeedEnvelope
from mailserver.gateway.filter_service import FilterService
from mailserver.gateway.index.mapping import MappedMessage
from mailserver.gateway.index.message_store import MessageStore, News
from mailserver.ids.envelopes import NS, content_topic_of
from mailserver.ids.waku_message import MessageHash
from mailserver.metrics.gateway import GatewayMetrics
from mailserver.store.arrivals import OtherStore
from mailserver.store.message_ids import BEFORE_ALL, Arrival
from mailserver.waku.envelope import Envelope, EnvelopeHash, decode_envelope

log = logging.getLogger(__name__)

FRESH_S = 120
"""What was made longer ago is not pushed when the feed has left it out: it is history, which clients ask for."""

SETTLE_S = 10.0
"""How long the store is looked at when the feed has left something out: what was accepted just before that gets into
the store a little later, when the disk has taken it."""

LOOK_S = 0.25
"""How often it is looked at meanwhile."""

MAX_MISSED = 65_536
"""How far back it is looked through: some 2 s of work."""

PUSHED_AT_ONCE = 50
"""How many of the missed are pushed before sockets get their turn: more might not fit into what may wait for one."""

MAX_PUSHED = 2 * MAX_MISSED
"""How many messages are remembered that were pushed, so that none is pushed again from the store."""


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
        self._pushed: set[MessageHash] = set()
        self._pushed_order: deque[MessageHash] = deque()  # with the set, little more than half of an OrderedDict
        self._identity = ""  # of the store
        self._after = BEFORE_ALL  # the place in it behind which the next look begins
        self._turn = asyncio.Lock()  # whoever pushes has it, so that messages stay in order
        self._owes = asyncio.Event()  # whether the store is to be looked at
        self._owes_until = 0.0
        self._problem = ""
        self.missed = 0
        """How many envelopes the feed has left out."""

    async def begin(self) -> None:
        """Note where the store ends, before the first client comes: what is there already is history.

        If there is no store yet, all that it will have is news.
        """
        with contextlib.suppress(StoreError):
            self._after = (await self._news(BEFORE_ALL)).last

    async def run(self) -> None:
        """Push what is live until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._read_feed(), name="live feed")
            tasks.create_task(self._read_store(), name="live store")

    async def _read_feed(self) -> None:
        while True:
            item = await self._feed.next()
            if isinstance(item, Gap):
                self.missed += item.missed or 0
                await self._go_on_from_store()
                continue
            try:
                async with self._turn:
                    await self._push_live(item)
            except StoreError as error:
                log.error("live messages not pushed error=%r", str(error))
                await self._go_on_from_store()

    async def _push_live(self, batch: Sequence[FeedEnvelope]) -> None:
        """Push a batch of the feed. Messages that nobody wants are not even made."""
        began = asyncio.get_running_loop().time()
        wanted: list[tuple[Envelope, EnvelopeHash]] = []
        for envelope_hash, raw in batch:
            envelope = _decode(raw)
            if envelope is not None and self._filters.wants(content_topic_of(envelope.topic)):
                wanted.append((envelope, envelope_hash))
        if wanted:
            self._push(await self._messages.messages_of(wanted))
            self._metrics.push_delay.observe(asyncio.get_running_loop().time() - began)

    async def _go_on_from_store(self) -> None:
        """Push what the store has got, before anything else that is live, and for a while what it still gets."""
        self._owes_until = asyncio.get_running_loop().time() + SETTLE_S
        self._owes.set()
        await self._look()

    async def _read_store(self) -> None:
        while True:
            await self._owes.wait()
            await asyncio.sleep(LOOK_S)
            await self._look()

    async def _look(self) -> None:
        async with self._turn:
            began = asyncio.get_running_loop().time()
            try:
                await self._push_news()
            except StoreError as error:
                self._note_problem(str(error))
                return
            self._note_problem("")
            if began >= self._owes_until:
                self._owes.clear()

    async def _push_news(self) -> None:
        """Push what the store has got since the last time."""
        news = await self._news(self._after)
        earliest = Arrival(news.last - MAX_MISSED)
        if news.end < earliest:
            news = await self._news(earliest)
        while True:
            fresh = (self._wall_clock() - FRESH_S) * NS
            missed = [each for each in news.messages if (each.message.timestamp or 0) >= fresh]
            for at in range(0, len(missed), PUSHED_AT_ONCE):
                self._push(missed[at : at + PUSHED_AT_ONCE])
                await asyncio.sleep(0)
            self._after = news.end
            if news.end >= news.last:
                return
            news = await self._news(news.end)

    async def _news(self, after: Arrival) -> News:
        """What has arrived after a place; from the beginning, if the store is another by now."""
        try:
            return await self._messages.news(after, of=self._identity)
        except OtherStore as other:
            self._identity = other.identity
            return await self._messages.news(BEFORE_ALL, of=other.identity)

    def _push(self, messages: Sequence[MappedMessage | None]) -> None:
        for mapped in messages:
            if mapped is None or mapped.hash in self._pushed:
                continue
            self._pushed.add(mapped.hash)
            self._pushed_order.append(mapped.hash)
            if len(self._pushed_order) > MAX_PUSHED:
                self._pushed.discard(self._pushed_order.popleft())
            self._filters.push(mapped.message.encode(), mapped.message.content_topic)

    def _note_problem(self, problem: str) -> None:
        if problem and problem != self._problem:
            log.error("missed messages not pushed error=%r", problem)
        self._problem = problem


def _decode(raw: bytes) -> Envelope | None:
    try:
        return decode_envelope(raw)
    except DecodeError:  # the daemon sends none such
        return None
