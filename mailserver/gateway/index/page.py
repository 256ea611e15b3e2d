"""The search for one page of messages: found in the index, read from the store or else the archive, and checked.

It goes in rounds, because what was found may be gone from the store. Each round looks up some messages in the index,
and their envelopes in the store. One more than the page holds is looked up: it tells whether there are more. Where many
in a row are gone, rounds become longer.
"""

import asyncio
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

from mailserver.errors import DecodeError
from mailserver.gateway.index.archived import ArchivedMessages
from mailserver.gateway.index.cache import EntryCache
from mailserver.gateway.index.database import IndexDatabase
from mailserver.gateway.index.entries import stored_entries
from mailserver.gateway.index.follower import Follower
from mailserver.gateway.index.mapping import Original, map_envelope
from mailserver.gateway.index.search import (
    EVERYWHERE,
    STORED,
    MessageKey,
    SearchScope,
    Where,
    find,
    find_hashes,
    original_of,
    place_of,
    scope_of,
)
from mailserver.gateway.index.values import MAX_PAGE_BYTES, MessagePage, PageEntry, StoredEntry
from mailserver.ids.waku_message import MessageHash
from mailserver.store.arrivals import ArrivalLog, Sought, StoredPlace
from mailserver.store.engine import work
from mailserver.store.interface import GoesOn, Payer
from mailserver.store.message_ids import Arrival, NotIndexedYet
from mailserver.waku.envelope import decode_envelope
from mailserver.waku2.store_query import WakuMessageKeyValue
from mailserver.waku2.store_rules import StoreQuery

MAX_ROUND_KEYS = 1000
"""How many messages a round looks up at most."""

SLICE_BYTES = 256 * 1024
"""Of so many bytes of envelopes the messages are made in one go: half a millisecond."""

CHECK = 50
"""Work: to decode the envelope of a message and to check its hash."""


@dataclass(frozen=True, slots=True)
class PageSources:
    """Where pages come from. `archived`: None if no archive is read."""

    network_topic: str
    database: IndexDatabase
    arrivals: ArrivalLog
    follower: Follower
    cache: EntryCache[MessageHash]
    archived: ArchivedMessages | None = None

    @property
    def where(self) -> Where:
        """In which tables of the index to look."""
        return STORED if self.archived is None else EVERYWHERE


class _Looked(NamedTuple):
    """What was found in the index, and what is kept of those messages that a client of v2 sent (`original_of`)."""

    keys: Sequence[MessageKey]
    originals: dict[MessageHash, tuple[int, Original]]


