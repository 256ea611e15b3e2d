"""The messages of a store, as clients of v2 ask for them: store v3 over a store of envelopes (13/WAKU2-STORE).

The index says where messages are; the store has their envelopes. Whoever asks waits until the index has what was stored
before. What was removed from the store is read from the archive, if there is one. What neither has, but still the
index, is left out, and the page goes on behind it.

What a client of v2 sent differs from the message of its envelope in time and meta, and so in its hash. Its original is
kept before the envelope is posted. From then on the envelope stands for that message, wherever it is met.
"""

import contextlib
import sqlite3
import time
from collections.abc import AsyncIterator, Callable, Container, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

from mailserver.gateway.index.archived import ArchivedMessages, ReadableArchive
from mailserver.gateway.index.by_muid import MuidSearch, muids_of, with_muid
from mailserver.gateway.index.cache import EntryCache
from mailserver.gateway.index.database import open_database
from mailserver.gateway.index.entries import encoded_messages
from mailserver.gateway.index.follower import Follower
from mailserver.gateway.index.mapping import Original
from mailserver.gateway.index.page import CHECK, PageSearch, PageSources
from mailserver.gateway.index.schema import PREFIX_BYTES
from mailserver.gateway.index.search import find_hashes
from mailserver.gateway.index.values import EncodedMessage, MessagePage
from mailserver.gateway.index.writing import forget, keep
from mailserver.ids.muid import Muid
from mailserver.ids.waku_message import MessageHash, WakuMessage
from mailserver.store.arrivals import ArrivalLog, Arrived
from mailserver.store.engine import work
from mailserver.store.interface import OURSELVES, GoesOn, Payer, always
from mailserver.store.message_ids import BEFORE_ALL, Arrival
from mailserver.waku.envelope import Envelope, EnvelopeHash
from mailserver.waku.envelope_rows import EnvelopeFields
from mailserver.waku2.store_rules import StoreQuery

MAX_NEWS = 1000
"""How many messages are read at once in the order of arrival."""


class News(NamedTuple):
    """Messages in the order of arrival. `end`: what follows begins behind it. `last`: the last place in the store.

    `envelopes`: of each, the first PREFIX_BYTES of its envelope's hash. `has_more`: whether more can be read at once.
    """

    messages: Sequence[EncodedMessage]
    envelopes: Sequence[bytes]
    end: Arrival
    last: Arrival
    has_more: bool


