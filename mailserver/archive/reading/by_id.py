"""Finds envelopes of the archive by their ids of reconciliation, which name them one to one as MUIDs do.

Whoever asks says when they were created. So few periods can have them, and the keys of row groups say where envelopes
of that time are. These are read, and their ids made, until all that are wanted were met.

An index by id would not pay. On a day of 33,000 envelopes it takes 3 ms of CPU to find one by its MUID, and 68 ms to
find a thousand, for which each row group is read once; to send these takes as much again.
"""

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from mailserver.archive.errors import ArchiveFault
from mailserver.archive.index.columns import Numbers
from mailserver.archive.reading.catalog import Period
from mailserver.archive.reading.id_sums import Span
from mailserver.archive.reading.page import WINDOW_BYTES
from mailserver.archive.reading.reader import PaidReader
from mailserver.archive.reading.row_groups import RowGroup
from mailserver.archive.reading.scan import Match
from mailserver.archive.reading.search import ANY_NUMBER, search
from mailserver.errors import DecodeError
from mailserver.ids.envelopes import envelope_muid
from mailserver.ids.muid import NoId, sync_id
from mailserver.reconcile.sides import Needed
from mailserver.store.interface import GoesOn, Place, Query
from mailserver.store.message_ids import RangeTooWide
from mailserver.waku.bloom import FULL_INTEREST
from mailserver.waku.envelope import decode_envelope

MATCHES_AT_ONCE = 1000
"""How many envelopes of a time are looked through, and of how many the ids are made, before the next are looked for."""

IDS_AT_ONCE = 256
"""How many ids are made before others have their turn: some 1.5 ms."""


async def find_items(
    reader: PaidReader,
    periods: Sequence[Period],
    network_topic: str,
    groups: Sequence[Needed],
    goes_on: GoesOn,
    found: dict[bytes, Match],
) -> None:
    """Find the envelopes that have some ids.

    Args:
        periods: the archive's periods.
        groups: as for `store.message_ids.MessageIds.find_items`.
        goes_on: asked with the work done so far.
        found: what was found before; what is found is added to it, also if a period turns out to be replaced.
    Raises:
        RangeTooWide: it did not go on.
        FileGone: a period was replaced.
        ArchiveError: the archive cannot be read.
    """
    for look in _looks(groups):
        wanted = look.wanted - found.keys()
        for period in periods:
            part = look.within(*period.created)
            if wanted and part is not None:
                await _walk(reader, period, network_topic, part, wanted, goes_on, found)


class _Look(NamedTuple):
    """What is looked for at once: ids of a time, or of some seconds of it, in their order."""

    lower: int
    upper: int
    wanted: set[bytes]
    seconds: Numbers | None = None

    def within(self, first: int, last: int) -> "_Look | None":
        """The part from one second to another, both inclusive; None if there is none."""
        if self.seconds is None:
            lower, upper = max(self.lower, first), min(self.upper, last)
            return self._replace(lower=lower, upper=upper) if lower <= upper else None
        seconds = self.seconds[(self.seconds >= first) & (self.seconds <= last)]
        return _Look(int(seconds[0]), int(seconds[-1]), self.wanted, seconds) if len(seconds) else None


def _looks(groups: Sequence[Needed]) -> Iterator[_Look]:
    """Groups of ids as they are looked for: all of single seconds together, as each row group is read once for them."""
    seconds, wanted = set[int](), set[bytes]()
    for group in groups:
        if group.lower == group.upper:
            seconds.add(group.lower)
            wanted.update(group.ids)
        else:
            yield _Look(group.lower, group.upper, set(group.ids))
    if seconds:
        yield _Look(min(seconds), max(seconds), wanted, np.array(sorted(seconds), np.int64))


@dataclass(frozen=True, slots=True)
class ItemsOfTime:
    """The envelopes that were created from a second on, `lower`, by their ids of reconciliation, in the order in which
    they are read fastest."""

    lower: int
    items: dict[bytes, Match]


