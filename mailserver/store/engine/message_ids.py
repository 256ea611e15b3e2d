"""Message ids of a store: MUIDs are made from the rows that a search finds; envelopes are found through an index.

As in a search (`store.engine.search`), every statement is short, and others are served between two of them. What finds
by id reads the state of the index in each statement: rows are put into it and taken out in the same transactions, so
what is missing there is not in the store, unless the index is being built.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import compress
from typing import Any

from mailserver.errors import DecodeError
from mailserver.ids.envelopes import read_meta
from mailserver.ids.muid import Muid, metadata_of, sync_id
from mailserver.reconcile.sides import Needed
from mailserver.reconcile.wire import MAX_MESSAGE_BYTES
from mailserver.store.engine.comparison import StoredComparison
from mailserver.store.engine.id_access import IdAccess, RowName
from mailserver.store.engine.id_sums import ID_BYTES
from mailserver.store.engine.index_state import IndexDamaged, IndexState
from mailserver.store.engine.keys import pieces
from mailserver.store.engine.lookups import MAX_LOOKUPS
from mailserver.store.engine.muids import IDS_AT_ONCE, read_muids
from mailserver.store.engine.page import RowReader
from mailserver.store.engine.search import range_of, topic_marks
from mailserver.store.engine.snapshots import Snapshots
from mailserver.store.interface import OURSELVES, GoesOn, Payer, Query, Raws, always
from mailserver.store.message_ids import (
    BEFORE_ALL,
    MAX_IDS_OF_PAGE,
    MAX_IDS_TO_FIND,
    Arrival,
    ArrivedIds,
    ComparedScope,
    RangeTooWide,
)

WALKED_ROWS = 2000
"""Most rows that a statement looks at in order of arrival, or in the order of ids: some 3 ms."""


class FoundRows:
    """A `store.message_ids.FoundEnvelopes`: rows that are known, and what reads them for their payer."""

    def __init__(self, rows: Any, items: Sequence[bytes], reader: RowReader[Any]) -> None:
        """Take the rows that were found, in their order, and the id of each."""
        self._rows = rows
        self.items = items
        """The ids of all of them."""
        self._reader = reader
        self._at = 0

    @property
    def left(self) -> int:
        """How many are still to be read."""
        return len(self._rows) - self._at

    async def read(self, count: int, max_bytes: int) -> Raws:
        """Read the next envelopes, `count` at most."""
        raws = await self._reader.read(self._rows[self._at : self._at + count], max_bytes)
        self._at += len(raws.sizes)
        return raws


class _Meter:
    """A payer, and how much work was done for it in one call."""

    def __init__(self, payer: Payer) -> None:
        self.work = 0
        self._charge = payer.charge
        self.payer = replace(payer, charge=self._add)

    def _add(self, amount: int) -> None:
        self.work += amount
        self._charge(amount)


@dataclass(frozen=True)
class StoredMessageIds(ABC):
    """A `store.message_ids.MessageIds`, which says what each method does and raises. Each engine has its `access`."""

    store_id: str
    """The store's identity, hex digits: a place in the order of arrival is of no other."""
    snapshots: Snapshots
    index: IndexState

    @abstractmethod
    def access(self, payer: Payer) -> IdAccess:
        """The statements, as a payer runs them."""

    @property
    def network_topic(self) -> str:
        """The pubsub topic to which the ids belong."""
        return self.index.network_topic

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
        _check_limit(limit)
        meter = _Meter(payer)
        access = self.access(meter.payer)
        within, marks = range_of(query), topic_marks(query.interest)
        muids: list[Muid] = []
        at = int(after)
        while True:
            walked = await access.arrived(within, at, WALKED_ROWS)
            is_last = walked.looked_at < WALKED_ROWS
            wanted = marks(walked.topics)
            seqs, created = ([*compress(column, wanted)] for column in (walked.seqs, walked.created))
            names = [*compress(walked.names, wanted)]
            done = 0
            while done < len(seqs):
                part = slice(done, done + min(IDS_AT_ONCE, limit - len(muids)))
                muids += [
                    name
                    for name in await read_muids(
                        access.rows,
                        access.correct,
                        self.index.network_topic,
                        access.rows_named(names[part]),
                        created[part],
                    )
                    if name is not None
                ]
                done += len(seqs[part])
                if len(muids) == limit:
                    return ArrivedIds(muids, Arrival(seqs[done - 1]), is_all=is_last and done == len(seqs))
            at = at if walked.last is None else walked.last
            if is_last or not goes_on(meter.work):
                return ArrivedIds(muids, Arrival(at), is_all=is_last)

    async def find(self, muids: Sequence[Muid], *, payer: Payer = OURSELVES, goes_on: GoesOn = always) -> FoundRows:
        """Find the envelopes that have these MUIDs, in this order, each once."""
        _check_count(len(muids))
        access = self.access(payer)
        goal = await self.index.until_indexed(access)
        names, rows = [*dict.fromkeys(muids)], dict[RowName, bytes]()
        for at in range(0, len(names), MAX_LOOKUPS):
            places = _places(names[at : at + MAX_LOOKUPS])
            state, found = await access.of_ids(places)
            self.index.check(goal, *state)
            rows |= {found[item]: item for _, item in places if item in found}
        return _found(access, rows)

    async def find_items(
        self, groups: Sequence[Needed], *, payer: Payer = OURSELVES, goes_on: GoesOn = always
    ) -> FoundRows:
        """Find the envelopes that have these ids of reconciliation, group after group, each once."""
        _check_count(sum(len(group.ids) for group in groups))
        meter = _Meter(payer)
        access = self.access(meter.payer)
        goal = await self.index.until_indexed(access)
        found: dict[RowName, bytes] = {}  # in order: groups may overlap
        for group in groups:
            wanted, after = set(group.ids), (group.lower, b"")
            while wanted:
                if not goes_on(meter.work):
                    raise RangeTooWide
                ids, rows, last = await self._walked(access, goal, after, group.upper)
                found |= {row: item for item, row in zip(ids, rows, strict=True) if item in wanted}
                wanted.difference_update(ids)
                if len(rows) < WALKED_ROWS:
                    break
                after = last, ids[-1]
        return _found(access, found)

    async def _walked(
        self, access: IdAccess, goal: int, after: tuple[int, bytes], upper: int
    ) -> tuple[Sequence[bytes], Sequence[RowName], int]:
        """The next ids of the index up to the second `upper`, WALKED_ROWS at most, their rows, and the last second."""
        state, last, packed, rows = await access.walk(after, upper + 1, WALKED_ROWS)
        self.index.check(goal, *state)
        if len(packed) != ID_BYTES * len(rows):
            await self.index.give_up(goal)
            raise IndexDamaged
        return pieces(packed, ID_BYTES), rows, last or 0

    def comparison(
        self, scope: ComparedScope, *, frame_bytes: int = MAX_MESSAGE_BYTES, payer: Payer = OURSELVES
    ) -> StoredComparison:
        """What compares the ids of a scope with another mailserver's."""
        return StoredComparison(scope, frame_bytes, self.access(payer), self.snapshots, self.index)


def _found(access: IdAccess, found: Mapping[RowName, bytes]) -> FoundRows:
    return FoundRows(access.rows_named([*found]), [*found.values()], access.rows)


def _check_limit(limit: int) -> None:
    if not 1 <= limit <= MAX_IDS_OF_PAGE:
        raise ValueError(f"a list of {limit} ids is not one of 1 to {MAX_IDS_OF_PAGE}")


def _check_count(ids: int) -> None:
    if ids > MAX_IDS_TO_FIND:
        raise ValueError(f"{ids} ids are more than {MAX_IDS_TO_FIND}")


def _places(muids: Sequence[Muid]) -> list[tuple[int, bytes]]:
    """Where these MUIDs are in `ids`: (created, id). Those of no envelope are left out."""
    places = []
    for name in muids:
        try:
            created = read_meta(metadata_of(name)).created
        except DecodeError:  # the MUID of something else
            continue
        places.append((created, sync_id(name)))
    return places
