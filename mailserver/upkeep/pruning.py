"""Retention on a schedule: each minute, delete what is too much, batch after batch, beside ingest and history.

Where the nightly compaction archives the store, only what a verified run has archived goes (`handoff.archived`), and
nothing goes while a run reads. Before the rows of a day go, it is looked in the archive whether its files are there;
where that cannot be seen from here, a run must have looked not long ago. The store decides nothing: limits, records and
lock are looked at here.
"""

import asyncio
import contextlib
import logging
import math
import time
from dataclasses import dataclass, field
from pathlib import Path

from mailserver.archive.errors import ArchiveBusy, ArchiveFault
from mailserver.archive.files import local_folder
from mailserver.archive.holdings import check_day
from mailserver.errors import StoreError
from mailserver.handoff.archived import Archived, ArchivedError
from mailserver.live.intake import Clock
from mailserver.metrics.registry import Metrics
from mailserver.store.interface import Store
from mailserver.store.retention import Retention
from mailserver.units import SECONDS_PER_DAY

log = logging.getLogger(__name__)

FIRST_ROUND_S = 1.0
"""From the start to the first round: whoever waited for the mailserver comes first."""

ROUND_INTERVAL_S = 60.0
"""From the end of one round to the start of the next."""

LOOK_LIFE_S = 10.0
"""So long a look at a day's files in the archive holds, while its rows are deleted batch after batch."""

LOOK_TIMEOUT_S = 30.0
"""A disk that has not answered by then does not answer: a look takes milliseconds."""

_CLOCK_TOLERANCE_S = 3600.0
"""By so much the clock of the compaction's machine may be ahead of ours."""

WARNING_INTERVAL_S = 3600.0
"""Least time between two warnings that the archive is waited for."""


