"""Several workers in this process, on one store in a file: what each does, and what there is one of.

That whole processes do the same, `tests/integration/test_workers.py` says.
"""

import asyncio
import contextlib
import os
import socket
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from mailserver.app.config import Config
from mailserver.app.daemon import run_daemon
from mailserver.app.workers import Board, Worker, with_reloaded
from mailserver.data_dir.folder import read_enode
from mailserver.net.listener import BACKLOG
from mailserver.net.shared_port import index_of, open_shared_port
from tests.app.daemons import ask, clear_request, fresh
from tests.raw_peer import RawPeer
from tests.waiting import DEADLINE_S, until

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(sys.platform != "linux", reason="only Linux chooses sockets by a program"),
]


@dataclass
class Running:
    """A worker that runs in this process."""

    task: asyncio.Task[None]
    supervisor: int

    async def stop(self) -> None:
        """As if its supervisor had gone."""
        os.close(self.supervisor)
        await asyncio.wait_for(self.task, DEADLINE_S)


@contextlib.asynccontextmanager
async def workers(config: Config, count: int) -> AsyncIterator[tuple[list[Running], Board]]:
    """Run workers on a free port; stop them at the end, the first one last."""
    board, running = Board(count), list[Running]()
    config = replace(config, workers=count)
    try:
        for number, sockets in enumerate(open_shared_port("127.0.0.1", 0, count, BACKLOG)):
            lifeline, supervisor = os.pipe()
            worker = Worker(number, sockets, board, lifeline, supervisor=0)
            task = asyncio.create_task(run_daemon(config, lambda: config, worker=worker))
            running.append(Running(task, supervisor))
            await until(lambda: task.done() or board[number])  # noqa: B023
            assert not task.done(), task.exception()
        yield running, board
        for each in reversed(running):
            await each.stop()
    finally:
        for each in running:
            each.task.cancel()
        await asyncio.gather(*(each.task for each in running), return_exceptions=True)


async def join(data_dir: Path, worker: int, count: int) -> RawPeer:
    """A peer of a worker."""
    enode = read_enode(data_dir)
    source = next(f"127.0.{n}.2" for n in range(256) if index_of(f"127.0.{n}.2", count) == worker)
    end = socket.create_connection((enode.host, enode.port), source_address=(source, 0))
    raw = await RawPeer.dial(end, enode.node_id, name=f"peer of {worker}")
    return await raw.greet()


async def test_history_of_each_worker_has_what_any_has_confirmed(tmp_path: Path) -> None:
    async with workers(Config(data_dir=tmp_path, feed_socket=True), 2) as (_, board):
        raws = [await join(tmp_path, number, 2) for number in range(2)]
        for number, raw in enumerate(raws):
            raw.say(1, fresh(number))
            await raw.hear_confirmation()

        for raw in raws:
            packets, _ = await ask(raw, clear_request())
            assert packets >= 1
        assert board.running == 2
        for raw in raws:
            await raw.close()


async def test_worker_confirms_nothing_while_the_first_is_away(tmp_path: Path) -> None:
    async with workers(Config(data_dir=tmp_path), 2) as (running, _):
        raw = await join(tmp_path, 1, 2)
        await running[0].stop()
        raw.say(1, fresh())

        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.3):
                await raw.hear_confirmation()
        await raw.close()
        running.pop(0)


def test_reload_changes_only_what_may_be_changed() -> None:
    config = Config(data_dir=Path("here"), workers=2, max_peers=5)

    assert with_reloaded(config, Config(data_dir=Path("there"), max_peers=7)) == replace(config, max_peers=7)
