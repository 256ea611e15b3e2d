"""Comparing the ids of a store, message by message: what is compared is read on a snapshot, as far as it is needed.

A comparison of everything reads `id_sums`, and some of `ids`. For one by topics there are no sums, so their envelopes
are read and their ids made anew for each message, in many statements and without a snapshot. Still no difference is
reported that there was not. The set is in memory, and stays as it is while it is compared. What is there all the time
until the set is whole is in it: the search goes by (created, hash), which no envelope changes, and rows are read by
their `seq`, which is never another's. What is not there at any time is not in it. What comes or goes meanwhile may be
in it or not. So whether an id is in the set was true at some moment while it was read, as with a snapshot of then; only
for different ids it may be different moments.
"""

import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import dataclass
from typing import TypeVar

from mailserver.ids.muid import sync_id
from mailserver.reconcile.sides import NOTHING_DIFFERS, Differences, Initiator, Responder
from mailserver.reconcile.storage import ItemStorage, MemoryStorage
from mailserver.store.engine.id_access import IdAccess
from mailserver.store.engine.index_state import IndexDamaged, IndexState
from mailserver.store.engine.muids import IDS_AT_ONCE, read_muids
from mailserver.store.engine.search import KeySearch
from mailserver.store.engine.snapshots import STEP_WORK, SnapshotReader, Snapshots
from mailserver.store.engine.stored_ids import StoredIds
from mailserver.store.interface import Query, always
from mailserver.store.message_ids import MAX_IDS_OF_TOPICS, ComparedScope, TooManyIds
from mailserver.waku.bloom import FULL_INTEREST

ITEMS_AT_ONCE = 2000
"""How many items are put into a set in memory at once."""

ANSWER_S = 5.0
"""After so long a message is ended, and those that follow do the rest: well before SNAPSHOT_S, when nothing would be
gained. Only who compares much while others do, too, comes to that."""

Item = tuple[int, bytes]

R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class _Moment:
    """The ids that are there at a moment, as the thread has them that works with them."""

    ids: ItemStorage
    reader: SnapshotReader
    found: "deque[Differences | None]"
    """What was found in the steps before."""

    until: float
    """When the message is to be ended."""

    def goes_on(self) -> bool:
        """Whether there is time for more of a message."""
        return time.monotonic() < self.until

    def drive(self, slices: Generator[Differences | None, None, R]) -> R:
        """Let one side work; each of its slices is a step."""
        while True:
            try:
                self.found.append(next(slices))
            except StopIteration as done:
                result: R = done.value
                return result
            self.reader.spend(STEP_WORK)  # it takes as long as a step should
            self.reader.pause()


@dataclass(slots=True)
class StoredComparison:
    """A `store.message_ids.Comparison`, which says what each method does and raises."""

    scope: ComparedScope
    frame_bytes: int
    access: IdAccess
    snapshots: Snapshots
    index: IndexState
    _goal: int | None = None
    """Up to which row ids are compared for certain; None before the first message."""

    async def respond(self, message: bytes) -> bytes:
        """Answer a message, as the side that is asked."""
        return await self._compare(
            lambda now: now.drive(Responder(now.ids, self.frame_bytes, now.goes_on).respond(message))
        )

    async def begin(self) -> bytes:
        """Make the first message, as the side that asks."""
        return await self._compare(lambda now: Initiator(now.ids, self.frame_bytes).begin())

    async def receive(self, message: bytes, on_found: Callable[[Differences], None]) -> bytes | None:
        """Take an answer, as the side that asks; return the next message, None at the end."""
        if message == NOTHING_DIFFERS:
            return None
        return await self._compare(
            lambda now: now.drive(Initiator(now.ids, self.frame_bytes, now.goes_on).receive(message)), on_found
        )

    async def _compare(
        self, work: Callable[[_Moment], R], on_found: Callable[[Differences], None] = lambda _: None
    ) -> R:
        """Do some work with the ids of this moment."""
        by_topics = self.scope.interest != FULL_INTEREST
        indexed = 0 if by_topics else await self._until_indexed()
        try:
            return await self._on_snapshot(work, on_found, indexed, by_topics=by_topics)
        except IndexDamaged:
            self._goal = None  # the next message waits until the store is indexed anew
            await self.index.give_up(indexed)
            raise

    async def _on_snapshot(
        self, work: Callable[[_Moment], R], on_found: Callable[[Differences], None], indexed: int, *, by_topics: bool
    ) -> R:
        async with self.snapshots.seat(self.access) as seat:
            items = await self._items() if by_topics else []
            found: deque[Differences | None] = deque()

            def compare(reader: SnapshotReader) -> R:
                until = time.monotonic() + ANSWER_S
                ids = _in_memory(items, reader) if by_topics else self._on_index(indexed, reader)
                return work(_Moment(ids, reader, found, until))

            def tell() -> None:
                while found:
                    some = found.popleft()
                    if some is not None and (some.have or some.need):
                        on_found(some)

            return await seat.run(compare, tell)

    async def _until_indexed(self) -> int:
        """Wait until the rows are indexed that were there before the first message. Of those that came later, such as
        those that the comparison itself has found, none must be waited for: that would take most of the time."""
        if self._goal is None:
            self._goal = await self.index.until_indexed(self.access)
        return self._goal

    def _on_index(self, indexed: int, reader: SnapshotReader) -> ItemStorage:
        self.index.check(indexed, *self.access.state_in(reader))
        return StoredIds(self.access.tables_in(reader), *self.scope.seconds)

    async def _items(self) -> list[Item]:
        """The items of the scope's topics."""
        query = Query(*self.scope.seconds, self.scope.interest)
        found = await KeySearch(self.access.lookups(), query, MAX_IDS_OF_TOPICS, always).page()
        if found.more:
            raise TooManyIds(MAX_IDS_OF_TOPICS)
        keys, items = found.keys, list[Item]()
        rows = self.access.rows.rows_of(keys)
        for at in range(0, len(keys), IDS_AT_ONCE):
            part = slice(at, at + IDS_AT_ONCE)
            names = await read_muids(
                self.access.rows, self.access.correct, self.index.network_topic, rows[part], keys.created[part]
            )
            items += (
                (second, sync_id(name))
                for second, name in zip(keys.created[part], names, strict=True)
                if name is not None
            )
        return items


def _in_memory(items: Iterable[Item], reader: SnapshotReader) -> ItemStorage:
    def some_at_a_time() -> Iterator[Item]:
        for number, item in enumerate(items, 1):
            yield item
            if number % ITEMS_AT_ONCE == 0:
                reader.spend(STEP_WORK)
                reader.pause()

    return MemoryStorage(some_at_a_time())
