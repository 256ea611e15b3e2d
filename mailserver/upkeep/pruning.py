"""Retention on a schedule: each minute, delete what is beyond the limits, batch after batch, beside ingest and history.

Where the nightly compaction archives the store, only what a verified run has archived is deleted (`handoff.archived`),
and nothing is deleted while a run reads. Before the envelopes of a day are deleted, pruning checks that the day's files
are in the archive. If the archive cannot be seen from here, a run must have checked it recently. The store decides
nothing: limits, records and lock are checked here.
"""

import asyncio
import contextlib
import logging
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from mailserver.archive.access.places import files_of
from mailserver.archive.errors import ArchiveBusy, ArchiveFault
from mailserver.archive.files import ReadableFiles
from mailserver.archive.holdings import check_day
from mailserver.errors import StoreError
from mailserver.handoff.archived import Archived, ArchivedError, Mark
from mailserver.live.intake import Clock
from mailserver.metrics.registry import Metrics
from mailserver.store.interface import Store
from mailserver.store.retention import Retention
from mailserver.units import SECONDS_PER_DAY

log = logging.getLogger(__name__)

FIRST_ROUND_S = 1.0
"""From the start to the first round: clients that waited for the mailserver come first."""

ROUND_INTERVAL_S = 60.0
"""From the end of one round to the start of the next."""

LOOK_LIFE_S = 10.0
"""How long one check of a day's files in the archive counts, while the day is deleted batch after batch."""

LOOK_TIMEOUT_S = 30.0
"""A disk that has not answered by then counts as dead: a check takes milliseconds."""

_CLOCK_TOLERANCE_S = 3600.0
"""How far the clock of the compaction's machine may be ahead of ours."""

WARNING_INTERVAL_S = 3600.0
"""Least time between two warnings that pruning waits for the archive."""


@dataclass(frozen=True, slots=True)
class PruningSettings:
    """What is kept, and what may be deleted.

    `archive_before_prune`: once there is a record of the compaction, delete only what is archived. `archive`: its path
    or URL; if there is one, nothing is deleted until there is a record. `archive_max_age_s`: if the archive cannot be
    seen from here, how long ago the last run may have checked it.
    """

    limits: tuple[Retention, ...]
    archive_before_prune: bool = True
    archive: str = ""
    archive_max_age_s: float = 48 * 3600.0


@dataclass(slots=True)
class _Round:
    """What one round has done."""

    started: float
    envelopes: int = 0
    bytes: int = 0
    waiting: int = 0
    cause: str = ""
    looks: dict[int, float] = field(default_factory=dict)
    """For each day of reception, when it was last seen in the archive; monotonic seconds."""


class _ArchivedDay(NamedTuple):
    """A day of reception (Unix seconds / 86400) of which the archive has all up to `mark`, as the record says."""

    record: Archived
    day: int
    mark: Mark