@dataclass(frozen=True, slots=True)
class PruningSettings:
    """What may stay, and what may go.

    `archive_before_prune`: only what is archived goes, once there is a record of the compaction beside the store.
    `archive`: its path or URL; without a record, nothing goes where there is one. `archive_max_age_s`: where it cannot
    be seen from here, how long ago the last run may have looked at it.
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
    """By day of reception, when it was last seen to be in the archive; monotonic seconds."""


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
        """Take what to prune.

        Args:
            clock: tells ages of envelopes, in Unix seconds.
            wall: the clock that the compaction's records go by.
        """
        self._store = store
        self._settings = settings
        self._clock = clock
        self._wall = wall
        self._folder = local_folder(settings.archive)
        self._look: asyncio.Task[None] | None = None
        self.archive_problem = ""
        """Why what is too much is not deleted, if that is for the archive's sake; one line, "" if nothing waits."""
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
        """Keep within other limits: what is being deleted ends after its batch, and the next round goes by these."""
        self._settings = settings

    async def prune_once(self) -> None:
        """Delete all that is too much now and may go. Failures are logged: the next round tries again."""
        settings, this = self._settings, _Round(time.monotonic())
        if self._store.is_lost:  # that was said
            return
        if not settings.limits:
            self._metrics.pruning_waiting.set(0)
            self._say_why(this)
            return
        try:
            if await asyncio.to_thread(self._store.handoff.is_being_compacted):
                log.debug("pruning waits for the compaction")
                return
            archived = await self._archived()
            self._problem = None
            for limit in settings.limits:
                await self._keep_within(limit, archived, settings, this)
            self._metrics.pruning_waiting.set(this.waiting)
            self._say_why(this)
            await self._give_back_pages()
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
        """Which rows are archived, as the compaction says; None if that does not matter."""
        if not self._settings.archive_before_prune:
            return None
        archived = await asyncio.to_thread(self._store.handoff.archived)
        if archived is None:
            return Archived("", self._settings.archive, 0, {}) if self._settings.archive else None
        if archived.store_id != await self._store.identity():
            raise ArchivedError(f"the record of the compaction is of another store, {archived.store_id}")
        return archived

    async def _keep_within(
        self, limit: Retention, archived: Archived | None, settings: PruningSettings, this: _Round
    ) -> None:
        now = self._clock()
        if archived is None:
            await self._delete(limit, now, None, settings, this)
            return
        oldest = await self._store.oldest_reception()
        for day, seq in sorted(archived.days.items()):
            surplus = limit.surplus(await self._store.usage(), now)
            if surplus is None or oldest is None or not self._goes_on(settings):
                return
            if day * SECONDS_PER_DAY >= surplus.before:
                break
            if day < oldest // SECONDS_PER_DAY:  # gone before
                continue
            if await self._delete(limit, now, (archived, day, seq), settings, this):
                return
        surplus = limit.surplus(await self._store.usage(), now)
        if surplus is not None:
            this.waiting = max(this.waiting, await self._store.held(surplus))

    def _goes_on(self, settings: PruningSettings) -> bool:
        return settings is self._settings and not self._stopping.is_set()

    async def _delete(
        self,
        limit: Retention,
        now: float,
        archived: tuple[Archived, int, int] | None,
        settings: PruningSettings,
        this: _Round,
    ) -> bool:
        """Delete what is too much: anything, or up to a row of one day that is archived. False if more should go."""
        may_go = None if archived is None else {archived[1]: archived[2]}
        while self._goes_on(settings):
            surplus = limit.surplus(await self._store.usage(), now)
            if surplus is None:
                return True
            if archived is not None and not await self._is_there(*archived, this):
                return False
            began = time.monotonic()
            with self._store.handoff.pruning_turn() as ours:
                if not ours:  # a run has begun to read
                    return True
                deleted = await self._store.prune(surplus, may_go)
            if not deleted.envelopes:
                return False
            this.envelopes += deleted.envelopes
            self._metrics.pruned.inc(deleted.envelopes)
            this.bytes += deleted.bytes
            if deleted.envelopes == surplus.envelopes:  # what has come meanwhile is for the next round
                return True
            await self._pause(time.monotonic() - began)  # half of the writer's time is left to others
        return True

    async def _is_there(self, archived: Archived, day: int, seq: int, this: _Round) -> bool:
        """Whether the other copy of a day is there: as seen just now, or by a run not long ago."""
        if self._folder is None:
            age = self._wall() - archived.verified_at
            if -_CLOCK_TOLERANCE_S <= age <= self._settings.archive_max_age_s:
                return True
            moment = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(archived.verified_at))
            this.cause = f"the archive cannot be seen from here, and the compaction last looked at it at {moment}"
            return False
        if time.monotonic() - this.looks.get(day, -math.inf) < LOOK_LIFE_S:
            return True
        try:
            await self._look_at(self._folder, archived.store_id, day, seq)
        except ArchiveBusy as error:  # the next round is soon
            log.debug("pruning waits cause=%r", str(error))
            return False
        except ArchiveFault as error:
            this.cause = this.cause or str(error)
            return False
        this.looks[day] = time.monotonic()
        return True

    async def _look_at(self, folder: Path, store_id: str, day: int, seq: int) -> None:
        """Look at a day's files, off the loop. A disk that does not answer keeps one thread, not one each round."""
        if self._look is not None and not self._look.done():
            raise ArchiveFault(f"{folder} does not answer")
        self._look = asyncio.create_task(asyncio.to_thread(check_day, folder, store_id, day, seq))
        self._look.add_done_callback(_hear)  # after its time nobody waits for it any more
        done, _ = await asyncio.wait({self._look}, timeout=LOOK_TIMEOUT_S)
        if not done:
            raise ArchiveFault(f"{folder} does not answer within {LOOK_TIMEOUT_S:g} s")
        self._look.result()

    def _say_why(self, this: _Round) -> None:
        cause = this.cause if this.waiting else ""
        if cause and cause != self.archive_problem:
            log.error("pruning waits, the archive is not seen to be whole cause=%r", cause)
        elif self.archive_problem and not cause:
            log.info("pruning waits no longer, the archive is there")
        self.archive_problem = cause

    async def _give_back_pages(self) -> None:
        while not self._stopping.is_set():
            began = time.monotonic()
            if not await self._store.give_back_pages():
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
        except StoreError as error:  # the line says what it can
            return str(error)
        return "-" if oldest is None else time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(oldest))

    async def _say_whether_it_shrinks(self) -> None:
        with contextlib.suppress(StoreError):
            if await self._store.shrinks():
                return
            log.info("store keeps its size, free pages are used again, but not given back")


def _hear(look: asyncio.Task[None]) -> None:
    if not look.cancelled():
        look.exception()
