"""`spark-export schedule`, `nightly` and `now`: runs as processes of their own, by cron expressions or at once.

Each run is a child process: a JVM that dies, or is killed for its memory, does not take the schedule with it, and its
memory is given back. Runs are made one after another: what is due at the same time, or comes due while another
run is at work, waits for it. The locks on stores and archive keep out runs that others start.

Stores are asked in threads: to ask a database takes an event loop of its own (`mailserver.store.postgres.job`), and it
may take minutes to answer. A signal that comes meanwhile stops the schedule at once; the thread ends with the process.
"""

import argparse
import asyncio
import concurrent.futures
import contextlib
import logging
import os
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from mailserver.archive.days import utc_text
from mailserver.community.owner.folders import owned
from mailserver.community.owner.record import CommunityError
from mailserver.errors import StoreError
from mailserver.handoff.last_run import CompactionRecordError
from mailserver.handoff.last_upkeep import Task
from spark_export.errors import ExportError, MailserverFirst
from spark_export.options import (
    COMMUNITIES_OPTIONS,
    COMPACT_OPTIONS,
    MERGE_OPTIONS,
    OFF,
    SCHEDULE,
    STORE,
    VERIFY_OPTIONS,
    Option,
    command_line,
    next_due,
)
from spark_export.overdue import waiting_since
from spark_export.places import StorePlace, places_of, read_compaction
from spark_export.store import check_mailserver_was_first
from spark_export.upkeep import anything_archived, put_off, waits_since

log = logging.getLogger(__name__)

MAX_SLEEP_S = 60.0
"""A clock that was stepped is noticed within this time."""

MAILSERVER_POLL_S = 1.0
"""How often a store is looked at that waits for the mailserver."""

STOP_LIMIT_S = 7.0
"""How long a run that is interrupted may take to end: Docker's 10 s, less the time for killing it."""

_KILLED = 128
"""Exit code of a process that a signal has killed, less the signal: as a shell has it."""

_COMPACT = "compact"
_SECONDS_PER_HOUR = 3600

T = TypeVar("T")


class _Stopped(Exception):
    """A signal has come while a store was asked."""


@dataclass(frozen=True, slots=True)
class ScheduledRun:
    """One run: a command, and how many seconds it may take. A run that takes longer must be hanging, and is ended.

    `environment`: variables that it has besides ours.
    """

    name: str
    command: Sequence[str]
    limit_s: float
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass(slots=True)
class ScheduledJob:
    """A run that a cron expression schedules.

    Args:
        since: Unix seconds: a run that was due after that, and before now, has been missed, and is made at once.
        has_work: whether there is anything to do, asked in a thread when it is due.
        has_failed: whether its last run failed: it is made again after the next run of an earlier job.
    """

    run: ScheduledRun
    expression: str
    since: float
    has_work: Callable[[], bool] = lambda: True
    has_failed: bool = False

    def is_due(self, current: float) -> bool:
        """Whether it was due since the last time."""
        return next_due(self.expression, self.since) <= current


def schedule(arguments: argparse.Namespace) -> int:
    """Run until SIGTERM or SIGINT; return the exit code."""

    async def until_stopped(stores: Sequence[StorePlace]) -> int:
        stop = _stop_signals()
        with contextlib.suppress(_Stopped):
            await _until_mailserver_was_first(stores, stop)
            current = time.time()
            since = await _asked(partial(waiting, stores, current), stop)
            compaction = ScheduledJob(_run(_COMPACT, arguments, COMPACT_OPTIONS), arguments.schedule, since)
            upkeep = await _asked(partial(_upkeep, arguments, stores, current), stop)
            await run_by([compaction, *_of_communities(arguments, arguments.schedule, since), *upkeep], stop)
        log.info("schedule stopped")
        return 0

    return asyncio.run(until_stopped(places_of(arguments.store)))


def nightly(arguments: argparse.Namespace) -> int:
    """Compact, make the history archives of communities, then merge and verify if they are due; return the exit code of
    the last run that failed, else 0."""

    async def once(stores: Sequence[StorePlace]) -> int:
        stop, current = _stop_signals(), time.time()
        exit_code = await run_once(_run(_COMPACT, arguments, COMPACT_OPTIONS), stop)
        with contextlib.suppress(_Stopped):
            upkeep = await _asked(partial(_upkeep, arguments, stores, current), stop)
            due = [job for job in upkeep if job.is_due(current)]
            for job in (*_of_communities(arguments, str(SCHEDULE.default), current), *due):
                if await _asked(job.has_work, stop):
                    exit_code = await run_once(job.run, stop) or exit_code
        return exit_code

    return asyncio.run(once(places_of(arguments.store)))


