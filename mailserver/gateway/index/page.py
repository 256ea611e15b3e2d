"""The search for one page of messages: found in the index, read from the store, and checked.

It goes in rounds, because what was found may be gone from the store. Each round looks up some messages in the index,
and their envelopes in the store. One more than the page holds is looked up: it tells whether there are more. Where many
in a row are gone, rounds become longer.
"""

import asyncio
import sqlite3
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

from mailserver.errors import DecodeError
from mailserver.gateway.index.cache import EntryCache
from mailserver.gateway.index.database import Database
from mailserver.gateway.index.follower import Follower
from mailserver.gateway.index.mapping import Original, map_envelope
from mailserver.gateway.index.search import Key, Scope, find, find_hashes, original_of, place_of, scope_of
from mailserver.gateway.index.values import MAX_PAGE_BYTES, MessagePage, StoredEntry
from mailserver.ids.waku_message import MessageHash
from mailserver.store.arrivals import ArrivalLog
from mailserver.store.interface import GoesOn, Payer
from mailserver.store.message_ids import Arrival
from mailserver.store.sqlite import work
from mailserver.waku.envelope import decode_envelope
from mailserver.waku2.store_query import WakuMessageKeyValue
from mailserver.waku2.store_rules import StoreQuery

MAX_ROUND_KEYS = 1000
"""How many messages a round looks up at most."""

CHECK = 50
"""Work: to decode the envelope of a message and to check its hash, some 15 us."""


@dataclass(frozen=True, slots=True)
class Sources:
    """Where pages come from."""

    network_topic: str
    database: Database
    arrivals: ArrivalLog
    follower: Follower
    cache: EntryCache


class _Looked(NamedTuple):
    """What was found in the index, and what is kept of those messages that a client of v2 sent."""

    keys: Sequence[Key]
    originals: dict[MessageHash, Original]


class PageSearch:
    """The search for one page."""

    def __init__(self, sources: Sources, query: StoreQuery, payer: Payer, goes_on: GoesOn) -> None:
        """Search at a payer's expense.

        Args:
            goes_on: asked after each round with the work so far. If it says no, the page ends behind that round.
        """
        self._sources = sources
        self._query = query
        self._payer = replace(payer, charge=self._charge)
        self._charge_payer = payer.charge
        self._goes_on = goes_on
        self._work = 0
        self._scope: Scope | None = None
        self._named: Sequence[Key] = ()
        self._ahead: Sequence[Key] = ()
        self._is_last_round = False
        self._originals: dict[MessageHash, Original] = {}
        self._found: list[WakuMessageKeyValue] = []
        self._bytes = 0

    async def page(self) -> MessagePage:
        """Search until the page is full or nothing is left, or it may not go on.

        Raises:
            UnknownCursor: there is no message of this hash.
            StoreError: the store or the index cannot be read.
        """
        count = self._lacking + 1
        while True:
            keys = self._ahead or await self._look_up(count)
            before = len(self._found)
            is_full = await self._take(keys)
            if is_full:
                return self._ended(self._found[-1].message_hash)
            if self._is_last_round and not self._ahead:
                return self._ended(None)
            looked_at = len(keys) - len(self._ahead)
            if looked_at and not self._goes_on(self._work):
                return self._ended(keys[looked_at - 1].hash)
            is_sparse = len(self._found) - before < looked_at // 2
            count = min(MAX_ROUND_KEYS, 4 * count) if is_sparse else self._lacking + 1

    @property
    def _lacking(self) -> int:
        return self._query.limit - len(self._found)

    def _charge(self, amount: int) -> None:
        self._work += amount
        self._charge_payer(amount)

    def _ended(self, cursor: MessageHash | None) -> MessagePage:
        return MessagePage(self._found if self._query.is_forward else self._found[::-1], cursor)

    async def _look_up(self, count: int) -> Sequence[Key]:
        """The next messages that the query wants, from the index."""
        names = len(self._query.content_topics) + len(self._query.message_hashes) + 1
        most = work.STATEMENT + names * work.PAIR + count * work.ROW
        looked = await self._sources.database.read(partial(self._look, count=count), most, self._payer)
        self._is_last_round = len(looked.keys) < count
        self._originals = looked.originals
        return looked.keys

    def _look(self, connection: sqlite3.Connection, count: int) -> _Looked:
        """In a thread: what `_look_up` returns, and the originals of these."""
        query = self._query
        if self._scope is None:
            self._scope = scope_of(query)
            if query.cursor is not None:
                self._scope = self._scope.behind(place_of(connection, query.cursor))
            if query.message_hashes:
                self._named = self._scope.of(find_hashes(connection, query.message_hashes))
        if query.message_hashes:
            keys, self._named = self._named[:count], self._named[count:]
        else:
            keys = find(connection, self._scope, count)
            if keys:
                self._scope = self._scope.behind(keys[-1].place)
        originals = {}
        for key in keys if query.include_data else ():
            if key.is_original and (original := original_of(connection, key)) is not None:
                originals[key.hash] = original
        return _Looked(keys, originals)

    async def _take(self, keys: Sequence[Key]) -> bool:
        """Take those of these messages that are there, as far as they are wanted. Return whether the page is full, and
        there are more. What was not looked at yet is ahead."""
        self._ahead = ()
        whole = self._lacking if self._query.include_data else 0
        cached = {key: entry for key in keys[:whole] if (entry := self._sources.cache.get(key)) is not None}
        names = [key.arrival for key in keys]
        bodies = await self._sources.arrivals.read(
            names,
            whole,
            MAX_PAGE_BYTES - self._bytes,
            known={key.arrival for key in cached},
            payer=self._payer,
        )
        there = [(key, size) for key, size in zip(keys, bodies.sizes, strict=True) if size]
        if len(there) < len(keys):
            sizes = zip(keys, bodies.sizes, strict=True)
            self._sources.follower.note_missing([key for key, size in sizes if not size])
        entries = cached | await self._entries([key for key in keys if key.arrival in bodies.raws], bodies.raws)
        readable = {*keys[: bodies.fitting]}
        for at, (key, size) in enumerate(there):
            if not self._lacking:
                return True
            if not self._query.include_data:
                self._found.append(WakuMessageKeyValue(key.hash))
            elif key in readable:
                if key in entries:
                    self._found.append(entries[key])
                    self._bytes += size
            elif bodies.fitting < whole and self._found:  # it is too long for the rest of the page
                return True
            else:
                self._ahead = [each for each, _ in there[at:]]
                return False
        return False

    async def _entries(self, keys: Sequence[Key], raws: Mapping[Arrival, bytes]) -> dict[Key, StoredEntry]:
        """The entries of messages whose envelopes were read, but for those with another envelope than was indexed."""
        if not keys:
            return {}
        self._payer.charge(CHECK * len(keys))
        entries = await asyncio.to_thread(
            lambda: {key: entry for key in keys if (entry := self._entry(key, raws[key.arrival])) is not None}
        )
        self._sources.follower.damaged += len(keys) - len(entries)
        for key, entry in entries.items():
            self._sources.cache.put(key, entry)
        return entries

    def _entry(self, key: Key, raw: bytes) -> StoredEntry | None:
        original = self._originals.get(key.hash)
        network_topic = self._sources.network_topic
        try:
            mapped = map_envelope(network_topic, decode_envelope(raw), original)
        except DecodeError:
            return None
        if mapped is None or mapped.hash != key.hash:
            return None
        return StoredEntry.of(key.hash, mapped.message, network_topic)
