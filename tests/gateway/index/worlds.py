"""A store that the daemon's writer writes, the index that follows it, and what both should say, in plain Python."""

import contextlib
import time
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from mailserver.gateway.index.message_store import MessageStore, open_messages
from mailserver.gateway.index.schema import INDEX_FILE
from mailserver.gateway.index.values import MessagePage, PageEntry, StoredEntry
from mailserver.ids.envelopes import NS, content_topic_of, message_of, topic_of
from mailserver.ids.muid import DEFAULT_NETWORK_TOPIC, MAX_METADATA_BYTES, Muid, muid
from mailserver.ids.waku_message import MessageHash, WakuMessage
from mailserver.store.interface import NewEnvelope, Store
from mailserver.store.retention import Surplus
from mailserver.waku.envelope import Envelope, encode_envelope
from mailserver.waku2.store_query import WakuMessageKeyValue, decode_key_value
from mailserver.waku2.store_rules import StoreQuery
from tests.store.engines import Engine, SqliteEngine
from tests.store.samples import NEWS, START, change

TTL = 50
NEWS_TOPIC = content_topic_of(NEWS)

ADDED = {
    "DROP TABLE archived": 2,
    "DROP TABLE archived_periods": 2,
    "DROP INDEX originals_by_meta": 3,
    "ALTER TABLE progress DROP COLUMN swept": 5,
}
"""What takes away what migrations have added, and which version has it first."""


def envelope(number: int = 0, *, created: int = START, topic: bytes = NEWS, size: int = 40) -> Envelope:
    """The envelope with this number; another number gives another hash."""
    data = number.to_bytes(8, "big").ljust(size, b".")
    return encode_envelope(created + TTL, TTL, topic, data, number)


def envelopes(count: int, *, first: int = 0, created: int = START) -> list[Envelope]:
    """Envelopes numbered from `first`, one a second."""
    return [envelope(number, created=created + number) for number in range(first, first + count)]


def new(each: Envelope, received: int | None = None) -> NewEnvelope:
    return NewEnvelope(each.created if received is None else received, each.created, each.topic, each.hash(), each.raw)


def original(number: int, *, timestamp: int, topic: bytes = NEWS, meta: bytes = b"", **rest: object) -> WakuMessage:
    """A message as a client of v2 sends it."""
    data = number.to_bytes(8, "big").ljust(40, b"-")
    message = WakuMessage(data, content_topic_of(topic), timestamp=timestamp, meta=meta)  # type: ignore[arg-type]
    return replace(message, **rest)  # type: ignore[arg-type]


def bridged(message: WakuMessage, created: int = START, nonce: int = 0) -> Envelope:
    """The envelope that is made of a message."""
    return encode_envelope(created + TTL, TTL, topic_of(message.content_topic), message.payload, nonce)


def stored(
    message: WakuMessage, network_topic: str = DEFAULT_NETWORK_TOPIC, *, muid: Muid | None = None
) -> StoredEntry:
    name = message.hash(network_topic)
    return StoredEntry(name, WakuMessageKeyValue(name, message, network_topic, muid).encode())


_ANYTHING = StoreQuery(
    include_data=True,
    message_hashes=(),
    pubsub_topic=None,
    content_topics=(),
    time_start=None,
    time_end=None,
    cursor=None,
    is_forward=True,
    limit=20,
)


def query_for(**wanted: Any) -> StoreQuery:
    """A query for everything, forward, in pages of 20, but for what is named."""
    return replace(_ANYTHING, **wanted)


def hashes(page: MessagePage) -> list[MessageHash]:
    return [each.message_hash for each in page.entries]


@dataclass
class Model:
    """The messages of the envelopes that are in the store, and those that were."""

    arrived: list[tuple[int, int, WakuMessage]] = field(default_factory=list)
    known: dict[MessageHash, WakuMessage] = field(default_factory=dict)

    @property
    def messages(self) -> dict[MessageHash, WakuMessage]:
        """Those that are there and may be stored."""
        return {message.hash(DEFAULT_NETWORK_TOPIC): message for *_, message in self.arrived if not message.ephemeral}

    def add(self, message: WakuMessage, received: int) -> None:
        """An envelope arrives."""
        self.arrived.append((received, len(self.known), message))
        self.known[message.hash(DEFAULT_NETWORK_TOPIC)] = message

    def prune(self, count: int) -> None:
        """The oldest by reception go."""
        self.arrived.sort(key=lambda each: each[:2])
        del self.arrived[:count]

    def answer(self, query: StoreQuery) -> list[PageEntry]:
        """Everything that a query wants, without its limit, in the order of its direction."""
        messages = self.messages
        found = sorted(
            ((message.timestamp or 0, name) for name, message in messages.items() if _wants(query, name, message)),
            reverse=not query.is_forward,
        )
        if query.cursor is not None:
            place = self.known[query.cursor].timestamp or 0, query.cursor
            found = [each for each in found if (each > place if query.is_forward else each < place)]
        return [_told(query, messages[name]) for _, name in found]

    def page(self, query: StoreQuery) -> MessagePage:
        """What a store answers."""
        everything = self.answer(query)
        found = everything[: query.limit]
        cursor = found[-1].message_hash if len(everything) > query.limit else None
        return MessagePage(found if query.is_forward else found[::-1], cursor)


