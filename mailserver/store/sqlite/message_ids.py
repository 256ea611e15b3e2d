"""Message ids in SQLite: MUIDs are made from the rows that a search finds; envelopes are found through the table `ids`.

As in a search (`store.engine.search`), every statement is short, and others are served between two of them. What finds
by id reads the state of the index in each statement: rows are put into it and taken out in the same transactions, so
what is missing there is not in the store, unless the index is being built.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import compress

from mailserver.errors import DecodeError
from mailserver.ids.envelopes import read_meta
from mailserver.ids.muid import Muid, metadata_of, sync_id
from mailserver.reconcile.sides import Needed
from mailserver.reconcile.wire import MAX_MESSAGE_BYTES
from mailserver.store.engine import work
from mailserver.store.engine.keys import pieces
from mailserver.store.engine.search import range_of, topic_marks
from mailserver.store.interface import OURSELVES, GoesOn, Payer, Query, Raws, always
from mailserver.store.message_ids import (
    BEFORE_ALL,
    MAX_IDS_OF_PAGE,
    MAX_IDS_TO_FIND,
    Arrival,
    ArrivedIds,
    RangeTooWide,
    Scope,
)
from mailserver.store.sqlite.comparison import SqliteComparison
from mailserver.store.sqlite.index_state import STATE, IndexDamaged, IndexState
from mailserver.store.sqlite.lookups import WITHIN
from mailserver.store.sqlite.muids import IDS_AT_ONCE, read_muids
from mailserver.store.sqlite.packing import SLOTS, numbers, packed_bytes, packed_numbers, slots_for
from mailserver.store.sqlite.reader import RowReader
from mailserver.store.sqlite.reader_pool import PaidReader, ReaderPool
from mailserver.store.sqlite.schema import ID_BYTES
from mailserver.store.sqlite.snapshots import Snapshots

WALKED_ROWS = 2000
"""Most rows that a statement looks at in order of arrival, or in the order of ids: some 3 ms."""

_ARRIVED = f"""
    SELECT count(*), max(seq), {
    ", ".join(f"{packed} FILTER (WHERE {WITHIN})" for packed in ("group_concat(seq)", "group_concat(created)"))
}, CAST(group_concat(topic, '') FILTER (WHERE {WITHIN}) AS BLOB)
    FROM (SELECT seq, created, topic, hash FROM envelopes WHERE seq > ? ORDER BY seq LIMIT ?)
"""
_WALK = f"""
    SELECT {STATE}, max(created), {packed_bytes("id")}, {packed_numbers("seq")} FROM (
        SELECT created, id, seq FROM ids
        WHERE (created, id) > (?, ?) AND (created, id) < (?, x'') ORDER BY created, id LIMIT ?
    )
