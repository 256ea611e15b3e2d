"""`spark-export schedule` and `now`: the compaction as a process of its own, by a cron expression or at once.

Each run is a child process: a JVM that dies, or is killed for its memory, takes no schedule with it, and its memory is
given back. That no two runs meet is the stores' locks' business, whoever starts them.
"""

import argparse
import asyncio
import contextlib
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from mailserver.store.compaction import CompactionRecordError, read_compaction
from spark_export.days import utc_text
from spark_export.due import waiting_since
from spark_export.errors import ExportError
from spark_export.options import COMPACT_OPTIONS, command_line, next_due

log = logging.getLogger(__name__)

MAX_SLEEP_S = 60.0
"""So soon at the latest a clock that was stepped is noticed."""

STOP_LIMIT_S = 7.0
"""How long a run that is interrupted may take to end: Docker's 10 s, less what it takes to be killed."""

_KILLED = 128
"""Exit code of a process that a signal has killed, less the signal: as a shell has it."""


def schedule(arguments: argparse.Namespace) -> int:
    """Run until SIGTERM or SIGINT; return the exit code."""

    async def until_stopped() -> None:
        stores = [Path(store) for store in arguments.store]
        await run_by(arguments.schedule, command_of(arguments), waiting(stores, time.time()), _stop_signals())

    asyncio.run(until_stopped())
    return 0


def now(arguments: argparse.Namespace) -> int:
    """Run once; return the exit code of the run."""

    async def once() -> int:
        return await run_once(command_of(arguments), _stop_signals())

    return asyncio.run(once())


def command_of(arguments: argparse.Namespace) -> list[str]:
    """The command of one run."""
    return [sys.executable, "-m", "spark_export", "compact", *command_line(arguments, COMPACT_OPTIONS)]


def waiting(stores: Sequence[Path], current: float) -> float:
    """Since when one of the stores waits for a run, in Unix seconds; `current`, if none does, or it cannot be told."""
    since = current
    for store in stores:
        if not store.exists():  # as at a first start: the mailserver makes it
            log.info("no store yet store=%s", store)
            continue
        try:
            waits = waiting_since(store, read_compaction(store))
        except (ExportError, CompactionRecordError) as error:
            log.warning("last run unknown cause=%r", str(error))
            continue
        if waits is not None:
            since = min(since, waits)
    return since


async def run_by(
    expression: str,
    command: Sequence[str],
    since: float,
    stop: asyncio.Event,
    clock: Callable[[], float] = time.time,
) -> None:
    """Run a command when it is due, one run at a time, until `stop` is set.

    Args:
        since: Unix seconds: a run that was due after that, and before now, has been missed, and is made at once.
    """
    looked = since
    log.info("schedule started schedule=%r next=%s", expression, utc_text(next_due(expression, clock())))
    while not stop.is_set():
        current = clock()
        # Times that pass while a run is at work are made up for by one run after it; those that a clock stepped back
        # comes to again, by another run, which finds nothing to do.
        due = next_due(expression, looked) <= current
        looked = current
        if due:
            await run_once(command, stop)
            log.info("schedule waiting next=%s", utc_text(next_due(expression, clock())))
            continue
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(stop.wait(), min(MAX_SLEEP_S, next_due(expression, current) - current))
    log.info("schedule stopped")


async def run_once(command: Sequence[str], stop: asyncio.Event) -> int:
    """Make one run as a child process, which is ended when `stop` is set; return its exit code."""
    began = time.monotonic()
    # A session of its own: a terminal's Ctrl-C reaches it through us only, and its JVM can be killed with it.
    child = await asyncio.create_subprocess_exec(*command, stdin=subprocess.DEVNULL, start_new_session=True)
    ended, stopped = asyncio.create_task(child.wait()), asyncio.create_task(stop.wait())
    await asyncio.wait({ended, stopped}, return_when=asyncio.FIRST_COMPLETED)
    if not ended.done():
        # Not `child.terminate()`, which reaps a child that has just ended: asyncio then takes 255 for its exit code.
        with contextlib.suppress(ProcessLookupError):
            os.kill(child.pid, signal.SIGTERM)
        await asyncio.wait({ended}, timeout=STOP_LIMIT_S)
    if not ended.done():
        log.error("run killed, it does not end limit_s=%g", STOP_LIMIT_S)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
    stopped.cancel()
    code = await ended
    exit_code = code if code >= 0 else _KILLED - code
    log.log(
        logging.INFO if exit_code == 0 else logging.ERROR,
        "run ended exit_code=%d seconds=%.1f",
        exit_code,
        time.monotonic() - began,
    )
    return exit_code


def _stop_signals() -> asyncio.Event:
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    return stop