def now(arguments: argparse.Namespace) -> int:
    """Compact once; return the exit code of the run."""

    async def once() -> int:
        return await run_once(_run(_COMPACT, arguments, COMPACT_OPTIONS), _stop_signals())

    return asyncio.run(once())


def _upkeep(arguments: argparse.Namespace, stores: Sequence[StorePlace], current: float) -> list[ScheduledJob]:
    """The jobs for the whole archive, in the order in which they run if both are due."""
    return [
        ScheduledJob(
            _run(task.value, arguments, options),
            expression,
            waits_since(stores, task, current),
            partial(_has_archive, stores, task),
        )
        for task, expression, options in (
            (Task.MERGE, arguments.merge_schedule, MERGE_OPTIONS),
            (Task.VERIFY, arguments.verify_schedule, VERIFY_OPTIONS),
        )
        if expression != OFF
    ]


def _of_communities(arguments: argparse.Namespace, expression: str, since: float) -> list[ScheduledJob]:
    """The run for communities, which follows each compaction, if there is a folder of them."""
    if not arguments.communities:
        return []
    run = _run(Task.COMMUNITIES.value, arguments, COMMUNITIES_OPTIONS)
    return [ScheduledJob(run, expression, since, partial(_has_communities, Path(arguments.communities)))]


def _has_communities(folder: Path) -> bool:
    """Whether there is a community that we own."""
    try:
        return any(True for _ in owned(folder))
    except CommunityError as error:  # the run says so
        log.warning("communities unknown cause=%r", str(error))
        return True


def _run(name: str, arguments: argparse.Namespace, options: Sequence[Option]) -> ScheduledRun:
    flags = command_line(arguments, [option for option in options if option.name != STORE.name])
    command = [sys.executable, "-m", "spark_export", name, *flags]
    # A URL may have a password, and everybody on the machine may read a command line.
    environment = {STORE.variable: shlex.join(arguments.store)}
    return ScheduledRun(name, command, float(arguments.max_run_hours) * _SECONDS_PER_HOUR, environment)


async def _until_mailserver_was_first(stores: Sequence[StorePlace], stop: asyncio.Event) -> None:
    """Wait until the mailserver was started on each store that cannot be read before.

    After an upgrade, or where a backup was restored, both start at one moment. It would not be known since when a run
    is due, or that run would fail.

    Raises:
        _Stopped: `stop` is set.
    """
    told = ""
    while cause := await _asked(partial(_what_waits_for_mailserver, stores), stop):
        if cause != told:
            log.info("schedule waits for the mailserver cause=%r", cause)
            told = cause
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(stop.wait(), MAILSERVER_POLL_S)


def _what_waits_for_mailserver(stores: Sequence[StorePlace]) -> str:
    """Why a store cannot be read before the mailserver was started on it; "" if none is such a store."""
    for store in stores:
        try:
            check_mailserver_was_first(store)
        except MailserverFirst as error:
            return str(error)
        except (ExportError, StoreError):  # `waiting` says so
            continue
    return ""


def waiting(stores: Sequence[StorePlace], current: float) -> float:
    """Since when one of the stores has been waiting for a run, in Unix seconds; `current` if none has, or that is
    unknown."""
    since = current
    for store in stores:
        try:
            if not store.exists():  # as at a first start: the mailserver makes it
                log.info("no store yet store=%s", store)
                continue
            waits = waiting_since(store, read_compaction(store))
        except (ExportError, StoreError, CompactionRecordError) as error:
            log.warning("last run unknown cause=%r", str(error))
            continue
        if waits is not None:
            since = min(since, waits)
    return since


def _has_archive(stores: Sequence[StorePlace], task: Task) -> bool:
    """Whether the compaction has archived anything yet. If not, the task waits for its next time."""
    try:
        if anything_archived(stores):
            return True
    except (CompactionRecordError, StoreError) as error:  # the task finds out
        log.warning("last run unknown cause=%r", str(error))
        return True
    log.info("nothing archived yet command=%s", task.value)
    put_off(stores, task, time.time())
    return False


