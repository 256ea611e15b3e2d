"""Moving all envelopes of one store into another, as they are: bytes, time of reception, order of arrival.

A batch of rows is read, and each is checked against its hash; what the target has already is left as it is, the rest
is put into it; meanwhile the next batch is read. How far that has come is kept with the target after what it says is on
disk there. So whatever ends a move, the next goes on.

Then both are compared by their message ids. If the target lacks what was put into it before, such as after it was
restored from a backup, all is looked at once more. A source that keeps no message ids, such as a Go mailserver's, is
read again instead, until the target has each envelope.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from mailserver.errors import DecodeError
from mailserver.moving.aside import SetAside, WrongRow
from mailserver.moving.difference import Differing, OnlyThere, compare
from mailserver.moving.report import MoveReport, StoreDifference
from mailserver.store.engine.put_queue import MAX_GROUP_ROWS
from mailserver.store.engine.verified import verified
from mailserver.store.interface import NewEnvelope
from mailserver.store.message_ids import MessageIds
from mailserver.store.moving import NEVER, Moved, MoveSource, MoveTarget, ReadRows, SourcePlace

BATCH_BYTES = 4 * 1024 * 1024
"""A batch ends with the envelope that reaches this. Two batches are in memory at a time."""

RECORD_INTERVAL_S = 1.0
"""How much of a move is looked at again after it was killed."""

READINGS = 5
"""How often a source without message ids is read at most: a mailserver may be writing it all the time."""

Show = Callable[[str, int, int | None], None]
"""Takes what is being done, how much of it is done, and how much there is; None if that cannot be known."""


@dataclass(frozen=True, slots=True)
class _Batch:
    """Rows that were looked at: envelopes that the target lacks, how many it has, and rows that are wrong."""

    end: SourcePlace
    is_last: bool
    lacking: Sequence[NewEnvelope]
    there: int
    wrong: Sequence[WrongRow]


class StoreMove:
    """Moves one store into another, once."""

    def __init__(self, source: MoveSource, target: MoveTarget, aside: SetAside, begun: Moved, show: Show) -> None:
        """Go on from where an earlier move has come to. Made by `begin`."""
        self._source = source
        self._target = target
        self._aside = aside
        self._moved = begun
        self._show = show
        self._recorded_at = 0.0

    @classmethod
    async def begin(cls, source: MoveSource, target: MoveTarget, aside: SetAside, show: Show) -> "StoreMove":
        """Look how far an earlier move has come.

        Raises:
            StoreError: a store cannot be read.
        """
        identities = await source.identity(), await target.identity()
        kept = await target.move_record.read()
        begun = kept if kept is not None and (kept.source, kept.target) == identities else Moved(*identities)
        return cls(source, target, aside, begun, show)

    async def run(self) -> MoveReport:
        """Move what is left, and compare.

        Raises:
            StoreError: a store cannot be read or written. What was moved stays, and the next move goes on.
            NotIndexedYet: nobody indexes one of the stores, so they cannot be compared.
        """
        ids = self._source.message_ids
        if ids is None:
            return await self._run_without_ids()
        goes_on = self._moved.place > 0
        await self._move()
        missing = await self._missing(ids)
        if missing.difference.count and goes_on:
            self._begin_anew()
            await self._move()
            missing = await self._missing(ids)
        more = StoreDifference((), is_all=True)
        if missing.is_exceeded:
            more = _named(*await self._compare(self._target.message_ids, ids))
        adopted = await self._target.note_pruned(await self._source.pruned_until())
        self._moved = replace(self._moved, adopted=adopted)
        await self._target.move_record.write(self._moved)
        return MoveReport(
            self._moved.moved,
            self._moved.there,
            self._moved.set_aside,
            missing=missing.difference,
            pruned=missing.pruned,
            more=more,
            compared=await self._source.envelopes(),
        )

    async def _run_without_ids(self) -> MoveReport:
        """Read all again and again, until the target has each envelope that is read."""
        moved = there = 0
        for number in range(READINGS):
            self._begin_anew()
            await self._move()
            moved += self._moved.moved
            there = there if number else self._moved.there
            if not self._moved.moved:
                break
        envelopes, nothing = self._moved.looked_at - self._moved.set_aside, StoreDifference((), is_all=True)
        return MoveReport(moved, there, self._moved.set_aside, missing=nothing, pruned=0, more=None, compared=envelopes)

    def _begin_anew(self) -> None:
        self._moved = Moved(self._moved.source, self._moved.target, adopted=self._moved.adopted)

    # Moving.

    async def _move(self) -> None:
        """Move what has arrived in the source since the place that was reached."""
        preparing = asyncio.create_task(self._prepare(SourcePlace(self._moved.place)))
        try:
            while True:
                batch = await preparing
                if not batch.is_last:
                    preparing = asyncio.create_task(self._prepare(batch.end))
                await self._take(batch)
                if batch.is_last:
                    return
        finally:
            preparing.cancel()
            await asyncio.wait([preparing])
            if not preparing.cancelled():
                preparing.exception()  # a batch before it has failed, too, which is told

    async def _prepare(self, place: SourcePlace) -> _Batch:
        read = await self._source.after(place, MAX_GROUP_ROWS, BATCH_BYTES)
        envelopes, wrong = await asyncio.to_thread(_check, read)
        lacking = await self._target.missing(envelopes)
        end = read.rows[-1].place if read.rows else place
        return _Batch(end, read.is_all, lacking, len(envelopes) - len(lacking), wrong)

    async def _take(self, batch: _Batch) -> None:
        await asyncio.to_thread(self._aside.add, batch.wrong)
        await self._target.put(batch.lacking)
        before = self._moved
        self._moved = replace(
            before,
            place=int(batch.end),
            moved=before.moved + len(batch.lacking),
            there=before.there + batch.there,
            set_aside=before.set_aside + len(batch.wrong),
        )
        now = asyncio.get_running_loop().time()
        if batch.is_last or now >= self._recorded_at + RECORD_INTERVAL_S:
            self._recorded_at = now
            if self._source.message_ids is not None:
                await self._target.move_record.write(self._moved)
            done = self._moved.looked_at
            self._show("moving envelopes", done, max(done, await self._source.envelopes()))

    # Comparing.

    async def _missing(self, ids: MessageIds) -> "_Missing":
        """What the target lacks of the source, which has these ids."""
        found, only_there = await self._compare(ids, self._target.message_ids)
        await self._move()  # what has come since the last batch was read
        lacking = {each.hash for each in await self._target.missing([each.envelope for each in found])}
        found = [each for each in found if each.envelope.hash in lacking]
        pruned_until = await self._target.note_pruned(NEVER)
        if pruned_until <= self._moved.adopted:  # the target has it from its sources
            pruned_until = NEVER
        missing = [each for each in found if each.envelope.created > pruned_until]
        return _Missing(_named(missing, only_there), len(found) - len(missing), only_there.other_has_more)

    async def _compare(self, one: MessageIds, other: MessageIds) -> tuple[list[Differing], OnlyThere]:
        """What the one has and the other lacks."""
        self._show("comparing message ids", 0, None)
        return await compare(one, other, lambda left: self._show(f"indexing message ids, {left} left", 0, None))


class _Missing(NamedTuple):
    """What the target lacks; `pruned`: how many more, which it may have pruned by itself.

    `is_exceeded`: whether the target has any that the source lacks.
    """

    difference: StoreDifference
    pruned: int
    is_exceeded: bool


def _named(differing: Sequence[Differing], only_there: OnlyThere) -> StoreDifference:
    return StoreDifference([each.muid for each in differing], not only_there.is_full)


def _check(read: ReadRows) -> tuple[list[NewEnvelope], list[WrongRow]]:
    """Check each row against its hash."""
    envelopes, wrong = list[NewEnvelope](), list[WrongRow]()
    for row in read.rows:
        if row.why:
            wrong.append(WrongRow(row, row.why))
            continue
        try:
            envelopes.append(verified(row.columns))
        except DecodeError as error:
            wrong.append(WrongRow(row, str(error)))
    return envelopes, wrong