def muid_of(message: WakuMessage, network_topic: str = DEFAULT_NETWORK_TOPIC) -> Muid | None:
    """The MUID of a message, if it has one."""
    if not 0 < len(message.meta) <= MAX_METADATA_BYTES:
        return None
    return muid(network_topic, message.content_topic, message.meta, message.payload)


def _told(query: StoreQuery, message: WakuMessage) -> PageEntry:
    name = muid_of(message) if query.include_muids or muid_of(message) in query.muids else None
    if query.include_data:
        return stored(message, muid=name)
    return WakuMessageKeyValue(message.hash(DEFAULT_NETWORK_TOPIC), muid=name)


def _wants(query: StoreQuery, name: MessageHash, message: WakuMessage) -> bool:
    if query.message_hashes or query.muids:
        return name in query.message_hashes or muid_of(message) in query.muids
    timestamp = message.timestamp or 0
    return (
        (not query.content_topics or message.content_topic in query.content_topics)
        and (query.time_start is None or query.time_start <= timestamp)
        and (query.time_end is None or timestamp < query.time_end)
    )


@dataclass
class World:
    """A store that is open for writing, and what follows it."""

    folder: Path
    store: Store
    messages: MessageStore
    engine: Engine
    model: Model = field(default_factory=Model)

    async def put(self, *some: Envelope, received: int | None = None) -> None:
        """Envelopes of v1 arrive."""
        await self.store.put([new(each, received) for each in some])
        for each in some:
            self.model.add(message_of(each), received or each.created)

    async def send(
        self, message: WakuMessage, created: int = START, nonce: int = 0, received: int | None = None
    ) -> Envelope:
        """A client of v2 sends a message."""
        each = bridged(message, created, nonce)
        await self.messages.keep_original(each, message)
        await self.store.put([new(each, received)])
        self.model.add(message, received or created)
        return each

    async def prune(self, count: int) -> None:
        """Delete so many envelopes, the oldest by reception first."""
        await self.store.prune(Surplus(2**33, count))
        self.model.prune(count)

    async def walk(self, query: StoreQuery) -> list[PageEntry]:
        """All pages of a query, in the order of its direction."""
        found: list[PageEntry] = []
        while True:
            page = await self.messages.query(query)
            found += page.entries if query.is_forward else page.entries[::-1]
            if page.cursor is None:
                return found
            query = replace(query, cursor=page.cursor)


@contextlib.asynccontextmanager
async def opened_messages(
    folder: Path,
    network_topic: str = DEFAULT_NETWORK_TOPIC,
    wall_clock: Callable[[], float] = time.time,
    engine: Engine | None = None,
) -> AsyncIterator[MessageStore]:
    """What follows the store that an engine keeps, or the file in a folder, as another process opens it."""
    async with (
        (engine or SqliteEngine(folder)).follow(network_topic) as arrivals,
        open_messages(folder / INDEX_FILE, arrivals, network_topic, wall_clock=wall_clock) as messages,
    ):
        yield messages


@contextlib.asynccontextmanager
async def opened_world(
    folder: Path, wall_clock: Callable[[], float] = time.time, engine: Engine | None = None
) -> AsyncIterator[World]:
    engine = engine or SqliteEngine(folder)
    async with (
        engine.open() as store,
        opened_messages(folder, wall_clock=wall_clock, engine=engine) as messages,
    ):
        yield World(folder, store, messages, engine)


def all_of(some: Iterable[Envelope]) -> Sequence[StoredEntry]:
    """The messages of envelopes of v1, in the order of store v3."""
    found = [(message_of(each).timestamp, stored(message_of(each))) for each in some]
    return [entry for _, entry in sorted(found, key=lambda each: (each[0], each[1].message_hash))]


def messages_in(entries: Iterable[PageEntry]) -> list[WakuMessage | None]:
    """The messages of entries; None where there is the hash alone."""
    return [decode_key_value(each.encode()).message for each in entries]


def at(second: int) -> int:
    """Seconds after START in Unix nanoseconds."""
    return (START + second) * NS


def put_back(path: Path, version: int) -> None:
    """Make an index one of an earlier version."""
    change(path, *(drop for drop, since in ADDED.items() if since > version), f"PRAGMA user_version = {version}")