async def run_by(jobs: Sequence[ScheduledJob], stop: asyncio.Event, clock: Callable[[], float] = time.time) -> None:
    """Run each job when it is due, one run at a time, until `stop` is set."""
    for job in jobs:
        upcoming = utc_text(next_due(job.expression, clock()))
        log.info("schedule started command=%s schedule=%r next=%s", job.run.name, job.expression, upcoming)
    with contextlib.suppress(_Stopped):
        while not stop.is_set():
            if await _run_what_is_due(jobs, stop, clock):
                for job in jobs:
                    upcoming = utc_text(next_due(job.expression, clock()))
                    log.info("schedule waiting command=%s next=%s", job.run.name, upcoming)
                continue
            current = clock()
            soonest = min(next_due(job.expression, current) for job in jobs)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(stop.wait(), min(MAX_SLEEP_S, soonest - current))


async def _run_what_is_due(jobs: Sequence[ScheduledJob], stop: asyncio.Event, clock: Callable[[], float]) -> bool:
    """Make a run of each job that is due, in their order; return whether there was one.

    Raises:
        _Stopped: `stop` is set.
    """
    has_run = False
    for job in jobs:
        current = clock()
        # Times that pass while runs are at work are made up for by one run afterwards. A clock that was stepped back
        # comes to some times again: the run that is made then finds nothing to do.
        is_due = job.is_due(current) or (job.has_failed and has_run)
        job.since = current
        if is_due and await _asked(job.has_work, stop):
            job.has_failed = await run_once(job.run, stop) != 0
            has_run = True
    return has_run


async def _asked(ask: Callable[[], T], stop: asyncio.Event) -> T:
    """What stores say, who are asked in a thread. An executor's would be waited for before the process can end.

    Raises:
        _Stopped: `stop` is set, or was before there was an answer. Nobody waits for it then.
    """
    answer: concurrent.futures.Future[T] = concurrent.futures.Future()
    answer.set_running_or_notify_cancel()

    def run() -> None:
        try:
            answer.set_result(ask())
        except Exception as error:  # noqa: BLE001 - whoever waits for the answer gets it
            answer.set_exception(error)

    answered, stopped = asyncio.wrap_future(answer), asyncio.create_task(stop.wait())
    either: set[asyncio.Future[Any]] = {answered, stopped}
    if not stop.is_set():
        threading.Thread(target=run, name="store", daemon=True).start()
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
    stopped.cancel()
    if stop.is_set():
        answered.cancel()
        raise _Stopped
    return await answered


async def run_once(run: ScheduledRun, stop: asyncio.Event) -> int:
    """Make a run as a child process, which is ended when `stop` is set, or it takes too long; return its exit code."""
    began = time.monotonic()
    # A session of its own: a terminal's Ctrl-C reaches it through us only, and its JVM can be killed with it.
    child = await asyncio.create_subprocess_exec(
        *run.command, stdin=subprocess.DEVNULL, start_new_session=True, env={**os.environ, **run.environment}
    )
    ended, stopped = asyncio.create_task(child.wait()), asyncio.create_task(stop.wait())
    done, _ = await asyncio.wait({ended, stopped}, timeout=run.limit_s, return_when=asyncio.FIRST_COMPLETED)
    if not done:
        log.error("run interrupted, it took too long command=%s limit_s=%g", run.name, run.limit_s)
    if not ended.done():
        # Not `child.terminate()`, which reaps a child that has just ended: asyncio then takes 255 for its exit code.
        with contextlib.suppress(ProcessLookupError):
            os.kill(child.pid, signal.SIGTERM)
        await asyncio.wait({ended}, timeout=STOP_LIMIT_S)
    if not ended.done():
        log.error("run killed, it did not end command=%s limit_s=%g", run.name, STOP_LIMIT_S)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
    stopped.cancel()
    code = await ended
    exit_code = code if code >= 0 else _KILLED - code
    log.log(
        logging.INFO if exit_code == 0 else logging.ERROR,
        "run ended command=%s exit_code=%d seconds=%.1f",
        run.name,
        exit_code,
        time.monotonic() - began,
    )
    return exit_code


def _stop_signals() -> asyncio.Event:
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    return stop
