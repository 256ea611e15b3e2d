"""Reads what a search needs, for one request: from memory, or from the disk when it is the request's turn."""

from bisect import bisect_left
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from itertools import chain, groupby

import pyarrow.parquet as pq

from mailserver.archive.errors import ArchiveError
from mailserver.archive.index.columns import Numbers32
from mailserver.archive.index.reader import PeriodIndex
from mailserver.archive.reading.catalog import Period, PeriodFiles, PlacedFile
from mailserver.archive.reading.indexed import (
    IndexedFile,
    IndexFile,
    IndexGone,
    IndexUnusable,
    candidates_of,
    index_opened,
    read_files,
    read_index,
    read_indexed_keys,
)
from mailserver.archive.reading.paid import PaidReads, SharedArchive
from mailserver.archive.reading.reads import (
    INDEX,
    INDEX_FILE,
    KEPT_FILE,
    RECORD_FILE,
    STEP,
    STEP_WORK,
    footer_work,
    keys_work,
    raws_work,
)
from mailserver.archive.reading.row_groups import GroupKeys, RowGroup, parsed, read_footer, read_keys, read_raws
from mailserver.archive.reading.scan import Candidate, Match, WantedEnvelopes, first, matches
from mailserver.archive.reading.topic_order import TopicOrder
from mailserver.metrics.labels import ArchiveRead
from mailserver.store.interface import Payer
from mailserver.waku.bloom import Matcher
from mailserver.waku.envelope import EnvelopeHash, Topic

FOOTERS_AT_ONCE = 64
VERIFIED_AT_ONCE = 16 * 1024 * 1024
"""How many files, or bytes of files, are verified in one step: about 10 ms, unless a single file has more bytes."""

_ROW_GROUP_BYTES = 400
_ENTRY_BYTES = 700
_PARSED_FACTOR = 10
"""About how many bytes of memory each takes. A parsed footer takes `_PARSED_FACTOR` times its length."""


@dataclass(slots=True)
class _Found:
    """The row groups that an index names, and the parts of it that were read to find them."""

    directory: PeriodIndex
    candidates: list[Candidate]
    read: list[IndexedFile] = field(default_factory=list)