class PageSearch:
    """The search for one page."""

    def __init__(self, sources: PageSources, query: StoreQuery, payer: Payer, goes_on: GoesOn) -> None:
        """Search at a payer's expense.

        Args:
            goes_on: asked after each round with the work so far. If it says no, the page ends behind that round.
        """
        self._sources = sources
        self._network_topic = sources.network_topic
        self._query = query
        self._payer = replace(payer, charge=self._charge)
        self._charge_payer = payer.charge
        self._goes_on = goes_on
        self._work = 0
        self._scope: SearchScope | None = None
        self._named: Sequence[MessageKey] = ()
        self._ahead: Sequence[MessageKey] = ()
        self._whole: SearchScope | None = None
        self._last: MessageKey | None = None
        self._is_last_round = False
        self._originals: dict[MessageHash, tuple[int, Original]] = {}
        self._found: list[PageEntry] = []
        self._bytes = 0

    async def page(self) -> MessagePage:
        """Search until the page is full or nothing is left, or it may not go on.

        Raises:
            UnknownCursor: there is no message of this hash.
            NotIndexedYet: some of the archive is not indexed yet, and could be on this page.
            StoreError: the store, the archive or the index cannot be read.
        """
        count = self._lacking + 1
        while True:
            keys = self._ahead or await self._look_up(count)
            if not keys:  # as is usual where a client asks for what is new
                return self._ended(None)
            before = len(self._found)
            is_full = await self._take(keys)
            if is_full:
                return self._ended(self._last)
            if self._is_last_round and not self._ahead:
                return self._ended(None)
            looked_at = len(keys) - len(self._ahead)
            if looked_at and not self._goes_on(self._work):
                return self._ended(keys[looked_at - 1])
            is_sparse = len(self._found) - before < looked_at // 2
            count = min(MAX_ROUND_KEYS, 4 * count) if is_sparse else self._lacking + 1

    @property
    def _lacking(self) -> int:
        return self._query.limit - len(self._found)

    def _charge(self, amount: int) -> None:
        self._work += amount
        self._charge_payer(amount)

    def _ended(self, last: MessageKey | None) -> MessagePage:
        """The page, which ends with this message; None: nothing follows."""
        if self._is_owed(last):
            raise NotIndexedYet(0)
        return MessagePage(
            self._found if self._query.is_forward else self._found[::-1], None if last is None else last.hash
        )

    def _is_owed(self, last: MessageKey | None) -> bool:
        """Whether something may be missing on the page because not all of the archive is indexed yet."""
        archived, scope = self._sources.archived, self._whole
        assert scope is not None
        if archived is None or (self._query.message_hashes and len(self._found) == len(self._query.message_hashes)):
            return False
        low, high = scope.low[0], scope.high[0]
        if last is not None and not self._query.message_hashes:
            low, high = (low, last.timestamp) if scope.is_forward else (last.timestamp, high)
        return archived.owes(low, high, self._sources.follower.removed_until)

    async def _look_up(self, count: int) -> Sequence[MessageKey]:
        """The next messages that the query wants, from the index."""
        names = len(self._query.content_topics) + len(self._query.message_hashes) + 1
        most = work.STATEMENT + names * work.PAIR + count * work.ROW
        looked = await self._sources.database.read(partial(self._look, count=count), most, self._payer)
        self._is_last_round = len(looked.keys) < count
        self._originals = looked.originals
        return looked.keys

    def _look(self, connection: sqlite3.Connection, count: int) -> _Looked:
        """In a thread: what `_look_up` returns, and the originals of these."""
        query, where = self._query, self._sources.where
        if self._scope is None:
            self._scope = scope_of(query)
            if query.cursor is not None:
                self._scope = self._scope.behind(place_of(connection, query.cursor, where))
            if query.message_hashes:
                self._named = self._scope.of(find_hashes(connection, query.message_hashes, where))
            self._whole = self._scope
        if query.message_hashes:
            keys, self._named = self._named[:count], self._named[count:]
        else:
            keys = find(connection, self._scope, count, where)
            if keys:
                self._scope = self._scope.behind(keys[-1].place)
        originals = {}
        for key in keys:
            if key.arrival and key.is_original and (original := original_of(connection, key)) is not None:
                originals[key.hash] = original
        return _Looked(keys, originals)

    async def _take(self, keys: Sequence[MessageKey]) -> bool:
        """Take those of these messages that are there, as far as they are wanted. Return whether the page is full, and
        there are more. What was not looked at yet is ahead."""
        has_data, limit, found = self._query.include_data, self._query.limit, self._found
        whole = self._lacking if has_data else 0
        cached = self._sources.cache.find(key.hash for key in keys[:whole])
        bodies = await self._sources.arrivals.read(
            self._places(keys),
            whole,
            MAX_PAGE_BYTES - self._bytes,
            known={key.arrival for key in keys[:whole] if key.hash in cached} if cached else (),
            payer=self._payer,
        )
        sizes = bodies.sizes
        missing = [key for key, size in zip(keys, sizes, strict=True) if not size]
        after: Sequence[MessageKey] = ()
        if len(missing) > self._lacking and self._sources.archived is not None:
            # To read the archive takes longer, so no more of it than is wanted.
            missing = missing[: self._lacking + 1]
            end = keys.index(missing[-1]) + 1
            keys, after = keys[:end], keys[end:]
        archived = await self._archived(missing)
        if missing:
            self._sources.follower.note_missing([key for key in missing if key not in archived])
        raws = bodies.raws
        entries = cached | await self._entries([key for key in keys[: bodies.fitting] if key.arrival in raws], raws)
        self._ahead = after
        # Of a page, half of what is done here is done in this loop: so it calls nothing.
        for at, (key, size) in enumerate(zip(keys, sizes, strict=False)):
            if not size and key not in archived:
                continue
            if len(found) == limit:
                return True
            if not has_data:
                found.append(WakuMessageKeyValue(key.hash))
                self._last = key
                continue
            entry = entries.get(key.hash) if size else archived[key]
            used = size or (0 if entry is None else len(entry.encoded))
            if at < bodies.fitting if size else entry is not None:
                if found and self._bytes + used > MAX_PAGE_BYTES:
                    return True
                if entry is not None:
                    found.append(entry)
                    self._last = key
                    self._bytes += used
            elif found and (bodies.fitting < whole or not size):  # it is too long for the rest of the page
                return True
            else:
                left = zip(keys[at:], sizes[at:], strict=False)
                self._ahead = [*(key for key, size in left if size or key in archived), *after]
                return False
        return False

    def _places(self, keys: Sequence[MessageKey]) -> Sequence[Sought]:
        if not self._originals:
            return keys
        created = {name: second for name, (second, _) in self._originals.items()}
        return [StoredPlace(key.arrival, created[key.hash]) if key.hash in created else key for key in keys]

    async def _archived(self, missing: Sequence[MessageKey]) -> dict[MessageKey, StoredEntry | None]:
        """Those of these messages that the archive has, which the store has not."""
        if not missing or self._sources.archived is None:
            return {}
        return await self._sources.archived.read(missing, MAX_PAGE_BYTES - self._bytes, self._payer)

    async def _entries(
        self, keys: Sequence[MessageKey], raws: Mapping[Arrival, bytes]
    ) -> dict[MessageHash, StoredEntry]:
        """The entries of messages whose envelopes were read, but for those with another envelope than was indexed."""
        self._payer.charge(CHECK * len(keys))
        entries: dict[MessageHash, StoredEntry] = {}
        damaged: list[MessageHash] = []
        for some in _slices(keys, raws):
            if entries or damaged:
                await asyncio.sleep(0)
            names, bodies = [key.hash for key in some], [raws[key.arrival] for key in some]
            made = stored_entries(self._network_topic, names, bodies)
            if self._originals:
                made = [*map(self._original_or, names, bodies, made)]
            sound = {name: entry for name, entry in zip(names, made, strict=True) if entry is not None}
            damaged += [name for name in names if name not in sound] if len(sound) < len(names) else ()
            self._sources.cache.keep(sound)
            entries |= sound
        if damaged:
            self._sources.follower.note_damaged(damaged)
        return entries

    def _original_or(self, name: MessageHash, raw: bytes, entry: StoredEntry | None) -> StoredEntry | None:
        """The entry of what a client of v2 sent; that of its envelope, if no client has."""
        if name not in self._originals:
            return entry
        try:
            mapped = map_envelope(self._network_topic, decode_envelope(raw), self._originals[name][1])
        except DecodeError:
            return None
        if mapped is None or mapped.hash != name:
            return None
        return StoredEntry.of(name, mapped.message, self._network_topic)


def _slices(keys: Sequence[MessageKey], raws: Mapping[Arrival, bytes]) -> Iterator[list[MessageKey]]:
    """Messages in parts whose envelopes take no more than SLICE_BYTES, or that have one."""
    some: list[MessageKey] = []
    total = 0
    for key in keys:
        total += len(raws[key.arrival])
        if some and total > SLICE_BYTES:
            yield some
            some, total = [], len(raws[key.arrival])
        some.append(key)
    if some:
        yield some