class MessageStore:
    """The messages of one network topic. Made by `open_messages`.

    All methods raise StoreError if the store or the index cannot be used.
    """

    def __init__(self, sources: PageSources) -> None:
        self._sources = sources
        self._database = sources.database
        self.archived = sources.archived
        """What the archive has; None: no archive is read."""
        self.follower = sources.follower
        """What indexes what arrives. Its `run` has to run: what nobody asks for is indexed and removed by it."""

    async def query(self, query: StoreQuery, *, payer: Payer = OURSELVES, goes_on: GoesOn = always) -> MessagePage:
        """Find a page of messages. All that was stored before this call is found.

        Args:
            payer: for whom to read, as in `store.interface.HistorySource.find`.
            goes_on: whether to go on after this much work. If not, the page ends early, with a cursor, even if nothing
                was found.
        Raises:
            UnknownCursor: there is no message of this hash.
            NotIndexedYet: too much is not indexed yet.
            TooManyAlike: to tell which messages have the MUIDs that are asked for takes more than `goes_on` allows.
        """
        if query.has_nothing(self._sources.network_topic):
            return MessagePage([], None)
        await self.follower.catch_up()
        if query.muids or query.include_muids:
            return await self._named_page(query, payer, goes_on)
        return await PageSearch(self._sources, query, payer, goes_on).page()

    async def _named_page(self, query: StoreQuery, payer: Payer, goes_on: GoesOn) -> MessagePage:
        """A page whose messages are asked for by MUID, or told with their MUIDs."""
        sources = self._sources
        names: dict[MessageHash, Muid] = {}
        hashes = query.message_hashes
        if query.muids:
            names = await MuidSearch(sources, payer, goes_on).find(query.muids)
            hashes = tuple(dict.fromkeys((*hashes, *names)))
            if not hashes:
                return MessagePage([], None)
        search = replace(query, message_hashes=hashes, include_data=query.include_data or query.include_muids)
        page = await PageSearch(sources, search, payer, goes_on).page()
        if query.include_muids:
            names = await muids_of(page.entries, sources.network_topic, payer)
        entries = [
            with_muid(each, names.get(each.message_hash), include_data=query.include_data) for each in page.entries
        ]
        return MessagePage(entries, page.cursor)

    async def is_stored(self, name: MessageHash) -> bool:
        """Whether a message is stored: then it is not to be sent on again. All that was stored before this call counts.

        Raises:
            NotIndexedYet: too much is not indexed yet.
        """
        await self.follower.catch_up()
        finds = partial(find_hashes, hashes=[name], where=self._sources.where)
        keys = await self._database.read(finds, work.STATEMENT + work.PAIR)
        return bool(keys)

    async def messages_of(
        self, envelopes: Sequence[tuple[EnvelopeFields, EnvelopeHash]]
    ) -> list[EncodedMessage | None]:
        """The messages of live envelopes, in their order; None for one that has none."""
        maps = partial(encoded_messages, network_topic=self._sources.network_topic, envelopes=envelopes)
        return await self._database.read(maps, work.STATEMENT + CHECK * len(envelopes))

    async def news(self, after: Arrival, *, of: str, known: Container[bytes] = (), is_to_known: bool = False) -> News:
        """The messages of the first envelopes that arrived in the store after a place, whether they are indexed or not.

        Whoever pushes messages finds here what the live feed has missed. A message that was posted twice, in two
        envelopes, is in it twice.

        Args:
            after: `end` of the news before. of: the identity of the store whose place it is.
            known: first PREFIX_BYTES of the hashes of envelopes that are left out.
            is_to_known: whether to go no farther than to the last that is known.
        Raises:
            OtherStore: the store is another.
        """
        arrived = await self._sources.arrivals.after(after, MAX_NEWS, of=of)
        maps = partial(
            _map_arrived,
            network_topic=self._sources.network_topic,
            arrived=arrived,
            known=known,
            is_to_known=is_to_known,
        )
        messages, envelopes, end = await self._database.read(maps, work.STATEMENT + CHECK * MAX_NEWS)
        return News(messages, envelopes, end or after, arrived.last, end == arrived.end < arrived.last)

    async def end(self, *, of: str) -> Arrival:
        """The last place in the store.

        Args:
            of: as of `news`.
        Raises:
            OtherStore: the store is another.
        """
        return (await self._sources.arrivals.after(BEFORE_ALL, 0, of=of)).last

    async def keep_original(self, envelope: Envelope, message: WakuMessage) -> None:
        """Keep what a message says beyond the envelope that was made of it. It is on disk when this returns.

        Args:
            message: has a timestamp. Its content topic and payload are those of the envelope.
        """
        keeps = partial(
            keep,
            envelope=envelope.hash(),
            created=envelope.created,
            message=message.hash(self._sources.network_topic),
            original=Original.of(message),
        )
        await self._database.write(keeps)

    async def forget_original(self, envelope: EnvelopeHash) -> None:
        """Forget the original of an envelope that was refused. One that is in the store stays."""
        await self._database.write(partial(forget, envelope=envelope))


def _map_arrived(
    connection: sqlite3.Connection, network_topic: str, arrived: Arrived, known: Container[bytes], *, is_to_known: bool
) -> tuple[list[EncodedMessage], list[bytes], Arrival | None]:
    """The messages of what has arrived, what names their envelopes, and how far they go; None: nowhere."""
    wanted = arrived.up_to_known(known) if is_to_known else arrived
    if wanted is None:
        return [], [], None
    envelopes, _ = wanted.fields(known)
    messages = encoded_messages(connection, network_topic, [(each.fields, each.hash) for each in envelopes])
    found = [(message, each.hash[:PREFIX_BYTES]) for message, each in zip(messages, envelopes, strict=True) if message]
    return [message for message, _ in found], [prefix for _, prefix in found], wanted.end


@contextlib.asynccontextmanager
async def open_messages(
    path: Path,
    arrivals: ArrivalLog,
    network_topic: str,
    *,
    archive: ReadableArchive | None = None,
    wall_clock: Callable[[], float] = time.time,
) -> AsyncIterator[MessageStore]:
    """Open the index at `path`, for the messages of a store; make it first if there is none.

    Args:
        archive: has what was removed from the store; None: that is gone.
        network_topic: to which message hashes belong. If it is another than before, the index is made anew.
    Raises:
        StoreError: the index cannot be used.
    """
    async with open_database(path) as database:
        archived = None if archive is None else ArchivedMessages(network_topic, database, archive)
        follower = await Follower.start(database, arrivals, network_topic, wall_clock, archived)
        yield MessageStore(PageSources(network_topic, database, arrivals, follower, EntryCache(), archived))