class PaidReader(PaidReads):
    """Reads envelopes and their keys for one payer. It is a `mailserver.archive.reading.search.Reader`."""

    def __init__(self, archive: SharedArchive, payer: Payer) -> None:
        super().__init__(archive, payer)
        self._order: TopicOrder | None = None

    async def row_groups(
        self, periods: Sequence[Period], wanted: WantedEnvelopes
    ) -> list[Sequence[Candidate] | ArchiveError]:
        """Return the row groups of each of some periods that may have wanted envelopes, or why it cannot be read."""

        async def found_in(period: Period) -> Sequence[Candidate] | ArchiveError:
            try:
                return await self.row_groups_of(period, wanted)
            except ArchiveError as error:
                return error

        return await self.several([partial(found_in, period) for period in periods])

    async def row_groups_of(self, period: Period, wanted: WantedEnvelopes) -> Sequence[Candidate]:
        """Return the row groups of a period that may have wanted envelopes.

        Raises:
            FileGone: the period was replaced.
            ArchiveError: it cannot be read.
        """
        of_period = await self._files(period)
        files = self._that_may_have(of_period.files, wanted)
        if of_period.index is not None:
            try:
                return await self._by_index(of_period, of_period.index, files, wanted)
            except IndexUnusable as error:
                # If it has gone with its period, there is another record by now: that raises FileGone.
                await self._run(STEP, partial(self._archive.catalog.files, period))
                self._archive.on_slow(str(error))
        return [Candidate(group, group.created, None) for group in await self._by_footers(files, wanted)]

    async def matches(self, candidates: Sequence[Candidate], wanted: WantedEnvelopes) -> list[Match]:
        """Return the first wanted envelopes of some row groups, in order. All free threads read at the same time."""
        known = {each.group: self._archive.kept(_keys_key(each.group), GroupKeys) for each in candidates}
        parts = _parts(candidates, known, self.at_once)
        found = await self.several([partial(self._matches, part, known, wanted) for part in parts])
        if len(found) == 1:
            return found[0]
        return await self._run(STEP, partial(first, wanted.most, chain.from_iterable(found)))

    async def _matches(
        self, candidates: Sequence[Candidate], known: Mapping[RowGroup, GroupKeys | None], wanted: WantedEnvelopes
    ) -> list[Match]:
        unknown = [candidate.group for candidate in candidates if known[candidate.group] is None]
        faults: list[str] = []

        def look_through() -> tuple[dict[RowGroup, GroupKeys], list[Match]]:
            read = _read_keys(unknown, faults)
            found: list[Match] = []
            still_wanted = wanted
            for candidate in candidates:
                found += matches(candidate, known[candidate.group] or read[candidate.group], still_wanted)
                if len(found) >= 2 * wanted.most:
                    found = first(wanted.most, found)
                    still_wanted = wanted.beside(found)
            return read, first(wanted.most, found)

        work = STEP + sum(keys_work(each.group, is_kept=known[each.group] is not None) for each in candidates)
        read, best = await self._run(work, look_through)
        for cause in faults:
            self._archive.on_slow(cause)
        for group, keys in read.items():
            self._archive.metrics.archive_row_groups[ArchiveRead.KEYS].inc()
            self._archive.keep(_keys_key(group), keys, keys.memory_bytes)
        return best

    async def raws(self, of_groups: Mapping[RowGroup, Sequence[Match]]) -> dict[EnvelopeHash, bytes]:
        """Read envelopes of some row groups; return them by hash. All free threads read at the same time."""
        works = {group: raws_work(group, is_parsed=True) for group in of_groups}
        most = min(STEP_WORK, sum(works.values()) // self.at_once)
        steps: list[dict[RowGroup, Sequence[Match]]] = []
        work = most
        for group, some in of_groups.items():
            if work >= most:
                steps.append({})
                work = 0
            steps[-1][group] = some
            work += works[group]
        raws: dict[EnvelopeHash, bytes] = {}
        for found in await self.several([partial(self._raws, step) for step in steps]):
            raws |= found
        return raws

    def cost(self, group: RowGroup) -> int:
        """Return how much work it is to look through a row group."""
        return keys_work(group, is_kept=_keys_key(group) in self._archive.cache)

    async def _by_index(
        self, of_period: PeriodFiles, index: IndexFile, files: Sequence[PlacedFile], wanted: WantedEnvelopes
    ) -> list[Candidate]:
        """Find the row groups by the index.

        Raises:
            IndexUnusable: it cannot be read, is damaged, or is of other files.
        """
        directory = self._archive.kept(index, PeriodIndex)
        topics = wanted.interest.topics
        numbers = None if topics is None else self._in_order(topics).numbers
        candidates: list[Candidate] = []
        for known in self._indexed_steps(files, index):
            work = STEP + sum(KEPT_FILE if one else INDEX_FILE for one in known.values())
            if directory is None:
                work += INDEX + RECORD_FILE * len(of_period.files)
            found = await self._run(work, partial(_look_up, directory, index, of_period, known, wanted, numbers))
            if directory is None:
                directory = found.directory
                self._archive.keep(index, directory, _ENTRY_BYTES * len(directory.entries))
            placed = {file.path: file for file in known}
            for file in found.read:
                self._archive.keep(_indexed_key(placed[file.entry.path], index), file, file.memory_bytes)
            candidates += found.candidates
        return candidates

    def _indexed_steps(
        self, files: Sequence[PlacedFile], index: IndexFile
    ) -> Iterator[dict[PlacedFile, IndexedFile | None]]:
        """Split files into steps, each with what the cache has of them: a month may have a hundred thousand files."""
        step: dict[PlacedFile, IndexedFile | None] = {}
        work = 0
        for file in files:
            if work >= STEP_WORK:
                yield step
                step, work = {}, 0
            known = step[file] = self._archive.kept(_indexed_key(file, index), IndexedFile)
            work += KEPT_FILE if known else INDEX_FILE
        if step:
            yield step

    async def _by_footers(self, files: Sequence[PlacedFile], wanted: WantedEnvelopes) -> list[RowGroup]:
        """Find the row groups by the footers of the files."""
        groups: list[RowGroup] = []
        unknown: list[PlacedFile] = []
        for file in files:
            known = self._archive.kept(_groups_key(file), tuple)
            if known is None:
                unknown.append(file)
            else:
                groups += known
        for some in _steps(unknown):
            work = STEP + sum(footer_work(file.file) for file in some)
            for file, footer in await self._run(work, partial(_read_footers, some)):
                size = sum(len(group.footer) for group in footer[:1]) + _ROW_GROUP_BYTES * len(footer)
                self._archive.keep(_groups_key(file), footer, size)
                groups += footer
        return [group for group in groups if self._may_have(group, wanted)]

    async def _raws(self, of_groups: Mapping[RowGroup, Sequence[Match]]) -> dict[EnvelopeHash, bytes]:
        known = {group.footer: self._archive.kept(_footer_key(group), pq.FileMetaData) for group in of_groups}
        footers: dict[bytes, pq.FileMetaData] = {footer: kept for footer, kept in known.items() if kept is not None}

        def read() -> dict[EnvelopeHash, bytes]:
            raws: dict[EnvelopeHash, bytes] = {}
            for group, some in of_groups.items():
                if group.footer not in footers:
                    footers[group.footer] = parsed(group.footer)
                hashes = [match.hash for match in some]
                of_group = read_raws(group, footers[group.footer], [match.row for match in some], hashes)
                raws.update(zip(hashes, of_group, strict=True))
            return raws

        work = sum(raws_work(group, is_parsed=known[group.footer] is not None) for group in of_groups)
        raws = await self._run(STEP + work, read)
        for group in of_groups:
            self._archive.metrics.archive_row_groups[ArchiveRead.ENVELOPES].inc()
            if known[group.footer] is None:
                self._archive.keep(_footer_key(group), footers[group.footer], _PARSED_FACTOR * len(group.footer))
        return raws

    def _that_may_have(self, files: Sequence[PlacedFile], wanted: WantedEnvelopes) -> list[PlacedFile]:
        """Return the files that can have wanted topics. Their directories tell."""
        topics = wanted.interest.topics
        if topics is not None:
            order = self._in_order(topics)
            return [file for file in files if file.prefix in order.prefixes(len(file.prefix))]
        joined = b"".join(file.file.topic or b"" for file in files)
        if not files or len(joined) != len(files) * len(files[0].file.topic or b"."):
            return [*files]
        marks = Matcher(wanted.interest.bloom).marks(joined)
        return [file for file, mark in zip(files, marks, strict=True) if mark]

    def _may_have(self, group: RowGroup, wanted: WantedEnvelopes) -> bool:
        """Tell whether a row group can have wanted topics, by its first and its last topic."""
        first, last = group.topics
        topics = wanted.interest.topics
        if topics is None:
            return first != last or wanted.interest.wants(first)
        in_order = self._in_order(topics).in_order
        at = bisect_left(in_order, first)
        return at < len(in_order) and in_order[at] <= last

    def _in_order(self, topics: Collection[Topic]) -> TopicOrder:
        """Return the topics in order. A search asks for the same ones each time: they are kept."""
        if self._order is None or self._order.topics is not topics:
            self._order = TopicOrder(topics)
        return self._order


def _steps(files: Sequence[PlacedFile]) -> Iterator[list[PlacedFile]]:
    """Split files into steps for verification."""
    some: list[PlacedFile] = []
    size = 0
    for file in files:
        if some and (len(some) == FOOTERS_AT_ONCE or size + file.file.bytes > VERIFIED_AT_ONCE):
            yield some
            some, size = [], 0
        some.append(file)
        size += file.file.bytes
    if some:
        yield some


def _parts(
    candidates: Sequence[Candidate], known: Mapping[RowGroup, GroupKeys | None], most: int
) -> list[Sequence[Candidate]]:
    """Split row groups into `most` parts at most, each with as many that have to be read. Those of a part keep their
    order."""
    unknown = [candidate for candidate in candidates if known[candidate.group] is None]
    count = min(most, len(unknown))
    if count <= 1:
        return [candidates]
    unknown.sort(key=lambda candidate: _index_name(candidate.group) or "")  # so that few open the same index
    part_of = {candidate.group: number * count // len(unknown) for number, candidate in enumerate(unknown)}
    parts: list[list[Candidate]] = [[] for _ in range(count)]
    for candidate in candidates:
        parts[part_of.get(candidate.group, 0)].append(candidate)
    return [*parts]


def _read_footers(files: Sequence[PlacedFile]) -> list[tuple[PlacedFile, tuple[RowGroup, ...]]]:
    return [(file, read_footer(file.file)) for file in files]


def _look_up(
    directory: PeriodIndex | None,
    index: IndexFile,
    of_period: PeriodFiles,
    known: Mapping[PlacedFile, IndexedFile | None],
    wanted: WantedEnvelopes,
    numbers: Numbers32 | None,
) -> _Found:
    low, high = wanted.above[0], wanted.below[0]
    with ExitStack() as stack:  # to open a file on S3 is a request
        opened = None
        if directory is None:
            opened = stack.enter_context(index_opened(index.files, index.name))
            directory = read_index(opened, index, {file.path: file.file.rows for file in of_period.files})
        entries = [(file, directory.entries[file.path]) for file in known]
        near = [(file, entry) for file, entry in entries if entry.created[0] <= high and entry.created[1] >= low]
        unknown = [(file.file, entry) for file, entry in near if known[file] is None]
        read: list[IndexedFile] = []
        if unknown:
            opened = opened or stack.enter_context(index_opened(index.files, index.name))
            read = read_files(opened, index, unknown)
    by_path = {file.entry.path: file for file in read}
    indexed = [known[file] or by_path[file.path] for file, _ in near]
    return _Found(directory, candidates_of(indexed, wanted, numbers) if indexed else [], read)


def _read_keys(groups: Sequence[RowGroup], faults: list[str]) -> dict[RowGroup, GroupKeys]:
    """The keys of row groups, out of their indexes, or else their files.

    Args:
        faults: why an index could not be used is added to it.
    """
    read: dict[RowGroup, GroupKeys] = {}
    for name, grouped in groupby(groups, key=_index_name):
        if name is None:
            continue
        some = [*grouped]
        try:
            read.update(read_indexed_keys(some[0].file.files, name, some))
        except IndexGone:  # perhaps with its period: the next request that looks into the period finds out
            continue
        except IndexUnusable as error:
            faults.append(str(error))
    for group in groups:
        if group not in read:
            read[group] = read_keys(group)
    return read


def _index_name(group: RowGroup) -> str | None:
    return None if group.indexed is None else group.indexed.name


def _groups_key(file: PlacedFile) -> object:
    return file.file.names[0]


def _footer_key(group: RowGroup) -> object:
    return group.file.names[0], "footer"


def _indexed_key(file: PlacedFile, index: IndexFile) -> object:
    return file.file.names[0], index


def _keys_key(group: RowGroup) -> object:
    return group.file.names[0], group.number, group.indexed is not None
