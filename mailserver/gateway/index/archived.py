"""The messages that the archive has: indexed once, and read from there when the store does not have them any more.

The index names every message of the archive, day by day and month by month, as the compaction publishes them
(`schema.ARCHIVED`). So a query finds them in the one order of store v3, by topic, time, hash and cursor, whatever is
pruned, compacted or merged meanwhile. Their envelopes are looked for in the archive by second and topic, and count as
there only when they were read, and have the hash that was asked for.

A message leaves the index of the store only after what is published of the archive is indexed (`follower`). So none is
missed between the two. What was archived while nobody followed the archive is `owed` until it is indexed.
"""

import asyncio
import contextlib
import logging
import sqlite3
from collections.abc import AsyncIterator, Collection, Container, Sequence
from functools import partial
from typing import Any, Protocol

from mailserver.errors import DecodeError
from mailserver.gateway.index.cache import EntryCache
from mailserver.gateway.index.database import IndexDatabase
from mailserver.gateway.index.mapping import MappedMessage, map_envelopes
from mailserver.gateway.index.search import MessageKey, whereabouts
from mailserver.gateway.index.values import StoredEntry
from mailserver.gateway.index.writing import (
    PeriodName,
    WalkedPeriod,
    forget_periods,
    index_archived,
    read_walked,
    remove_archived,
)
from mailserver.ids.envelopes import NS
from mailserver.store.engine import work
from mailserver.store.interface import Payer
from mailserver.waku.envelope import EnvelopeHash, Topic, decode_envelope

log = logging.getLogger(__name__)

STEP_BYTES = 4 * 1024 * 1024
"""How many bytes of envelopes are indexed in one transaction: some 8,000 of the usual length."""

ORIGINAL_SKEW_S = 120
"""No original's time is further from that of its envelope: clocks may be off by 20 s, and the envelope is sealed when
its message arrives."""

_MAPPED = 50
"""Work: to decode an envelope and to hash its message."""


class ArchivedPeriod(Protocol):
    """A day or a month of the archive, as one run has written it. `created`: when its first and its last envelope were
    created, Unix seconds, inclusive."""

    @property
    def name(self) -> str: ...

    @property
    def run(self) -> str: ...

    @property
    def created(self) -> tuple[int, int]: ...


class ReadableArchive(Protocol):
    """The archive: `mailserver.archive.reading.source.ArchiveSource`, which says what each method does and raises."""

    @property
    def problem(self) -> str:
        """What was wrong with reading it lately; "" if nothing was."""

    async def periods(self) -> Sequence[Any]:
        """Its periods: each an ArchivedPeriod, which `walk` takes."""

    def walk(self, period: Any, first: int) -> AsyncIterator[tuple[Sequence[bytes], int, bool]]:
        """Read all envelopes of a period, some at a time."""

    def of_seconds(
        self, topics: Collection[Topic], seconds: Collection[int], *, known: Container[EnvelopeHash], payer: Payer
    ) -> AsyncIterator[Sequence[tuple[EnvelopeHash, bytes | None]]]:
        """Read the envelopes of some topics that were created in some seconds, some at a time."""