class Pruning:
    """Keeps one store within its limits."""

    def __init__(
        self,
        store: Store,
        settings: PruningSettings,
        clock: Clock,
        *,
        metrics: Metrics,
        wall: Clock = time.time,
    ) -> None:
        """Prune `store`.

        Args:
            clock: the time by which envelopes age, in Unix seconds.
            wall: the clock by which the compaction writes its records.
        """
        self._store = store
        self._settings = settings
        self._clock = clock
        self._wall = wall
        self._files = files_of(settings.archive)
        self._look: asyncio.Task[None] | None = None
        self.archive_problem = ""
        """Why nothing is deleted although the store is beyond its limits, if the archive is the reason; else ""."""
        self._metrics = metrics
        self._stopping = asyncio.Event()
        self._problem: str | None = None
        self._warned_at: float | None = None

    async def run(self) -> None:
        """Prune round after round until stopped."""
        await self._say_whether_it_shrinks()
        await self._pause(FIRST_ROUND_S)
        while not self._stopping.is_set():
            await self.prune_once()
            await self._pause(ROUND_INTERVAL_S)

    def stop(self) -> None:
        """Let `run` return after the batch that is being deleted."""
        self._stopping.set()

    def change(self, settings: PruningSettings) -> None:
        """Keep within other limits: a round under way ends after its batch, and the next one goes by these."""
        self._settings = settings

    async def prune_once(self) -> None:
        """Delete all that is beyond the limits and may be deleted. Failures are logged: the next round tries again."""
        settings, this = self._settings, _Round(time.monotonic())
        if self._store.is_lost:  # the store has logged it
            return
        if not settings.limits:
            self._metrics.pruning_waiting.set(0)
            self._say_why(this)
            return
        try:
            if await self._store.handoff.is_being_compacted():
                log.debug("pruning waits for the compaction")
                return
            archived = await self._archived()
            self._problem = None
            for limit in settings.limits:
                await self._keep_within(limit, archived, settings, this)
            self._metrics.pruning_waiting.set(this.waiting)
            self._say_why(this)
            await self._maintain()
            if archived is not None and this.waiting:
                await self._warn(this.waiting)
        except ArchivedError as error:
            if str(error) != self._problem:
                self._problem = str(error)
                log.error("pruning stopped error=%r", self._problem)
        except (StoreError, OSError) as error:
            log.error("pruning failed error=%r", str(error))
        except Exception:
            log.exception("internal error in pruning")
        if this.envelopes:
            await self._report(this)

    async def _archived(self) -> Archived | None:
        """What is archived, as the compaction says; None if that does not matter."""
        if not self._settings.archive_before_prune:
            return None
        archived = await self._store.handoff.archived()
        if archived is None:
            return Archived("", self._settings.archive, 0, {}) if self._settings.archive else None
        if archived.store_id != await self._store.identity():
            raise ArchivedError(f"the record of the compaction belongs to another store, {archived.store_id}")
        return archived

    async def _keep_within(
        self, limit: Retention, archived: Archived | None, settings: PruningSettings, this: _Round
    ) -> None:
        now = self._clock()
        if archived is None:
            await self._delete(limit, now, None, settings, this)
            return
        oldest = await self._store.oldest_reception()
        known: list[_ArchivedDay] = []
        for day, mark in sorted(archived.days.items()):
            surplus = limit.surplus(await self._store.usage(), now)
            if surplus is None or oldest is None or not self._goes_on(settings):
                return
            if day * SECONDS_PER_DAY >= surplus.before:
                break
            if day < oldest // SECONDS_PER_DAY:  # deleted long ago
                continue
            known.append(_ArchivedDay(archived, day, mark))
            if await self._delete(limit, now, known, settings, this):
                return
            oldest = await self._store.oldest_reception()
            # What has gone need not be looked at any more.
            known = [each for each in known if oldest is not None and each.day >= oldest // SECONDS_PER_DAY]
        surplus = limit.surplus(await self._store.usage(), now)
        if surplus is not None:
            this.waiting = max(this.waiting, await self._store.held(surplus))

    def _goes_on(self, settings: PruningSettings) -> bool:
        return settings is self._settings and not self._stopping.is_set()

    async def _delete(
        self,
        limit: Retention,
        now: float,
        archived: Sequence[_ArchivedDay] | None,
        settings: PruningSettings,
        this: _Round,
    ) -> bool:
        """Delete what is beyond a limit: anything, or only what is archived of the last of these days of reception,
        and, together with that, of those before it. False if more should go."""
        deletable = None
        while self._goes_on(settings):
            surplus = limit.surplus(await self._store.usage(), now)
            if surplus is None:
                return True
            if archived is not None:
                # An engine may delete only as a whole what came on several days.
                seen = [day for day in archived if await self._is_in_archive(day, this)]
                if archived[-1] not in seen:
                    return False
                deletable = {day.day: day.mark for day in seen}
            began = time.monotonic()
            async with self._store.handoff.pruning_turn() as ours:
                if not ours:  # a run has begun to read
                    return True
                deleted = await self._store.prune(surplus, deletable)
            if not deleted.envelopes:
                return False
            this.envelopes += deleted.envelopes
            self._metrics.pruned.inc(deleted.envelopes)
            this.bytes += deleted.bytes
            if deleted.envelopes == surplus.envelopes:  # what has arrived since then is for the next round
                return True
            await self._pause(time.monotonic() - began)  # leave half of the writer's time to others
        return True

    async def _is_in_archive(self, archived: _ArchivedDay, this: _Round) -> bool:
        """Whether the other copy of a day is there: as checked just now, or by a run recently."""
        if self._files is None:
            verified_at = archived.record.verified_at
            age = self._wall() - verified_at
            if -_CLOCK_TOLERANCE_S <= age <= self._settings.archive_max_age_s:
                return True
            moment = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(verified_at))
            this.cause = f"the archive cannot be seen from here, and the compaction last checked it at {moment}"
            return False
        if time.monotonic() - this.looks.get(archived.day, -math.inf) < LOOK_LIFE_S:
            return True
        try:
            await self._look_at(self._files, archived)
        except ArchiveBusy as error:  # the next round is soon
            log.debug("pruning waits cause=%r", str(error))
            return False
        except ArchiveFault as error:
            this.cause = this.cause or str(error)
            return False
        this.looks[archived.day] = time.monotonic()
        return True

    async def _look_at(self, files: ReadableFiles, archived: _ArchivedDay) -> None:
        """Check a day's files in a thread. A disk that does not answer occupies one thread, not one each round."""
        if self._look is not None and not self._look.done():
            raise ArchiveFault(f"{files.where('')} does not answer")
        store_id = archived.record.store_id
        self._look = asyncio.create_task(asyncio.to_thread(check_day, files, store_id, archived.day, archived.mark))
        self._look.add_done_callback(_retrieve)  # after the timeout nobody waits for it any more
        done, _ = await asyncio.wait({self._look}, timeout=LOOK_TIMEOUT_S)
        if not done:
            raise ArchiveFault(f"{files.where('')} does not answer within {LOOK_TIMEOUT_S:g} s")
        self._look.result()

    def _say_why(self, this: _Round) -> None:
        cause = this.cause if this.waiting else ""
        if cause and cause != self.archive_problem:
            log.error("pruning waits, the archive is not known to be whole cause=%r", cause)
        elif self.archive_problem and not cause:
            log.info("pruning waits no longer, the archive is there")
        self.archive_problem = cause

    async def _maintain(self) -> None:
        while not self._stopping.is_set():
            began = time.monotonic()
            if not await self._store.maintain():
                return
            await self._pause(time.monotonic() - began)

    async def _pause(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._stopping.wait()

    async def _warn(self, waiting: int) -> None:
        now = self._clock()
        if self._warned_at is not None and 0 <= now - self._warned_at < WARNING_INTERVAL_S:
            return
        self._warned_at = now
        log.warning("pruning waits for the archive envelopes=%d oldest=%s", waiting, await self._oldest())

    async def _report(self, this: _Round) -> None:
        seconds = time.monotonic() - this.started
        log.info(
            "pruned envelopes=%d bytes=%d oldest=%s seconds=%.1f",
            this.envelopes,
            this.bytes,
            await self._oldest(),
            seconds,
        )

    async def _oldest(self) -> str:
        try:
            oldest = await self._store.oldest_reception()
        except StoreError as error:  # the log line says what it can
            return str(error)
        return "-" if oldest is None else time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(oldest))

    async def _say_whether_it_shrinks(self) -> None:
        with contextlib.suppress(StoreError):
            if await self._store.shrinks():
                return
            log.info("store does not shrink, free space is used again but not given back")


def _retrieve(look: asyncio.Task[None]) -> None:
    if not look.cancelled():
        look.exception()
