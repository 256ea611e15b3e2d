"""A process that catches up is killed with SIGKILL, again and again: nothing is lost, nothing is there twice."""

import asyncio
import random
import sys
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

import pytest

from mailserver.catchup.ledger import open_ledger
from tests.catchup.running import WHOLE, assert_stored
from tests.catchup.servers import Archive, Server, make_envelopes, serving
from tests.waiting import DEADLINE_S, until

pytestmark = [pytest.mark.integration, pytest.mark.asyncio(loop_factories=["asyncio"])]  # it is not our loop

THREE_DAYS = make_envelopes(4000, step_s=60)
SMALL = 50

PROCESS_DEADLINE_S = 20 * DEADLINE_S
"""How long a test waits for a process of its own, which takes seconds only to start where many others want to run."""


async def start(folder: Path, server: Server) -> asyncio.subprocess.Process:
    arguments = [str(folder), str(server.enode), *map(str, WHOLE)]
    return await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.catchup.killed_run", *arguments, stdout=asyncio.subprocess.PIPE
    )


async def finish(folder: Path, server: Server) -> None:
    process = await start(folder, server)
    said, _ = await asyncio.wait_for(process.communicate(), PROCESS_DEADLINE_S)

    assert (said, process.returncode) == (b"done\n", 0)
    assert_stored(folder, THREE_DAYS)
    assert open_ledger(folder).account(server.enode.node_id).pending == []


async def kill_when(folder: Path, server: Server, moment: Callable[[], Awaitable[None]]) -> None:
    """Start it, and kill it then. It must not end before that by itself."""
    process = await start(folder, server)
    ended = asyncio.create_task(process.wait())
    reached = asyncio.ensure_future(moment())
    try:
        await asyncio.wait([reached, ended], return_when=asyncio.FIRST_COMPLETED)
        assert reached.done(), f"the process has ended, exit code {process.returncode}"
        await reached
    finally:
        reached.cancel()
        if process.returncode is None:
            process.kill()
        await process.communicate()
        await ended
    open_ledger(folder)  # is whole, or not there yet


async def requested(server: Server, count: int) -> None:
    """Wait for this many requests in all."""
    await until(lambda: len(server.requests) >= count, PROCESS_DEADLINE_S)


async def test_process_that_is_killed_at_some_requests_ends_with_everything(tmp_path: Path) -> None:
    async with serving(Archive(THREE_DAYS, max_limit=SMALL)) as server:
        for more in (1, 2, 10, 25):
            goal = len(server.requests) + more
            await kill_when(tmp_path, server, partial(requested, server, goal))
        await finish(tmp_path, server)

    undisturbed = len(THREE_DAYS) // SMALL + 4
    assert len(server.requests) < undisturbed + 40  # it went on, and did not begin anew


async def test_process_that_is_killed_at_any_moment_ends_with_everything(tmp_path: Path) -> None:
    rng = random.Random(7)

    async with serving(Archive(THREE_DAYS, max_limit=SMALL)) as server:
        for _ in range(6):
            one_more = len(server.requests) + 1

            async def a_moment_after_it_began() -> None:
                await requested(server, one_more)  # noqa: B023
                await asyncio.sleep(rng.uniform(0, 0.15))  # any moment is what is wanted

            await kill_when(tmp_path, server, a_moment_after_it_began)
        await finish(tmp_path, server)


async def test_process_that_is_killed_before_it_has_begun_leaves_nothing_that_disturbs(tmp_path: Path) -> None:
    rng = random.Random(8)

    async with serving(Archive(THREE_DAYS, max_limit=1000)) as server:
        for _ in range(3):
            await kill_when(tmp_path, server, lambda: asyncio.sleep(rng.uniform(0.2, 0.5)))
        await finish(tmp_path, server)
