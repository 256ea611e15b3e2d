"""What a search of the archive reads, for one request: from memory, or in turns with other requests."""

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from mailserver.archive.reading.cache import ByteCache
from mailserver.archive.reading.catalog import Catalog, Period, PlacedFile
from mailserver.archive.reading.reads import RECORD_FILE, STEP, ArchiveReads, footer_work, keys_work, raws_work
from mailserver.archive.reading.row_groups import GroupKeys, RowGroup, read_footer, read_keys, read_raws
from mailserver.archive.reading.scan import Match, Wanted, first, matches
from mailserver.metrics.labels import ArchiveRead
from mailserver.metrics.registry import Metrics
from mailserver.store.interface import Payer
from mailserver.waku.bloom import Matcher
from mailserver.waku.envelope import Topic

FOOTERS_AT_ONCE = 64
VERIFIED_AT_ONCE = 16 * 1024 * 1024
"""How many files are used for the first time in one step, or how many bytes: some 10 ms, unless one file has more."""

_FILE_BYTES = 500
_ROW_GROUP_BYTES = 400
"""What one of these takes in memory, about."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class SharedArchive:
    """One archive, as all requests share it."""

    catalog: Catalog
    reads: ArchiveReads
    cache: ByteCache[object]
    metrics: Metrics

    def kept(self, key: object, kind: type[T]) -> T | None:
        """What is in memory under this key."""
        value = self.cache.get(key)
        (self.metrics.archive_cache_misses if value is None else self.metrics.archive_cache_hits).inc()
        return value if isinstance(value, kind) else None

    def keep(self, key: object, value: object, size: int) -> None:
        """Have this in memory from now on, as long as there is room."""
        self.cache.put(key, value, size)
        self.metrics.archive_cache_bytes.set(self.cache.bytes)

    def forget(self, key: object) -> None:
        """Have this in memory no longer."""
        self.cache.drop(key)
        self.metrics.archive_cache_bytes.set(self.cache.bytes)


class PaidReader:
    """Reads for one payer. A `mailserver.archive.reading.search.Reader`."""

    def __init__(self, archive: SharedArchive, payer: Payer) -> None:
        self.work = 0
        self._archive = archive
        self._payer = payer
        self._sorted: list[Topic] = []
        self._sorted_of: object = None

    async def periods(self) -> tuple[Period, ...]:
        """The archive's periods, the last created first."""
        return await self._run(STEP, self._archive.catalog.periods)

    async def row_groups(self, period: Period, wanted: Wanted) -> Sequence[RowGroup]:
        """The row groups of a period that may have something of what is wanted."""
        wanted_files = self._that_may_have(await self._files(period), wanted)
        groups: list[RowGroup] = []
        unknown: list[PlacedFile] = []
        for file in wanted_files:
            known = self._archive.kept(_footer_key(file), tuple)
            if known is None:
                unknown.append(file)
            else:
                groups += known
        for some in _steps(unknown):
            work = STEP + sum(footer_work(file.file) for file in some)
            for file, footer in await self._run(work, partial(_read_footers, some)):
                size = sum(len(group.footer) for group in footer[:1]) + _ROW_GROUP_BYTES * len(footer)
                self._archive.keep(_footer_key(file), footer, size)
                groups += footer
        return [group for group in groups if self._may_have(group, wanted)]

    async def matches(self, groups: Sequence[RowGroup], wanted: Wanted) -> list[Match]:
        """The first of what is wanted of some row groups, in order."""
        known = {group: self._archive.kept(_keys_key(group), GroupKeys) for group in groups}

        def look_through() -> tuple[dict[RowGroup, GroupKeys], list[Match]]:
            read: dict[RowGroup, GroupKeys] = {}
            best: list[Match] = []
            for group, kept in known.items():
                keys = read_keys(group) if kept is None else kept
                if kept is None:
                    read[group] = keys
                best = first(wanted.most, best, matches(group, keys, wanted.beside(best)))
            return read, best

        work = STEP + sum(keys_work(group, is_kept=kept is not None) for group, kept in known.items())
        read, best = await self._run(work, look_through)
        for group, keys in read.items():
            self._archive.metrics.archive_row_groups[ArchiveRead.KEYS].inc()
            self._archive.keep(_keys_key(group), keys, keys.memory_bytes)
        return best

    async def raws(self, group: RowGroup, some: Sequence[Match]) -> list[bytes]:
        """Some envelopes of a row group."""
        rows, hashes = [match.row for match in some], [match.hash for match in some]
        raws = await self._run(STEP + raws_work(group), lambda: read_raws(group, rows, hashes))
        self._archive.metrics.archive_row_groups[ArchiveRead.ENVELOPES].inc()
        return raws

    def cost(self, group: RowGroup) -> int:
        """How much work it is to look through a row group."""
        return keys_work(group, is_kept=_keys_key(group) in self._archive.cache)

    async def _files(self, period: Period) -> Sequence[PlacedFile]:
        known: tuple[PlacedFile, ...] | None = self._archive.kept(period, tuple)
        if known is not None:
            return known
        files = await self._run(STEP, lambda: self._archive.catalog.files(period))
        self._charge(RECORD_FILE * len(files))
        self._archive.keep(period, files, _FILE_BYTES * len(files))
        return files

    async def _run(self, work: int, read: Callable[[], T]) -> T:
        self.work += work
        return await self._archive.reads.run(work, self._payer, read)

    def _charge(self, work: int) -> None:
        self.work += work
        self._payer.charge(work)

    def _that_may_have(self, files: Sequence[PlacedFile], wanted: Wanted) -> list[PlacedFile]:
        """Which files can have wanted topics, by the directories that they are in."""
        topics = wanted.interest.topics
        if topics is not None:
            lengths = {len(file.prefix) for file in files}
            prefixes = {topic.hex()[:length] for topic in topics for length in lengths}
            return [file for file in files if file.prefix in prefixes]
        joined = b"".join(file.file.topic or b"" for file in files)
        if not files or len(joined) != len(files) * len(files[0].file.topic or b"."):
            return [*files]
        marks = Matcher(wanted.interest.bloom).marks(joined)
        return [file for file, mark in zip(files, marks, strict=True) if mark]

    def _may_have(self, group: RowGroup, wanted: Wanted) -> bool:
        """Whether a row group can have wanted topics, by the first and the last that it has."""
        first, last = group.topics
        topics = wanted.interest.topics
        if topics is None:
            return first != last or wanted.interest.wants(first)
        if self._sorted_of is not topics:
            self._sorted, self._sorted_of = sorted(topics), topics
        at = bisect_left(self._sorted, first)
        return at < len(self._sorted) and self._sorted[at] <= last


def _steps(files: Sequence[PlacedFile]) -> Iterator[list[PlacedFile]]:
    """Which files are used for the first time together."""
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


def _read_footers(files: Sequence[PlacedFile]) -> list[tuple[PlacedFile, tuple[RowGroup, ...]]]:
    return [(file, read_footer(file.file)) for file in files]


def _footer_key(file: PlacedFile) -> object:
    return file.file.names[0]


def _keys_key(group: RowGroup) -> object:
    return group.file.names[0], group.number
