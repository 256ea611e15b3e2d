"""The feed socket between processes: a daemon that is killed and comes back, a gateway that is killed."""

import asyncio
import contextlib
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from mailserver.feed_socket.client import FeedClient, FeedGap
from mailserver.store.sqlite.schema import STORE_FILE
from mailserver.waku.envelope import Envelope, encode_envelope
from tests.integration.daemons import DEADLINE_S, Daemon, running_daemon
from tests.mailservers import NEWS
from tests.pairs import digest
from tests.waiting import until

pytestmark = pytest.mark.integration

GATEWAY = """
import asyncio, sys
from pathlib import Path
from mailserver.feed_socket.client import FeedClient

async def run():
    client = FeedClient(Path(sys.argv[1]))
    task = asyncio.create_task(client.run())
    while True:
        print(await client.next(), flush=True)

asyncio.run(run())
"""
"""A gateway that says what comes."""


def live_envelope(number: int) -> Envelope:
    """An envelope of this moment; its proof of work is enough for a daemon's default."""
    return encode_envelope(int(time.time()) + 60, 60, NEWS, digest(f"live {number}") * 8, number)


def is_stored(data_dir: Path, envelope: Envelope) -> bool:
    with contextlib.closing(sqlite3.connect(data_dir / STORE_FILE)) as other:
        return other.execute("SELECT 1 FROM envelopes WHERE raw = ?", (envelope.raw,)).fetchone() is not None


def run_gateway_and_kill_it(daemon: Daemon) -> int:
    """Run a gateway until it is connected; return the number of its process."""
    command = [sys.executable, "-c", GATEWAY, str(daemon.data_dir)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
        daemon.wait_for_line(f"gateway connected pid={process.pid} gateways=1")
        process.send_signal(signal.SIGKILL)
    return process.pid


@contextlib.asynccontextmanager
async def gateway(data_dir: Path) -> AsyncIterator[FeedClient]:
    client = FeedClient(data_dir)
    task = asyncio.create_task(client.run())
    try:
        yield client
    finally:
        task.cancel()
        await asyncio.wait([task])


async def take(client: FeedClient) -> FeedGap | list[bytes]:
    item = await asyncio.wait_for(client.next(), DEADLINE_S)
    return item if isinstance(item, FeedGap) else [envelope.raw for envelope in item]


async def test_daemon_that_is_killed_has_all_it_confirmed_and_its_gateway_comes_back(tmp_path: Path) -> None:
    async with gateway(tmp_path) as client:
        with running_daemon(tmp_path, "--feed-socket"):
            assert await take(client) == FeedGap(None)
            confirmed = [live_envelope(number) for number in range(50)]
            assert await asyncio.gather(*(client.post(envelope.raw) for envelope in confirmed)) == [None] * 50
        await until(lambda: client.terms is None)
        assert all(is_stored(tmp_path, envelope) for envelope in confirmed)

        with running_daemon(tmp_path, "--feed-socket") as daemon:
            while await take(client) != FeedGap(None):
                pass  # what came before the end
            envelope = live_envelope(50)
            assert await client.post(envelope.raw) is None
            assert await take(client) == [envelope.raw]
            assert daemon.stop() == 0


async def test_gateway_that_is_killed_is_no_concern_of_the_daemon(tmp_path: Path) -> None:
    with running_daemon(tmp_path, "--feed-socket") as daemon:
        pid = run_gateway_and_kill_it(daemon)
        daemon.wait_for_line(f"gateway gone pid={pid} cause='it hung up'")

        async with gateway(tmp_path) as client:
            assert await take(client) == FeedGap(None)
            envelope = live_envelope(1)
            assert await client.post(envelope.raw) is None
            assert await take(client) == [envelope.raw]
        assert daemon.stop() == 0
        assert [line for line in daemon.told if " ERROR " in line or " WARNING " in line] == []
