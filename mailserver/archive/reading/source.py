"""The archive as a source of history. It finds envelopes, and says if something is wrong."""

import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Container, Sequence
from functools import partial
from typing import TypeVar

from mailserver.archive.errors import ArchiveError
from mailserver.archive.files import ReadableFiles
from mailserver.archive.reading.by_id import ItemsOfTime, find_again, find_items, newest_items, same
from mailserver.archive.reading.cache import ByteCache
from mailserver.archive.reading.catalog import Catalog, Period
from mailserver.archive.reading.id_sums import Span, SumsOfTime, SumsReader
from mailserver.archive.reading.listings import Listings
from mailserver.archive.reading.page import ArchivePage
from mailserver.archive.reading.paid import PaidReads, SharedArchive
from mailserver.archive.reading.reader import PaidReader
from mailserver.archive.reading.reads import ArchiveReads
from mailserver.archive.reading.row_groups import FileGone
from mailserver.archive.reading.scan import Match
from mailserver.archive.reading.search import ANY_NUMBER, ATTEMPTS, MAX_CHANGES, ArchiveFound, search
from mailserver.archive.reading.walk import ArchivedEnvelope, WalkedEnvelopes, envelopes_of_period, envelopes_of_seconds
from mailserver.errors import StoreError
from mailserver.metrics.archive import ArchiveMetrics
from mailserver.reconcile.sides import Needed
from mailserver.store.interface import OURSELVES, GoesOn, Payer, Place, Query, always
from mailserver.waku.envelope import EnvelopeHash, Topic

log = logging.getLogger(__name__)

REMEMBERED_S = 300.0
"""A fault is a warning for so long after the last request that met it. Only a request shows whether it is still so."""

T = TypeVar("T")