class ArchivedMessages:
    """The messages of one archive."""

    def __init__(self, network_topic: str, database: IndexDatabase, archive: ReadableArchive) -> None:
        self._network_topic = network_topic
        self._database = database
        self._archive = archive
        self._cache: EntryCache[EnvelopeHash] = EntryCache()
        self._indexing = asyncio.Lock()
        self._owed: dict[PeriodName, tuple[int, int]] | None = None

    @property
    def problem(self) -> str:
        """What was wrong with reading the archive lately; "" if nothing was."""
        return self._archive.problem

    @property
    def owed(self) -> int | None:
        """How many days and months are not indexed yet that had gone from the store before this one began to follow the
        archive; None: that is not known yet."""
        return None if self._owed is None else len(self._owed)

    def owes(self, low: int, high: int, removed_until: int) -> bool:
        """Whether there may be messages between two times, in Unix nanoseconds, that are not indexed yet.

        Args:
            removed_until: as for `index`.
        """
        owed = [(0, removed_until)] if self._owed is None else self._owed.values()
        return any(
            (first - ORIGINAL_SKEW_S) * NS <= high and low < (last + 1 + ORIGINAL_SKEW_S) * NS for first, last in owed
        )

    def begin_anew(self) -> None:
        """Another store is followed, or envelopes have gone from it that were not indexed: what it lacks is not known
        yet."""
        self._owed = None

    async def index(self, removed_until: int) -> None:
        """Index all that was published since the last time.

        Args:
            removed_until: nothing that was created later than this was ever removed from the store, in Unix seconds.
        Raises:
            StoreError: the archive or the index cannot be used. What is indexed by then stays.
        """
        async with self._indexing:
            walked = await self._database.write(read_walked)
            periods = {(each.name, each.run): each for each in await self._archive.periods()}
            left = {name: period for name, period in periods.items() if name not in walked or not walked[name].is_all}
            if self._owed is None:
                self._owed = {
                    name: (period.created[0], min(period.created[1], removed_until))
                    for name, period in left.items()
                    if period.created[0] <= removed_until
                }
            for name, period in left.items():
                await self._index(name, period, walked.get(name, WalkedPeriod(0, is_all=False)).row_groups)
            if replaced := walked.keys() - periods.keys():
                await self._database.write(partial(forget_periods, periods=replaced))
            if self._owed is not None:
                self._owed = {name: created for name, created in self._owed.items() if name in left}

    async def _index(self, name: PeriodName, period: ArchivedPeriod, row_groups: int) -> None:
        """Index a period from a row group on."""
        raws: list[bytes] = []
        total = count = 0
        async with contextlib.aclosing(self._archive.walk(period, row_groups)) as parts:  # type: ignore[type-var]
            async for some, end, is_all in parts:
                raws += some
                total += sum(map(len, some))
                if total < STEP_BYTES and not is_all:
                    continue
                await self._database.write(
                    partial(
                        index_archived,
                        network_topic=self._network_topic,
                        period=name,
                        walked=WalkedPeriod(end, is_all),
                        raws=raws,
                    )
                )
                count += len(raws)
                raws, total = [], 0
                if is_all:
                    log.info("archive is indexed period=%s envelopes=%d", name[0], count)
                    if self._owed is not None:
                        self._owed.pop(name, None)

    async def read(
        self, keys: Sequence[MessageKey], max_bytes: int, payer: Payer
    ) -> dict[MessageKey, StoredEntry | None]:
        """Read messages from the archive; those that it does not have are left out.

        The first that is there is read, and more as long as all of them fit into `max_bytes`. The others that are there
        have None.

        Raises:
            StoreError: the archive or the index cannot be read.
        """
        find, most = partial(whereabouts, keys=keys), work.STATEMENT + work.PAIR * len(keys)
        places = await self._database.read(find, most, payer)
        if not places:
            return {}
        found = _Found(keys, max_bytes)
        topics, seconds = {where.topic for _, where in places}, {where.created for _, where in places}
        parts = self._archive.of_seconds(topics, seconds, known=self._cache, payer=payer)
        async with contextlib.aclosing(parts) as reading:  # type: ignore[type-var]
            async for some in reading:
                for entry in self._cache.find(whole for whole, raw in some if raw is None).values():
                    found.take(entry)
                for whole, mapped in await self._mapped([(whole, raw) for whole, raw in some if raw], payer):
                    if mapped.hash in found.wanted:
                        entry = StoredEntry.of(mapped.hash, mapped.message, self._network_topic)
                        self._cache.keep({whole: entry})
                        found.take(entry)
                if not found.wanted:
                    break
        return found.entries

    async def _mapped(
        self, some: Sequence[tuple[EnvelopeHash, bytes]], payer: Payer
    ) -> list[tuple[EnvelopeHash, MappedMessage]]:
        """The messages of envelopes; those that have none are left out."""
        if not some:
            return []
        maps = partial(_map, network_topic=self._network_topic, raws=some)
        return await self._database.read(maps, work.STATEMENT + _MAPPED * len(some), payer)

    async def forget(self, keys: Sequence[MessageKey], now: int) -> None:
        """Forget messages that neither store nor archive has any more.

        Raises:
            StoreError: the index cannot be written.
        """
        await self._database.write(partial(remove_archived, keys=keys, now=now))


class _Found:
    """What was found of some messages. `wanted`: what was not; `entries`: see `ArchivedMessages.read`."""

    def __init__(self, keys: Sequence[MessageKey], max_bytes: int) -> None:
        self.wanted: dict[bytes, int] = {key.hash: at for at, key in enumerate(keys)}
        self.entries: dict[MessageKey, StoredEntry | None] = {}
        self._keys = keys
        self._max_bytes = max_bytes
        self._held: dict[int, StoredEntry] = {}
        self._bytes = 0
        self._cut = len(keys)

    def take(self, entry: StoredEntry) -> None:
        """Take an entry, if it is wanted. Those that come last in order give way."""
        at = self.wanted.pop(entry.message_hash, None)
        if at is None:
            return
        self.entries[self._keys[at]] = None
        if at > self._cut:
            return
        self.entries[self._keys[at]] = self._held[at] = entry
        self._bytes += len(entry.encoded)
        while self._bytes > self._max_bytes and len(self._held) > 1:
            self._cut = max(self._held)
            self._bytes -= len(self._held.pop(self._cut).encoded)
            self.entries[self._keys[self._cut]] = None


def _map(
    connection: sqlite3.Connection, network_topic: str, raws: Sequence[tuple[EnvelopeHash, bytes]]
) -> list[tuple[EnvelopeHash, MappedMessage]]:
    envelopes = []
    for whole, raw in raws:
        with contextlib.suppress(DecodeError):
            envelopes.append((decode_envelope(raw), whole))
    mapped = map_envelopes(connection, network_topic, envelopes)
    return [(whole, each) for (_, whole), each in zip(envelopes, mapped, strict=True) if each is not None]
