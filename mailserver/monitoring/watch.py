"""Looks at the store, its disk, the compaction and the event loop every few seconds, and keeps what it saw.

So an answer costs next to nothing, and nobody can make us read the disk by asking often.
"""

import asyncio
import contextlib
import logging
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from prometheus_client import Histogram

from mailserver.community.folder import COMMUNITIES_FOLDER
from mailserver.errors import MailserverError, StoreError
from mailserver.handoff.communities import Served, ServedError, read_served
from mailserver.handoff.last_run import MAX_ARCHIVED_DAYS, Compaction, CompactionState
from mailserver.handoff.last_upkeep import Task
from mailserver.metrics.figures import CompactionFigures, DatabaseFigures, DiskFigures, StoreFigures
from mailserver.monitoring.memory import memory_limit
from mailserver.store.handoff import Handoff
from mailserver.store.interface import ReceptionDay, Store

log = logging.getLogger(__name__)

LOOK_INTERVAL_S = 15.0
"""Time from the end of one look to the start of the next. Prometheus asks as often or less."""

STORE_INTERVAL_S = 1.0
"""How often we check that the store's files are there, and whether a failure is over. It is also the shortest time
between two changes that are reported: on a disk with little room, large groups fail between small ones that succeed."""

STORE_TIMEOUT_S = 10.0
"""How long a commit may take. A slower disk cannot keep up."""

LAG_INTERVAL_S = 0.5
"""How often the event loop's lag is measured."""

_WENT_BACK = (
    "the compaction has found that the store went back to an earlier moment: restart the mailserver, which gives it "
    "another identity"
)

_TASKS = {Task.MERGE: "merge", Task.VERIFY: "verification", Task.COMMUNITIES: "run for communities"}


@dataclass(frozen=True, slots=True)
class Sight:
    """What one look saw. None means unknown, or a compaction that has never run.

    Problems are one line for the operator, "" if there is none. `days` are those of the store, as many as the record
    of the compaction has of the archive.
    """

    store: StoreFigures | None = None
    database: DatabaseFigures | None = None
    days: tuple[ReceptionDay, ...] = ()
    store_problem: str = ""
    store_damage: str = ""
    disk: DiskFigures | None = None
    compaction: Compaction | None = None
    compaction_figures: CompactionFigures | None = None
    compaction_problem: str = ""
    upkeep_problem: str = ""
    memory_limit: int | None = None
    served: Served | None = None