class ArchiveSource:
    """One archive."""

    def __init__(
        self,
        files: ReadableFiles,
        *,
        at_once: int,
        cache_bytes: int,
        is_expected: Callable[[], bool],
        metrics: ArchiveMetrics,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Read an archive.

        Args:
            at_once: how many threads read it.
            cache_bytes: how many bytes of it are kept in memory.
            is_expected: tells whether the archive must exist. It is called in a thread.
        """
        catalog, reads = Catalog(files, is_expected), ArchiveReads(at_once, metrics=metrics)
        self._archive = SharedArchive(
            catalog,
            Listings(catalog.listing, reads),
            reads,
            ByteCache(cache_bytes),
            metrics,
            self._is_slow,
            self._listed,
        )
        self._clock = clock
        self._failure = _Remembered()
        self._damage = _Remembered()
        self._slowness = _Remembered()
        self._damaged: Sequence[str] = ()

    @property
    def problem(self) -> str:
        """What was wrong with reading the archive lately, in one line; "" if nothing was."""
        now = self._clock()
        if failure := self._failure.lately(now):
            return f"requests could not be answered from the archive: {failure}"
        if damage := self._damage.lately(now):
            return f"files of the archive are damaged: {damage}"
        if slowness := self._slowness.lately(now):
            return f"requests are answered from the archive slowly: {slowness}"
        return ""

    async def find(
        self, query: Query, most: int, *, above: Place | None, payer: Payer, goes_on: GoesOn = always
    ) -> ArchiveFound:
        """Find the first `most` envelopes that a query wants.

        Args:
            above: only envelopes before this place.
        Raises:
            StoreError: the archive cannot be read.
        """
        try:
            return await self._search(PaidReader(self._archive, payer), query, most, above, goes_on)
        except ArchiveError as error:
            raise self._failed(error) from error

    async def find_items(
        self, network_topic: str, groups: Sequence[Needed], *, payer: Payer, goes_on: GoesOn = always
    ) -> dict[bytes, Match]:
        """Find the envelopes that have some ids of reconciliation, by these; what is not there is left out.

        Args:
            network_topic: to which the ids belong.
            groups: as for `store.message_ids.MessageIds.find_items`. A group whose envelopes were created in one second
                costs least.
            goes_on: whether to go on after this much work.
        Raises:
            RangeTooWide: it did not go on.
            StoreError: the archive cannot be read.
        """
        reader = PaidReader(self._archive, payer)
        found: dict[bytes, Match] = {}
        try:
            await self._on_periods(
                reader, lambda periods: find_items(reader, periods, network_topic, groups, goes_on, found)
            )
            return found
        except ArchiveError as error:
            raise self._failed(error) from error

    async def sums(self, network_topic: str, lower: int, upper: int, *, by_minute: bool) -> SumsOfTime:
        """Say what there is of a time by the sums of ids: see `id_sums.SumsReader`.

        Raises:
            StoreError: the archive cannot be read.
        """
        reader = SumsReader(self._archive, OURSELVES)
        try:
            return await self._on_periods(
                reader, lambda periods: reader.of_time(periods, network_topic, lower, upper, by_minute=by_minute)
            )
        except ArchiveError as error:
            raise self._failed(error) from error

    async def newest_items(self, network_topic: str, times: Sequence[Span], most: int) -> ItemsOfTime:
        """Make the ids of the newest envelopes of some times: see `by_id.newest_items`.

        Raises:
            StoreError: the archive cannot be read.
        """
        reader = PaidReader(self._archive, OURSELVES)
        try:
            return await newest_items(reader, network_topic, times, most)
        except ArchiveError as error:
            raise self._failed(error) from error

    async def periods(self) -> tuple[Period, ...]:
        """The periods that have envelopes. The one with the newest envelope comes first, and last come those of which
        the records are damaged: whoever reads all of them stops at these.

        Raises:
            StoreError: the archive cannot be read.
        """
        try:
            found = await PaidReader(self._archive, OURSELVES).periods()
            return tuple(sorted(found, key=lambda period: bool(period.damage)))
        except ArchiveError as error:
            raise self._failed(error) from error

    async def walk(self, period: Period, first: int) -> AsyncIterator[WalkedEnvelopes]:
        """Read all envelopes of a period: see `walk.envelopes_of_period`. If it is replaced meanwhile, nothing follows.

        Raises:
            StoreError: the archive cannot be read.
        """
        reader = PaidReader(self._archive, OURSELVES)
        try:
            async for some in envelopes_of_period(reader, period, first):
                yield some
        except FileGone as error:
            if period in await self.periods():
                raise self._failed(error) from error
        except ArchiveError as error:
            raise self._failed(error) from error

    async def of_seconds(
        self, topics: Collection[Topic], seconds: Collection[int], *, known: Container[EnvelopeHash], payer: Payer
    ) -> AsyncIterator[list[ArchivedEnvelope]]:
        """Read envelopes of some topics and seconds: see `walk.envelopes_of_seconds`.

        Raises:
            StoreError: the archive cannot be read.
        """
        reader = PaidReader(self._archive, payer)
        try:
            async for part in envelopes_of_seconds(reader, topics, seconds, known):
                yield part
        except ArchiveError as error:
            raise self._failed(error) from error

    def page(self, found: Sequence[Match], query: Query, payer: Payer) -> ArchivePage:
        """Make a page that reads some of the envelopes that were found for a query."""
        reader = PaidReader(self._archive, payer)

        async def again(some: Sequence[Place]) -> list[Match]:
            above = some[-1][0] - 1, some[-1][1]
            found = await self._search(reader, query, ANY_NUMBER, above, always)
            return same(some, {match.place: match for match in found.matches})

        return ArchivePage(found, self._archive, reader, again=again, failed=self._failed)

    def page_by_id(self, found: Sequence[Match], payer: Payer) -> ArchivePage:
        """Make a page that reads some of the envelopes that were found by their ids, in any order."""
        reader = PaidReader(self._archive, payer)
        return ArchivePage(found, self._archive, reader, again=partial(find_again, reader), failed=self._failed)

    def close(self) -> None:
        """Read nothing more."""
        self._archive.listings.close()
        self._archive.reads.close()

    async def _search(
        self, reader: PaidReader, query: Query, most: int, above: Place | None, goes_on: GoesOn
    ) -> ArchiveFound:
        return await search(reader, reader.periods, query, most, above=above, goes_on=goes_on)

    async def _on_periods(self, reader: PaidReads, look: Callable[[Sequence[Period]], Awaitable[T]]) -> T:
        """Look for something in the archive's periods, and again if one of them is replaced meanwhile."""
        periods: Sequence[Period] = ()
        changes, attempts = MAX_CHANGES, ATTEMPTS
        while True:
            before, periods = periods, await reader.periods()
            attempts = ATTEMPTS if periods != before else attempts
            try:
                return await look(periods)
            except FileGone:
                changes, attempts = changes - 1, attempts - 1
                if not (changes and attempts):
                    raise

    def _failed(self, error: ArchiveError) -> StoreError:
        cause = str(error)
        if self._failure.note(cause, self._clock()) != cause:
            log.error("archive cannot be read error=%r", cause)
        self._archive.metrics.archive_read_failures.inc()
        return StoreError(f"cannot read the archive: {cause}")

    def _listed(self, damage: Sequence[str]) -> None:
        for cause in damage:
            if cause not in self._damaged:  # once for each change, however many requests meet it
                log.warning("file of the archive is damaged error=%r", cause)
        self._damaged = damage
        more = f", and {len(damage) - 1} more" if len(damage) > 1 else ""
        self._damage.note(f"{damage[0]}{more}" if damage else "", self._clock())

    def _is_slow(self, cause: str) -> None:
        if not self._slowness.note(cause, self._clock()):  # each period may have its own cause: one line is enough
            log.warning("archive is read without its index error=%r", cause)


class _Remembered:
    """Why something went wrong, and when it last did."""

    def __init__(self) -> None:
        self._cause = ""
        self._at = 0.0

    def lately(self, now: float) -> str:
        """Return why it went wrong; "" if it has not within REMEMBERED_S."""
        return self._cause if now - self._at < REMEMBERED_S else ""

    def note(self, cause: str, now: float) -> str:
        """Note that it has gone wrong again; return what `lately` was before."""
        before = self.lately(now)
        self._cause, self._at = cause, now
        return before
