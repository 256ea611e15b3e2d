"""Messages by their MUIDs, and the MUIDs of messages, for queries of store v3.

The index has no MUIDs: that would be 40 bytes and one more index for each message, and few clients ask for any. A MUID
ends with the meta of its message. That of an envelope says at which second its message has to be looked for
(`ids.envelopes`); that of what a client of v2 sent is kept. The few messages that this leaves are read, from store or
archive, and their MUIDs made. Where very many messages share a second, or an application gives all of its messages one
meta, this takes more than one query may read, and whoever asks is told so: by hash, each of them is found all the same.
Spec: codex-pm, ADR 0001 "Waku Store's bandwidth-consumption optimization".
"""

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial

from mailserver.errors import DecodeError
from mailserver.gateway.index.page import PageSearch, PageSources
from mailserver.gateway.index.search import find_with_meta
from mailserver.gateway.index.values import PageEntry, StoredEntry, TooManyAlike
from mailserver.ids.envelopes import NS, read_meta
from mailserver.ids.muid import Muid, NoId, metadata_of, muid
from mailserver.ids.waku_message import MessageHash
from mailserver.store.engine import work
from mailserver.store.interface import GoesOn, Payer
from mailserver.waku2.store_query import WakuMessageKeyValue, decode_key_value, encode_muid
from mailserver.waku2.store_rules import MAX_PAGE_ENTRIES, StoreQuery

_CANDIDATES = StoreQuery(
    include_data=True,
    message_hashes=(),
    pubsub_topic=None,
    content_topics=(),
    time_start=None,
    time_end=None,
    cursor=None,
    is_forward=True,
    limit=MAX_PAGE_ENTRIES,
)


class MuidSearch:
    """The search for the messages of one query that names MUIDs."""

    def __init__(self, sources: PageSources, payer: Payer, goes_on: GoesOn) -> None:
        """Search at a payer's expense.

        Args:
            goes_on: asked after each page that was read, with the work so far.
        """
        self._sources = sources
        self._payer = replace(payer, charge=self._charge)
        self._charge_payer = payer.charge
        self._goes_on = goes_on
        self._work = 0
        self._found: dict[MessageHash, Muid] = {}

    async def find(self, names: Sequence[Muid]) -> dict[MessageHash, Muid]:
        """Find the messages of some MUIDs that are stored or archived, by their hashes.

        One that a client of v2 has sent several times, at other times, is there several times.

        Raises:
            TooManyAlike: it did not go on.
            NotIndexedYet, StoreError: as `PageSearch.page`.
        """
        by_time: dict[int, set[Muid]] = {}
        by_meta: dict[bytes, set[Muid]] = {}
        for name in names:
            meta = metadata_of(name)
            by_meta.setdefault(meta, set()).add(name)
            try:
                by_time.setdefault(read_meta(meta).created, set()).add(name)
            except DecodeError:  # no envelope has it
                continue
        for created, wanted in by_time.items():
            times = replace(_CANDIDATES, time_start=created * NS, time_end=created * NS + 1)
            await self._take(times, wanted, is_once=True)  # one envelope has it
        await self._find_originals(by_meta)
        return self._found

    async def _find_originals(self, by_meta: dict[bytes, set[Muid]]) -> None:
        after = (b"", b"")
        most = work.STATEMENT + len(by_meta) * work.PAIR + MAX_PAGE_ENTRIES * work.ROW
        while True:
            finds = partial(find_with_meta, metas=sorted(by_meta), after=after, count=MAX_PAGE_ENTRIES)
            some = await self._sources.database.read(finds, most, self._payer)
            if not some:
                return
            wanted = set[Muid]().union(*(by_meta[meta] for meta, _ in some))
            named = replace(_CANDIDATES, message_hashes=tuple(name for _, name in some))
            await self._take(named, wanted, is_once=False)
            if len(some) < MAX_PAGE_ENTRIES:
                return
            if not self._goes_on(self._work):
                raise TooManyAlike
            after = some[-1]

    async def _take(self, candidates: StoreQuery, wanted: set[Muid], *, is_once: bool) -> None:
        """Note those of some messages that have one of these MUIDs.

        Args:
            is_once: when each of these is found once, nothing more is looked for.
        """
        left = set(wanted)
        while True:
            page = await PageSearch(self._sources, candidates, self._payer, self._goes_on).page()
            names = await muids_of(page.entries, self._sources.network_topic, self._payer)
            self._found |= {each: name for each, name in names.items() if name in wanted}
            left -= {*names.values()}
            if page.cursor is None or (is_once and not left):
                return
            if not self._goes_on(self._work):
                raise TooManyAlike
            candidates = replace(candidates, cursor=page.cursor)

    def _charge(self, amount: int) -> None:
        self._work += amount
        self._charge_payer(amount)


async def muids_of(entries: Iterable[PageEntry], network_topic: str, payer: Payer) -> dict[MessageHash, Muid]:
    """The MUIDs of entries with messages, but for those that have none."""
    some = [*entries]
    payer.charge(work.ID * len(some))
    return await asyncio.to_thread(
        lambda: {each.message_hash: name for each in some if (name := _muid(each, network_topic)) is not None}
    )


def _muid(entry: PageEntry, network_topic: str) -> Muid | None:
    message = decode_key_value(entry.encode()).message
    assert message is not None, "it was asked for"
    try:
        return muid(network_topic, message.content_topic, message.meta, message.payload)
    except NoId:
        return None


def with_muid(entry: PageEntry, name: Muid | None, *, include_data: bool) -> PageEntry:
    """An entry as a query wants it that asks for MUIDs."""
    if not include_data:
        return WakuMessageKeyValue(entry.message_hash, muid=name)
    return entry if name is None else StoredEntry(entry.message_hash, entry.encode() + encode_muid(name))
