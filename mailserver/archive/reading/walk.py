"""Reads envelopes of the archive for whoever keeps an index of them: all of a period, or those of some seconds.

Envelopes come in parts of WINDOW_BYTES, or one that is longer, so that a reader who is slow holds little.
"""

from collections.abc import AsyncIterator, Collection, Container, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from mailserver.archive.reading.by_id import MATCHES_AT_ONCE, windows
from mailserver.archive.reading.catalog import Period
from mailserver.archive.reading.reader import PaidReader
from mailserver.archive.reading.row_groups import RowGroup
from mailserver.archive.reading.scan import Candidate, Match, WantedEnvelopes
from mailserver.archive.reading.search import ANY_NUMBER, LOWEST_HASH, search
from mailserver.store.interface import Place, Query
from mailserver.waku.bloom import FULL_INTEREST, Interest
from mailserver.waku.envelope import MAX_U32, EnvelopeHash, Topic

_EVERYTHING = WantedEnvelopes(FULL_INTEREST, (-1, LOWEST_HASH), (MAX_U32 + 1, LOWEST_HASH), ANY_NUMBER)


class ArchivedEnvelope(NamedTuple):
    """An envelope of the archive. `raw`: None if whoever asks has it already."""

    hash: EnvelopeHash
    raw: bytes | None


class WalkedEnvelopes(NamedTuple):
    """Some envelopes of a period, in no particular order. `end`: how many row groups are read to their end. `is_all`:
    whether nothing follows."""

    raws: Sequence[bytes]
    end: int
    is_all: bool


async def envelopes_of_seconds(
    reader: PaidReader,
    topics: Collection[Topic],
    seconds: Collection[int],
    known: Container[EnvelopeHash],
) -> AsyncIterator[list[ArchivedEnvelope]]:
    """Read the envelopes of some topics that were created in some seconds, in parts, newest first.

    Args:
        known: of these, the raw bytes are not read.
    Raises:
        ArchiveError: the archive cannot be read.
    """
    wanted = np.array(sorted(seconds), np.int64)
    query = Query(int(wanted[0]), int(wanted[-1]), Interest(topics=frozenset(topics)))
    below: Place | None = None
    while True:
        query = replace(query, below=below)
        found = await search(reader, reader.periods, query, MATCHES_AT_ONCE, seconds=wanted)
        is_known = [match.hash in known for match in found.matches]  # it may change at each part
        named = [*zip(found.matches, is_known, strict=True)]
        if any(is_known):
            yield [ArchivedEnvelope(match.hash, None) for match, is_there in named if is_there]
        for some in windows([match for match, is_there in named if not is_there]):
            raws = await reader.raws(_by_group(some))
            yield [ArchivedEnvelope(match.hash, raws[match.hash]) for match in some]
        if len(found.matches) < MATCHES_AT_ONCE:
            return
        below = found.matches[-1].place


async def envelopes_of_period(reader: PaidReader, period: Period, first: int) -> AsyncIterator[WalkedEnvelopes]:
    """Read all envelopes of a period, row group by row group, always in the same order.

    Args:
        first: how many row groups to pass over.
    Raises:
        ArchiveError: the archive cannot be read, or the period was replaced.
    """
    candidates = sorted(await reader.row_groups_of(period, _EVERYTHING), key=_where)
    for end, candidate in enumerate(candidates[first:], first + 1):
        parts = [*windows(await reader.matches([candidate], _EVERYTHING))]
        for number, some in enumerate(parts, 1):
            raws = await reader.raws(_by_group(some))
            is_end = number == len(parts)
            yield WalkedEnvelopes(
                [raws[match.hash] for match in some], end if is_end else end - 1, is_end and end == len(candidates)
            )


def _where(candidate: Candidate) -> tuple[str, int]:
    """Where a row group is, for sorting."""
    return candidate.group.file.names[0], candidate.group.number


def _by_group(some: Sequence[Match]) -> dict[RowGroup, list[Match]]:
    of_groups: dict[RowGroup, list[Match]] = {}
    for match in some:
        of_groups.setdefault(match.group, []).append(match)
    return of_groups