async def newest_items(reader: PaidReader, network_topic: str, times: Sequence[Span], most: int) -> ItemsOfTime:
    """Make the ids of the newest envelopes of some times, of whole seconds.

    Args:
        times: one or more, in order. Each row group is read once for all of them; those of several take memory for each
            of their seconds.
        most: about how many envelopes at most; all of one second come together.
    Raises:
        ArchiveError: the archive cannot be read.
    """
    lower, upper = times[0][0], times[-1][1]
    seconds = None if len(times) == 1 else np.concatenate([np.arange(first, last + 1) for first, last in times])
    query = Query(lower, upper, FULL_INTEREST)
    matches = (await search(reader, reader.periods, query, most, seconds=seconds)).matches
    if len(matches) == most:
        lower = matches[-1].created  # the first second that may not be whole
        if matches[0].created > lower:
            lower += 1
            matches = [match for match in matches if match.created >= lower]
        else:
            query = Query(lower, lower, FULL_INTEREST)
            matches = (await search(reader, reader.periods, query, ANY_NUMBER)).matches
    matches.sort(key=_where)  # so that each row group is read once
    items: dict[bytes, Match] = {}
    for some in windows(matches):
        named = zip(await _items(reader, network_topic, some), some, strict=True)
        items |= {item: match for item, match in named if item is not None}
    return ItemsOfTime(lower, items)


async def find_again(reader: PaidReader, some: Sequence[Place]) -> list[Match]:
    """Find envelopes again by their places, in the same order. What else was created in the same seconds is looked
    through, a part at a time.

    Raises:
        ArchiveFault: one is not there any more.
        ArchiveError: the archive cannot be read.
    """
    seconds = np.unique(np.array([created for created, _ in some], np.int64))
    query = Query(int(seconds[0]), int(seconds[-1]), FULL_INTEREST)
    wanted = {*some}
    found: dict[Place, Match] = {}
    while len(found) < len(wanted):
        matches = (await search(reader, reader.periods, query, MATCHES_AT_ONCE, seconds=seconds)).matches
        found |= {match.place: match for match in matches if match.place in wanted}
        if len(matches) < MATCHES_AT_ONCE:
            break
        query = replace(query, below=matches[-1].place)
    return same(some, found)


def same(some: Sequence[Place], now: Mapping[Place, Match]) -> list[Match]:
    """Where these envelopes are now.

    Raises:
        ArchiveFault: one is not there any more.
    """
    if missing := [full_hash for created, full_hash in some if (created, full_hash) not in now]:
        raise ArchiveFault(f"envelope {missing[0].hex()} is not in it any more")
    return [now[place] for place in some]


async def _walk(
    reader: PaidReader,
    period: Period,
    network_topic: str,
    look: _Look,
    wanted: set[bytes],
    goes_on: GoesOn,
    found: dict[bytes, Match],
) -> None:
    """Make the ids of what a period has of a time, newest first; take those that are `found` out of `wanted`."""

    async def only_this() -> Sequence[Period]:
        return [period]

    query = Query(look.lower, look.upper, FULL_INTEREST)
    while wanted:
        page = await search(reader, only_this, query, MATCHES_AT_ONCE, goes_on=goes_on, seconds=look.seconds)
        for some in windows(page.matches):
            if not goes_on(reader.work):
                raise RangeTooWide
            for match, item in zip(some, await _items(reader, network_topic, some), strict=True):
                if item in wanted:
                    wanted.discard(item)
                    found[item] = match
            if not wanted:
                return
        if page.reached is not None:
            raise RangeTooWide
        if len(page.matches) < MATCHES_AT_ONCE:
            return
        query = replace(query, below=page.matches[-1].place)


async def _items(reader: PaidReader, network_topic: str, some: Sequence[Match]) -> list[bytes | None]:
    """The ids of some envelopes; None for one that has none."""
    of_groups: dict[RowGroup, list[Match]] = {}
    for match in some:
        of_groups.setdefault(match.group, []).append(match)
    raws = await reader.raws(of_groups)
    items: list[bytes | None] = []
    for at, match in enumerate(some):
        if at and at % IDS_AT_ONCE == 0:
            await asyncio.sleep(0)
        try:
            items.append(sync_id(envelope_muid(network_topic, decode_envelope(raws[match.hash]))))
        except (DecodeError, NoId):
            items.append(None)
    return items


def _where(match: Match) -> tuple[str, int, int]:
    """Where an envelope is, for sorting."""
    return match.group.file.names[0], match.group.number, match.row


def windows(matches: Sequence[Match]) -> Iterator[list[Match]]:
    """Matches in parts of WINDOW_BYTES, or of one that is longer."""
    some: list[Match] = []
    total = 0
    for match in matches:
        if some and total + match.size > WINDOW_BYTES:
            yield some
            some, total = [], 0
        some.append(match)
        total += match.size
    if some:
        yield some
