"""Catching up from several sources at once, each with its own list of what it owes: none holds up another.

Sources are asked for all of a range, not for a part each: two that both had downtimes hold each other's gaps. What
the one has given is skipped when the other gives it, too.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

from mailserver.codec.keys import Enode, NodeId
from mailserver.store.envelopes import EnvelopeStore
from mailserver.sync.ledger import SyncError, open_ledger
from mailserver.sync.ranges import Range
from mailserver.sync.source import Clock, Progress, Source, State, SyncSettings
from mailserver.waku.acceptance import MAX_AHEAD_S
from mailserver.waku.envelope import MAX_U32

log = logging.getLogger(__name__)

MAX_SOURCES = 16
"""Most sources. Each may take the memory of two pages of MAX_PAGE_BYTES, and a connection."""

SAVE_INTERVAL_S = 1.0
"""How far the progress file may lag behind: after a kill, what it does not know of is fetched again."""

LOG_INTERVAL_S = 10.0

STOP_PATIENCE_S = 0.5
"""How long sources have to say goodbye when stopped, before their connections are cut."""


class Catchup:
    """Catches up whatever was added, now and before the process was last ended, as long as `run` runs."""

    def __init__(self, store: EnvelopeStore, folder: Path, settings: SyncSettings, clock: Clock = time.time) -> None:
        """Read the progress file in `folder`.

        Raises:
            SyncError: it is damaged, or there are more than MAX_SOURCES sources.
        """
        self._store = store
        self._settings = settings
        self._clock = clock
        self._ledger = open_ledger(folder)
        self._sources: dict[NodeId, Source] = {}
        self._tasks: dict[NodeId, asyncio.Task[None]] = {}
        self._logged_pages: dict[NodeId, int] = {}
        self._problem: str | None = None
        self._running = False
        self._stopping = asyncio.Event()
        for enode in settings.sources:
            self._source(enode, settings.sources)

    async def add(self, since: int, until: int, sources: Iterable[Enode] | None = None) -> None:
        """Have sources asked for all envelopes created from `since` to `until`, Unix seconds, at most the present.

        It is on disk when this returns, and `run` sees to it. What is owed of an earlier call is not asked for twice.
        One that was given up is tried again.

        Args:
            sources: whom to ask; those of the settings if not given. An address that is new for its node counts.
        Raises:
            SyncError: the progress file cannot be written, or there are more than MAX_SOURCES sources at work.
            ValueError: the bounds are no times, or in the wrong order.
        """
        until = min(until, int(self._clock()) + MAX_AHEAD_S)
        if not 0 <= since <= until < MAX_U32:
            raise ValueError(f"{since} to {until} is no range of times")
        enodes = self._settings.sources if sources is None else tuple(sources)
        asked = [self._source(enode, enodes) for enode in enodes]
        for source in asked:
            source.account.add(Range(since, until))
        self._ledger.note_change()
        await self._ledger.save()
        for source in asked:
            source.rouse()

    async def settled(self, sources: Iterable[Enode] | None = None) -> None:
        """Wait until no source owes anything but those that were given up.

        Args:
            sources: those to wait for; all if not given.
        """
        await asyncio.gather(*(source.settled() for source in self._these(sources)))

    def snapshot(self, sources: Iterable[Enode] | None = None) -> tuple[Progress, ...]:
        """How far catching up from each of these sources is; from all if none are given."""
        return tuple(source.progress() for source in self._these(sources))

    async def run(self) -> None:
        """Catch up until stopped."""
        self._running = True
        for node_id, source in self._sources.items():
            self._start(node_id, source)
        try:
            loop = asyncio.get_running_loop()
            log_at = loop.time() + LOG_INTERVAL_S
            while not self._stopping.is_set():
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(SAVE_INTERVAL_S):
                        await self._stopping.wait()
                await self._save()
                if loop.time() >= log_at:
                    self._log_progress()
                    log_at += LOG_INTERVAL_S
        finally:
            self._running = False
            await self._end_tasks()
            await self._save()

    def stop(self) -> None:
        """Let `run` return soon. What is not finished goes on where it was with the next start."""
        self._stopping.set()

    def _these(self, sources: Iterable[Enode] | None) -> list[Source]:
        if sources is None:
            return list(self._sources.values())
        return [self._sources[enode.node_id] for enode in sources if enode.node_id in self._sources]

    def _source(self, enode: Enode, beside: Sequence[Enode]) -> Source:
        source = self._sources.get(enode.node_id)
        if source is None:
            if len(self._sources) >= MAX_SOURCES:
                self._forget_one(beside)
            ledger = self._ledger
            account = ledger.account(enode.node_id)
            source = Source(enode, account, self._store, self._settings, self._clock, ledger.note_change)
            self._sources[enode.node_id] = source
            if self._running:
                self._start(enode.node_id, source)
        source.enode = enode
        return source

    def _forget_one(self, beside: Sequence[Enode]) -> None:
        """Make room for one more: one that was only asked by the way, and owes nothing now, goes."""
        kept = {enode.node_id for enode in (*self._settings.sources, *beside)}
        for node_id, source in self._sources.items():
            if node_id not in kept and not source.account.pending:
                del self._sources[node_id]
                self._logged_pages.pop(node_id, None)
                task = self._tasks.pop(node_id, None)
                if task is not None:
                    task.cancel()
                return
        raise SyncError(f"cannot catch up from more than {MAX_SOURCES} mailservers")

    def _start(self, node_id: NodeId, source: Source) -> None:
        self._tasks[node_id] = asyncio.create_task(source.run(), name=f"catch-up {source}")

    async def _end_tasks(self) -> None:
        tasks = list(self._tasks.values())
        self._tasks.clear()
        # Once may not do: who was storing a page may have failed at that instead, and connections are closed politely.
        while tasks:
            for task in tasks:
                task.cancel()
            _, pending = await asyncio.wait(tasks, timeout=STOP_PATIENCE_S)
            tasks = list(pending)

    async def _save(self) -> None:
        try:
            await self._ledger.save()
            self._problem = None
        except SyncError as error:  # tried again in a second; what a kill loses is only fetched twice
            if str(error) != self._problem:
                self._problem = str(error)
                log.error("catch-up progress not saved error=%r", self._problem)

    def _log_progress(self) -> None:
        """Say how far it is with the sources that something has come from since the last time."""
        for node_id, source in self._sources.items():
            progress = source.progress()
            if progress.state is State.FETCHING and progress.pages != self._logged_pages.get(node_id, 0):
                self._logged_pages[node_id] = progress.pages
                log.info("catching up %s", progress)
