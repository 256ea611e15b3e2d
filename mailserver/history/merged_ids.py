"""Finding envelopes by their ids in two sources: the store, and the archive for what the store no longer has.

As in `history.merged`, the archive is asked only for what was created up to the time up to which the store has ever
removed anything. What is in both is the store's. If it has gone from there when it is to be read, what is left is found
again. Lists in the order of arrival and comparisons are the store's, too.
"""

from collections import defaultdict
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from mailserver.archive.reading.page import ArchivePage
from mailserver.archive.reading.scan import Match
from mailserver.errors import DecodeError
from mailserver.history.merged import Interleaved
from mailserver.ids.envelopes import read_meta
from mailserver.ids.muid import Muid, metadata_of, sync_id
from mailserver.reconcile.sides import Needed
from mailserver.reconcile.wire import MAX_MESSAGE_BYTES
from mailserver.store.interface import OURSELVES, GoesOn, Payer, Query, StoredHistory, always
from mailserver.store.message_ids import (
    BEFORE_ALL,
    Arrival,
    ArrivedIds,
    ComparedScope,
    Comparison,
    FoundEnvelopes,
    MessageIds,
)


class ArchivedItems(Protocol):
    """The source of older envelopes: `mailserver.archive.reading.source.ArchiveSource`."""

    async def find_items(
        self, network_topic: str, groups: Sequence[Needed], *, payer: Payer, goes_on: GoesOn = always
    ) -> Mapping[bytes, Match]:
        """Find the envelopes that have some ids of reconciliation, by these."""

    def page_by_id(self, found: Sequence[Match], payer: Payer) -> ArchivePage:
        """Make a page that reads some of the envelopes that were found by their ids, in any order."""


@dataclass(frozen=True, slots=True)
class FoundLists:
    """What was found in both sources. `archived`: None if there is nothing of it. `order`: as for `Interleaved`.
    `items`: the ids of all."""

    stored: FoundEnvelopes
    archived: ArchivePage | None
    order: Sequence[bool]
    items: Sequence[bytes]


FindAgain = Callable[[Collection[bytes]], Awaitable[FoundLists]]
"""Finds the envelopes that have some of the ids that were found before."""


class FoundInBoth(Interleaved):
    """A `store.message_ids.FoundEnvelopes` of both sources."""

    def __init__(self, found: FoundLists, again: FindAgain) -> None:
        """Take what was found, and what finds the rest of it again."""
        super().__init__(found.stored, found.archived, found.order)
        self._again = again
        self._left = found.items
        self.items = found.items
        """The ids of all of them."""

    async def find_again(self) -> bool:
        """Take what is left, as it is found now; return whether the store is said to have the one that it has not."""
        gone = self._left[self.at]
        found = await self._again(frozenset(self._left[self.at :]))
        self._left = found.items
        self.take(found.stored, found.archived, found.order)
        return bool(found.order) and not found.order[0] and found.items[0] == gone


