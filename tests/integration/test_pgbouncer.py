"""Real daemons whose store is behind a real PgBouncer."""

import asyncio
from pathlib import Path

import pytest

from tests.faults.disk_client import Client, connected, metrics_port, serves, until_ready
from tests.integration.daemons import run_command, running_daemon
from tests.store.postgres.pooler import Pooler
from tests.store.postgres.server import Server, new_schema

pytestmark = pytest.mark.integration


async def test_killed_pooler_costs_nothing_that_was_confirmed(durable_server: Server, tmp_path: Path) -> None:
    pooler, client = Pooler(durable_server, new_schema(durable_server), "session"), Client(seed=1)
    pooler.start()
    try:
        with running_daemon(tmp_path / "data", "--store", pooler.url, "--metrics", "127.0.0.1:0") as daemon:
            port = metrics_port(daemon)
            await until_ready(port, 200)
            async with connected(daemon) as mail:
                for _ in range(5):
                    assert await client.post(mail, client.envelopes(20))
                await asyncio.to_thread(pooler.kill)
                assert not await client.post(mail, client.envelopes(3), within_s=2)
                await until_ready(port, 503)
            await asyncio.to_thread(pooler.start)
            await until_ready(port, 200)
            async with connected(daemon) as mail:
                assert await client.post(mail, client.envelopes(20))
                assert client.faults_of(await serves(mail)) == []
            assert len([line for line in daemon.lines if "database can be reached again" in line]) == 1
            assert daemon.stop() == 0
    finally:
        pooler.remove()


def test_daemon_behind_a_pooler_of_transactions_does_not_start_however_often_it_is_tried(
    durable_server: Server, tmp_path: Path
) -> None:
    pooler = Pooler(durable_server, new_schema(durable_server), "transaction")
    pooler.start()
    run = ("run", "--data-dir", tmp_path / "data", "--store", pooler.url, "--listen", "127.0.0.1:0")
    try:
        # The second names its statements as the first has, at the same process of the server.
        tries = [run_command(*run) for _ in range(2)]
    finally:
        pooler.remove()

    for done in tries:
        assert done.returncode == 1
        assert "have it pool sessions (PgBouncer: pool_mode = session)" in done.stderr.splitlines()[-1]
        assert "Traceback" not in done.stderr
