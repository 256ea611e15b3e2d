"""Retention on a schedule: each minute, delete what is too much, batch after batch, beside ingest and history.

Where the nightly compaction archives the store, only what a verified run has archived goes (`store.handover`), and
nothing goes while a run reads. The store decides nothing: limits, record and lock are looked at here.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from mailserver.errors import StoreError
from mailserver.metrics import Metrics
from mailserver.services.archive import Clock
from mailserver.store.envelopes import EnvelopeStore
from mailserver.store.handover import HandoverError, compaction_running, pruning_turn, read_handover
from mailserver.store.retention import Retention

log = logging.getLogger(__name__)

FIRST_ROUND_S = 1.0
"""From the start to the first round: whoever waited for the mailserver comes first."""

ROUND_INTERVAL_S = 60.0
"""From the end of one round to the start of the next."""

WARNING_INTERVAL_S = 3600.0
"""Least time between two warnings that the archive is waited for."""


@dataclass(frozen=True, slots=True)
class PruningSettings:
    """What may stay, and what may go.

    `archive_before_prune`: only what is archived goes, once there is a record of the compaction beside the store.
    `has_archive`: without one, nothing goes.
    """

    limits: tuple[Retention, ...]
    archive_before_prune: bool = True
    has_archive: bool = False


@dataclass(slots=True)
class _Round:
    """What one round has done."""

    started: float
    envelopes: int = 0
    bytes: int = 0
    waiting: int = 0


class Pruning:
    """Keeps one store within its limits."""

    def __init__(
        self, store: EnvelopeStore, path: Path, settings: PruningSettings, clock: Clock, *, metrics: Metrics
    ) -> None:
        self._store = store
        self._path = path
        self._settings = settings
        self._clock = clock
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
            return
        try:
            if await asyncio.to_thread(compaction_running, self._path):
                log.debug("pruning waits for the compaction")
                return
            archived = await self._archived()
            self._problem = None
            for limit in settings.limits:
                await self._keep_within(limit, archived, settings, this)
            self._metrics.pruning_waiting.set(this.waiting)
            await self._give_back_pages()
            if archived is not None and this.waiting:
                await self._warn(this.waiting)
        except HandoverError as error:
            if str(error) != self._problem:
                self._problem = str(error)
                log.error("pruning stopped error=%r", self._problem)
        except (StoreError, OSError) as error:
            log.error("pruning failed error=%r", str(error))
        except Exception:
            log.exception("internal error in pruning")
        if this.envelopes:
            await self._report(this)

    async def _archived(self) -> Mapping[int, int] | None:
        """Which rows are archived, as `EnvelopeStore.prune` takes it; None if that does not matter."""
        if not self._settings.archive_before_prune:
            return None
        handover = await asyncio.to_thread(read_handover, self._path)
        if handover is None:
            return {} if self._settings.has_archive else None
        if handover.store_id != await self._store.identity():
            raise HandoverError(f"the record of the compaction is of another store, {handover.store_id}")
        return handover.days

    async def _keep_within(
        self, limit: Retention, archived: Mapping[int, int] | None, settings: PruningSettings, this: _Round
    ) -> None:
        now = self._clock()
        while not self._stopping.is_set() and settings is self._settings:
            surplus = limit.surplus(await self._store.usage(), now)
            if surplus is None:
                return
            began = time.monotonic()
            with pruning_turn(self._path) as ours:
                if not ours:  # a run has begun to read
                    return
                deleted = await self._store.prune(surplus, archived)
            if not deleted.envelopes:
                this.waiting = max(this.waiting, await self._store.held(surplus))
                return
            this.envelopes += deleted.envelopes
            self._metrics.pruned.inc(deleted.envelopes)
            this.bytes += deleted.bytes
            if deleted.envelopes == surplus.envelopes:  # what has come meanwhile is for the next round
                return
            await self._pause(time.monotonic() - began)  # half of the writer's time is left to others

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
