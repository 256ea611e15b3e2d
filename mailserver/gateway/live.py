"""From live envelopes to pushes: what the daemon accepts, each message once.

Where the feed has left something out, the store has it: what arrived there in the meantime is pushed from there, if it
is still fresh.
"""

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable, Sequence

from mailserver.errors import DecodeError, StoreError
from mailserver.feed_socket.client import FeedClient, Gap
from mailserver.feed_socket.frames import FeedEnvelope
from mailserver.gateway.filter_service import FilterService
from mailserver.gateway.index.mapping import MappedMessage
from mailserver.gateway.index.message_store import MessageStore
from mailserver.ids.envelopes import NS, content_topic_of
from mailserver.ids.waku_message import MessageHash
from mailserver.metrics.gateway import GatewayMetrics
from mailserver.store.message_ids import Arrival
from mailserver.waku.envelope import Envelope, EnvelopeHash, decode_envelope

log = logging.getLogger(__name__)

MAX_PUSHED = 65_536
"""How many messages are remembered that were pushed, so that none is pushed again from the store."""

FRESH_S = 120
"""What was made longer ago is not pushed when the feed has left it out: it is history, which clients ask for."""


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
        self._pushed: OrderedDict[MessageHash, None] = OrderedDict()
        self._arrival: Arrival | None = None  # up to here, what arrived in the store was pushed
        self.missed = 0

    async def run(self) -> None:
        """Push what is live until cancelled."""
        while True:
            item = await self._feed.next()
            try:
                if isinstance(item, Gap):
                    await self._push_missed(item)
                else:
                    await self._push_live(item)
            except StoreError as error:
                log.error("live messages not pushed error=%r", str(error))

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

    async def _push_missed(self, gap: Gap) -> None:
        """Push what the store has got since the last time, or from now on, if this is the first time."""
        self.missed += gap.missed or 0
        follower = self._messages.follower
        await follower.catch_up()
        after, self._arrival = self._arrival, follower.progress.arrival
        if after is None:
            return
        fresh = (self._wall_clock() - FRESH_S) * NS
        is_all = False
        while not is_all:
            news = await self._messages.news(after)
            self._push([each for each in news.messages if (each.message.timestamp or 0) >= fresh])
            after, is_all = news.end, news.is_all

    def _push(self, messages: Sequence[MappedMessage | None]) -> None:
        for mapped in messages:
            if mapped is None or mapped.hash in self._pushed:
                continue
            self._pushed[mapped.hash] = None
            if len(self._pushed) > MAX_PUSHED:
                self._pushed.popitem(last=False)
            self._filters.push(mapped.message.encode(), mapped.message.content_topic)


def _decode(raw: bytes) -> Envelope | None:
    try:
        return decode_envelope(raw)
    except DecodeError:  # the daemon sends none such
        return None
