"""What the archive has of a time, by the sums of ids that its indexes keep: no envelope is read for it.

A sum must be of a set, and an envelope may be in several periods, each of which has a sum. So what two periods have of
one minute is not added up: the minute is unknown, and its envelopes have to be read. The same holds for all that a
period without sums may have, as earlier versions wrote it, or with sums for another network topic. What only one period
has of a minute is known: its index says that it has each envelope once.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial

from mailserver.archive.index.id_sums import MINUTE_S, DaySums, read_days, read_minutes, total_of
from mailserver.archive.index.layout import Table
from mailserver.archive.reading.catalog import Period
from mailserver.archive.reading.indexed import IndexFile, IndexUnusable, index_opened
from mailserver.archive.reading.paid import PaidReads
from mailserver.archive.reading.reads import INDEX, INDEXED_GROUP, INDEXED_ROWS_PER_UNIT, STEP
from mailserver.reconcile.sums import TimeSum
from mailserver.units import SECONDS_PER_DAY

Span = tuple[int, int]
"""From which second of creation to which, inclusive."""


@dataclass(slots=True)
class SumsOfTime:
    """What the archive has of a time, in the order of creation: `known` sums, and times whose ids have to be read.

    A known sum is of one day at most, unless it is of nothing.
    """

    known: list[TimeSum] = field(default_factory=list)
    unknown: list[Span] = field(default_factory=list)

    def add(self, said: TimeSum, *, joins: bool = True) -> None:
        """Add a known sum behind all others. Those of nothing become one; so do others, if it `joins` them."""
        if self.known:
            last = self.known[-1]
            if last.upper + 1 == said.lower and (joins or not last.ids | said.ids):
                ids, total = last.ids + said.ids, last.total + said.total
                self.known[-1] = TimeSum(last.lower, said.upper, ids, total)
                return
        self.known.append(said)

    def add_unknown(self, lower: int, upper: int) -> None:
        """Add a time behind all others."""
        if self.unknown and self.unknown[-1][1] + 1 == lower:
            lower, _ = self.unknown.pop()
        self.unknown.append((lower, upper))


class SumsReader(PaidReads):
    """Reads the sums of ids for one payer."""

    async def of_time(
        self, periods: Sequence[Period], network_topic: str, lower: int, upper: int, *, by_minute: bool
    ) -> SumsOfTime:
        """Say what the archive has of a time, by day, or by minute where it has anything.

        Args:
            periods: the archive's periods.
            network_topic: to which the ids belong.
            lower, upper: Unix seconds from 0 up, inclusive.
        Raises:
            FileGone: a period was replaced.
            ArchiveError: a record cannot be read.
        """
        found = SumsOfTime()
        near = [period for period in periods if period.created[0] <= upper and lower <= period.created[1]]
        sums: dict[Period, DaySums] = {}
        blind: list[Span] = []
        days = await self.several([partial(self._days, period) for period in near])
        for period, of_period in zip(near, days, strict=True):
            if of_period is None or not of_period.each_once or of_period.network_topic != network_topic:
                blind.append(period.created)
            else:
                sums[period] = of_period
        for day in range(lower // SECONDS_PER_DAY, upper // SECONDS_PER_DAY + 1):
            start, end = day * SECONDS_PER_DAY, (day + 1) * SECONDS_PER_DAY - 1
            span = max(lower, start), min(upper, end)
            holders = {period: row for period, one in sums.items() if (row := one.row_of(day)) is not None}
            unseen = [one for one in blind if one[0] <= span[1] and span[0] <= one[1]]
            if any(one[0] <= span[0] and span[1] <= one[1] for one in unseen):
                found.add_unknown(*span)
            elif not unseen and not holders:
                found.add(TimeSum(*span, 0, 0), joins=False)
            elif not unseen and len(holders) == 1 and span == (start, end) and not by_minute:
                ((period, row),) = holders.items()
                said = sums[period].days[row]
                found.add(TimeSum(*span, int(said["count"]), total_of(said)), joins=False)
            else:
                tables = [await self._minutes(period, sums[period], row) for period, row in holders.items()]
                if missing := [period for period, table in zip(holders, tables, strict=True) if table is None]:
                    unseen += (period.created for period in missing)
                _add_minutes(found, span, [one for one in tables if one is not None], unseen, by_minute=by_minute)
        return found

    async def _days(self, period: Period) -> DaySums | None:
        """The sums of a period by day; None if there are none that can be used."""
        index = (await self._files(period)).index
        record = None if index is None else index.record.sums
        if index is None or record is None:
            return None
        kept = self._archive.kept((index, DaySums), DaySums)
        if kept is not None:
            return kept

        def read() -> DaySums:
            with index_opened(index.files, index.name) as file:
                return read_days(file, record)

        try:
            sums = await self._run(STEP + INDEX, read)
        except IndexUnusable as error:
            await self._blinded(period, error)
            return None
        self._archive.keep((index, DaySums), sums, sums.memory_bytes)
        return sums

    async def _minutes(self, period: Period, sums: DaySums, row: int) -> Table | None:
        """The sums of a day by minute; None if they cannot be used."""
        index = (await self._files(period)).index
        assert index is not None
        work = STEP + INDEXED_GROUP + int(sums.days["minutes"][row]) // INDEXED_ROWS_PER_UNIT
        try:
            return await self._run(work, partial(_read_minutes, index, sums, row))
        except IndexUnusable as error:
            await self._blinded(period, error)
            return None

    async def _blinded(self, period: Period, error: IndexUnusable) -> None:
        """Say that the sums of a period cannot be used, unless the period was replaced."""
        await self._run(STEP, partial(self._archive.catalog.files, period))
        self._archive.on_slow(str(error))


def _read_minutes(index: IndexFile, sums: DaySums, row: int) -> Table:
    with index_opened(index.files, index.name) as file:
        return read_minutes(file, sums, row)


def _add_minutes(
    found: SumsOfTime, span: Span, tables: Iterable[Table], unseen: Sequence[Span], *, by_minute: bool
) -> None:
    """Add what periods have of a part of a day.

    Args:
        tables: what each of them has, by minute.
        unseen: times of which other periods may have anything.
    """
    held: dict[int, TimeSum | None] = {}
    for table in tables:
        for row in table:
            minute = int(row["minute"])
            start = minute * MINUTE_S
            is_alone = minute not in held
            held[minute] = TimeSum(start, start + MINUTE_S - 1, int(row["count"]), total_of(row)) if is_alone else None
    joins = False  # a day begins a sum of its own
    for minute in range(span[0] // MINUTE_S, span[1] // MINUTE_S + 1):
        start = minute * MINUTE_S
        lower, upper = max(span[0], start), min(span[1], start + MINUTE_S - 1)
        said = held.get(minute, TimeSum(lower, upper, 0, 0))
        is_unseen = any(one[0] <= upper and lower <= one[1] for one in unseen)
        if said is None or is_unseen or (said.lower, said.upper) != (lower, upper):
            found.add_unknown(lower, upper)
            joins = False
        else:
            found.add(said, joins=joins)
            joins = not by_minute