"""


def _of_ids(slots: int) -> str:
    return f"""
        WITH asked (created, id) AS (VALUES {", ".join(["(?, ?)"] * slots)})
        SELECT {STATE}, {packed_bytes("id")}, {packed_numbers("seq")} FROM (
            SELECT i.id, i.seq FROM asked AS a CROSS JOIN ids AS i
            WHERE i.created = a.created AND i.id = a.id LIMIT -1
        )
    """


_OF_IDS = {slots: _of_ids(slots) for slots in SLOTS}


class FoundRows:
    """A `store.message_ids.FoundEnvelopes`: rows that are known, and what reads them for their payer."""

    def __init__(self, found: Mapping[int, bytes], reader: RowReader) -> None:
        """Take the rows that were found, in their order, each with its id."""
        self._seqs = [*found]
        self.items: Sequence[bytes] = [*found.values()]
        """The ids of all of them."""
        self._reader = reader
        self._at = 0

    @property
    def left(self) -> int:
        """How many are still to be read."""
        return len(self._seqs) - self._at

    async def read(self, count: int, max_bytes: int) -> Raws:
        """Read the next envelopes, `count` at most."""
        raws = await self._reader.read(self._seqs[self._at : self._at + count], max_bytes)
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


@dataclass(frozen=True, slots=True)
class SqliteMessageIds:
    """A `store.message_ids.MessageIds`, which says what each method does and raises."""

    readers: ReaderPool
    snapshots: Snapshots
    index: IndexState

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
        readers = PaidReader(self.readers, meter.payer)
        within, marks = range_of(query), topic_marks(query.interest)
        muids: list[Muid] = []
        at = int(after)
        while True:
            ((walked, last, *packed, topics),) = await readers.run(
                _ARRIVED, (*within * 3, at, WALKED_ROWS), work.STATEMENT + WALKED_ROWS * work.ROW
            )
            readers.correct((walked - WALKED_ROWS) * work.ROW)
            wanted = marks(topics or b"")
            seqs, created = ([*compress(numbers(column), wanted)] for column in packed)
            done = 0
            while done < len(seqs):
                part = slice(done, done + min(IDS_AT_ONCE, limit - len(muids)))
                muids += [
                    name
                    for name in await read_muids(readers, self.index.network_topic, seqs[part], created[part])
                    if name is not None
                ]
                done += len(seqs[part])
                if len(muids) == limit:
                    return ArrivedIds(muids, Arrival(seqs[done - 1]), is_all=walked < WALKED_ROWS and done == len(seqs))
            at = at if last is None else last
            if walked < WALKED_ROWS or not goes_on(meter.work):
                return ArrivedIds(muids, Arrival(at), is_all=walked < WALKED_ROWS)

    async def find(self, muids: Sequence[Muid], *, payer: Payer = OURSELVES, goes_on: GoesOn = always) -> FoundRows:
        """Find the envelopes that have these MUIDs, in this order, each once."""
        _check_count(len(muids))
        readers = PaidReader(self.readers, payer)
        goal = await self.index.until_indexed(readers)
        names, rows = [*dict.fromkeys(muids)], dict[int, bytes]()
        for at in range(0, len(names), SLOTS[-1]):
            places = _places(names[at : at + SLOTS[-1]])
            slots = slots_for(len(places))
            parameters: list[object] = [value for place in places for value in place]
            parameters += [None] * (2 * slots - len(parameters))  # these match nothing
            most = work.STATEMENT + len(places) * (work.ID + work.PAIR)
            ((*state, ids, seqs),) = await readers.run(_OF_IDS[slots], parameters, most)
            self.index.check(goal, *state)
            found = dict(zip(pieces(ids, ID_BYTES), numbers(seqs), strict=True))
            rows |= {found[item]: item for _, item in places if item in found}
        return FoundRows(rows, RowReader(readers))

    async def find_items(
        self, groups: Sequence[Needed], *, payer: Payer = OURSELVES, goes_on: GoesOn = always
    ) -> FoundRows:
        """Find the envelopes that have these ids of reconciliation, group after group, each once."""
        _check_count(sum(len(group.ids) for group in groups))
        meter = _Meter(payer)
        readers = PaidReader(self.readers, meter.payer)
        goal = await self.index.until_indexed(readers)
        found: dict[int, bytes] = {}  # in order: groups may overlap
        for group in groups:
            wanted, after = set(group.ids), (group.lower, b"")
            while wanted:
                if not goes_on(meter.work):
                    raise RangeTooWide
                ids, rows, last = await self._walked(readers, goal, after, group.upper)
                found |= {seq: item for item, seq in zip(ids, rows, strict=True) if item in wanted}
                wanted.difference_update(ids)
                if len(rows) < WALKED_ROWS:
                    break
                after = last, ids[-1]
        return FoundRows(found, RowReader(readers))

    async def _walked(
        self, readers: PaidReader, goal: int, after: tuple[int, bytes], upper: int
    ) -> tuple[Sequence[bytes], Sequence[int], int]:
        """The next ids of the index up to the second `upper`, WALKED_ROWS at most, their rows, and the last second."""
        most = work.STATEMENT + WALKED_ROWS * work.ROW
        ((*state, last, packed, seqs),) = await readers.run(_WALK, (*after, upper + 1, WALKED_ROWS), most)
        self.index.check(goal, *state)
        ids, rows = pieces(packed, ID_BYTES), numbers(seqs)
        if len(packed or b"") != ID_BYTES * len(rows):
            await self.index.give_up(goal)
            raise IndexDamaged
        readers.correct((len(rows) - WALKED_ROWS) * work.ROW)
        return ids, rows, last

    def comparison(
        self, scope: Scope, *, frame_bytes: int = MAX_MESSAGE_BYTES, payer: Payer = OURSELVES
    ) -> SqliteComparison:
        """What compares the ids of a scope with another mailserver's."""
        return SqliteComparison(scope, frame_bytes, PaidReader(self.readers, payer), self.snapshots, self.index)


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