class Watch:
    """Looks repeatedly. `sight` is what it last saw."""

    def __init__(self, store: Store, data_dir: Path, lag: Histogram) -> None:
        """Take what to look at. `lag` receives the lag of the event loop."""
        self._store = store
        self._data_dir = data_dir
        self._lag = lag
        self.sight = Sight()
        self._worst_lag_s = 0.0
        self._served_problem = ""
        self._changed = asyncio.Event()

    async def run(self, on_look: Callable[[], None], on_change: Callable[[], None]) -> None:
        """Look forever.

        Args:
            on_look: called after each look.
            on_change: called as soon as the store fails, or works again.
        """
        self._store.tell(self._changed.set)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._measure_lag())
            tasks.create_task(self._look_at_files())
            tasks.create_task(self._follow_store(on_change))
            while True:
                await self.look()
                on_look()
                if self.sight.store_problem:
                    self._changed.set()
                await asyncio.sleep(LOOK_INTERVAL_S)

    async def look(self) -> None:
        """Look once."""
        store, days, not_read = await self._look_at_store()
        not_stored = "" if not_read else await self._try_to_store()
        disk = await asyncio.to_thread(_disk, self._data_dir)
        compaction, figures, problem = await _compaction(self._store.handoff)
        upkeep_problem = await _upkeep_problem(self._store.handoff)
        limit = await asyncio.to_thread(memory_limit)
        # What the store itself has seen is read last: it may have failed since it was tried.
        store_problem = self._store.problem or not_read or not_stored
        self.sight = Sight(
            store=store,
            database=await self._database(),
            days=days,
            store_problem=store_problem,
            store_damage=self._store.damage,
            disk=disk,
            compaction=compaction,
            compaction_figures=figures,
            compaction_problem=problem,
            upkeep_problem=upkeep_problem,
            memory_limit=limit,
            served=await self._served(),
        )

    async def _database(self) -> DatabaseFigures | None:
        """How the database is; None if the store is in none, or it cannot be asked, which others say."""
        others = self._store.others
        if others is None:
            return None
        with contextlib.suppress(StoreError):
            return await others.figures()
        return None

    async def _served(self) -> Served | None:
        """What `community serve` has said last; None if it never ran, or that cannot be read."""
        try:
            served = await asyncio.to_thread(read_served, self._data_dir / COMMUNITIES_FOLDER)
        except ServedError as error:
            if str(error) != self._served_problem:
                log.warning("state of communities unknown error=%r", str(error))
            self._served_problem = str(error)
            return None
        self._served_problem = ""
        return served

    def take_worst_lag(self) -> float:
        """The worst lag of the event loop since the last call, in seconds."""
        worst, self._worst_lag_s = self._worst_lag_s, 0.0
        return worst

    async def _look_at_store(self) -> tuple[StoreFigures | None, tuple[ReceptionDay, ...], str]:
        try:
            usage, oldest = await self._store.usage(), await self._store.oldest_reception()
            days = tuple(await self._store.reception_days(MAX_ARCHIVED_DAYS))
            figures = StoreFigures(usage.envelopes, usage.bytes, *await self._store.sizes_on_disk(), oldest)
        except StoreError as error:
            return None, (), str(error)
        return figures, days, ""

    async def _try_to_store(self) -> str:
        """Why nothing can be stored; "" if something can. What this writes may fit where envelopes do not."""
        try:
            async with asyncio.timeout(STORE_TIMEOUT_S):
                await self._store.touch()
        except StoreError as error:
            return str(error)
        except TimeoutError:
            return f"a commit took longer than {STORE_TIMEOUT_S:g} s"
        return ""

    async def _look_at_files(self) -> None:
        while True:
            await asyncio.sleep(STORE_INTERVAL_S)
            with contextlib.suppress(StoreError):  # the store remembers the failure and reports it
                await self._store.check_presence()

    async def _follow_store(self, on_change: Callable[[], None]) -> None:
        """Report a failure at once; then try repeatedly, and report as soon as it is over."""
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(STORE_INTERVAL_S if self.sight.store_problem else None):
                    await self._changed.wait()
            self._changed.clear()
            problem = self._store.problem
            if not problem and self.sight.store_problem:
                problem = await self._try_to_store()
            self.sight = replace(self.sight, store_problem=problem, store_damage=self._store.damage)
            on_change()
            await asyncio.sleep(STORE_INTERVAL_S)

    async def _measure_lag(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            due = loop.time() + LAG_INTERVAL_S
            await asyncio.sleep(LAG_INTERVAL_S)
            lag_s = max(loop.time() - due, 0.0)
            self._lag.observe(lag_s)
            self._worst_lag_s = max(self._worst_lag_s, lag_s)


def _disk(folder: Path) -> DiskFigures | None:
    try:
        disk = os.statvfs(folder)
    except OSError:
        return None
    return DiskFigures(disk.f_bavail * disk.f_frsize, disk.f_blocks * disk.f_frsize)


async def _compaction(handoff: Handoff) -> tuple[Compaction | None, CompactionFigures | None, str]:
    try:
        state, compaction = await handoff.last_run()
        archived = await handoff.archived()
    except MailserverError as error:
        return None, None, str(error)
    except OSError as error:
        return None, None, f"cannot read the record of the last compaction: {error}"
    if compaction is None:
        return None, None, ""
    figures = CompactionFigures(
        finished_at=compaction.finished_at,
        exit_code=compaction.exit_code,
        rows=compaction.rows,
        seconds=compaction.seconds,
        succeeded_at=compaction.succeeded_at,
        verified_at=None if archived is None else archived.verified_at,
        is_running=state is CompactionState.RUNNING,
        has_died=state is CompactionState.DIED,
        archive_faults=compaction.archive.faults,
        lost_rows=compaction.archive.lost_rows,
        quarantined_rows=compaction.archive.quarantined_rows,
        miscounted_rows=compaction.archive.miscounted_rows,
    )
    return compaction, figures, _WENT_BACK if archived is not None and archived.went_back_from else ""


async def _upkeep_problem(handoff: Handoff) -> str:
    """What went wrong with the last merge and the last verification; "" if nothing did."""
    problems = []
    for task, name in _TASKS.items():
        try:
            state, run = await handoff.last_upkeep(task)
        except (MailserverError, OSError) as error:
            problems.append(f"cannot read the record of the last {name}: {error}")
            continue
        if run is not None and state is CompactionState.FAILED:
            problems.append(f"the last {name} failed: {run.error}")
        elif state is CompactionState.DIED:
            problems.append(f"the last {name} was killed")
    return "; ".join(problems)