class MergedIds:
    """A `store.message_ids.MessageIds` of a store and its archive, which says what each method does and raises."""

    def __init__(self, store: StoredHistory, ids: MessageIds, archive: ArchivedItems) -> None:
        """Find in these; `ids` are the store's."""
        self._store = store
        self._ids = ids
        self._archive = archive

    @property
    def network_topic(self) -> str:
        """The pubsub topic to which the ids belong."""
        return self._ids.network_topic

    @property
    def store_id(self) -> str:
        """The store's identity."""
        return self._ids.store_id

    async def as_arrived(
        self,
        query: Query,
        limit: int,
        *,
        after: Arrival = BEFORE_ALL,
        payer: Payer = OURSELVES,
        goes_on: GoesOn = always,
    ) -> ArrivedIds:
        """List the MUIDs of the first `limit` matches that arrived after a place, in the order of their arrival."""
        return await self._ids.as_arrived(query, limit, after=after, payer=payer, goes_on=goes_on)

    async def find(
        self, muids: Sequence[Muid], *, payer: Payer = OURSELVES, goes_on: GoesOn = always
    ) -> FoundEnvelopes:
        """Find the envelopes that have these MUIDs, in this order, each once."""

        async def again(left: Collection[bytes]) -> FoundLists:
            return await self._find([name for name in muids if sync_id(name) in left], payer, goes_on)

        return FoundInBoth(await self._find(muids, payer, goes_on), again)

    async def _find(self, muids: Sequence[Muid], payer: Payer, goes_on: GoesOn) -> FoundLists:
        stored = await self._ids.find(muids, payer=payer, goes_on=goes_on)
        there, until = frozenset(stored.items), self._store.removed_until
        asked = _seconds(muids)
        of_seconds: dict[int, list[bytes]] = defaultdict(list)
        for item, created in asked.items():
            if created <= until and item not in there:
                of_seconds[created].append(item)
        groups = [Needed(created, created, items) for created, items in of_seconds.items()]
        archived = await self._archived(groups, payer, goes_on)
        return self._together(stored, archived, [item for item in asked if item in there or item in archived], payer)

    async def find_items(
        self, groups: Sequence[Needed], *, payer: Payer = OURSELVES, goes_on: GoesOn = always
    ) -> FoundEnvelopes:
        """Find the envelopes that have these ids of reconciliation, each once: those of the store, and then those that
        only the archive has, by (created, id)."""

        async def again(left: Collection[bytes]) -> FoundLists:
            return await self._find_items(_only(groups, left), payer, goes_on)

        return FoundInBoth(await self._find_items(groups, payer, goes_on), again)

    async def _find_items(self, groups: Sequence[Needed], payer: Payer, goes_on: GoesOn) -> FoundLists:
        stored = await self._ids.find_items(groups, payer=payer, goes_on=goes_on)
        there, until = frozenset(stored.items), self._store.removed_until
        missing = [
            Needed(group.lower, min(group.upper, until), [item for item in group.ids if item not in there])
            for group in groups
        ]
        groups = [group for group in missing if group.ids and group.lower <= group.upper]
        archived = await self._archived(groups, payer, goes_on)
        by_place = sorted(archived, key=lambda item: (archived[item].created, item))
        return self._together(stored, archived, [*stored.items, *by_place], payer)

    def comparison(
        self, scope: ComparedScope, *, frame_bytes: int = MAX_MESSAGE_BYTES, payer: Payer = OURSELVES
    ) -> Comparison:
        """What compares the ids of a scope with another mailserver's: those in the store."""
        return self._ids.comparison(scope, frame_bytes=frame_bytes, payer=payer)

    async def _archived(self, groups: Sequence[Needed], payer: Payer, goes_on: GoesOn) -> Mapping[bytes, Match]:
        """What the archive has of these."""
        if not groups:
            return {}
        return await self._archive.find_items(self.network_topic, groups, payer=payer, goes_on=goes_on)

    def _together(
        self, stored: FoundEnvelopes, archived: Mapping[bytes, Match], items: Sequence[bytes], payer: Payer
    ) -> FoundLists:
        """What was found in both, in the order of `items`."""
        if not archived:
            return FoundLists(stored, None, [False] * len(stored.items), stored.items)
        page = self._archive.page_by_id([archived[item] for item in items if item in archived], payer)
        return FoundLists(stored, page, [item in archived for item in items], items)


def _only(groups: Sequence[Needed], items: Collection[bytes]) -> list[Needed]:
    """What these groups have of some ids."""
    some = [Needed(each.lower, each.upper, [item for item in each.ids if item in items]) for each in groups]
    return [each for each in some if each.ids]


def _seconds(muids: Sequence[Muid]) -> dict[bytes, int]:
    """The ids of reconciliation of MUIDs, and when their envelopes were created. Those of no envelope are left out."""
    seconds = {}
    for name in muids:
        try:
            seconds[sync_id(name)] = read_meta(metadata_of(name)).created
        except DecodeError:  # the MUID of something else
            continue
    return seconds
