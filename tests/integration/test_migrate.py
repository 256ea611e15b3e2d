"""`waku-mailserver migrate` beside real daemons, killed again and again, and with a database that is killed."""

import asyncio
import json
import time
from pathlib import Path

import pytest

from mailserver.store.interface import NewEnvelope
from tests.faults.disk_client import Client, connected, serves
from tests.integration.daemons import assert_no_traceback, run_command, running_daemon, started_command
from tests.mailservers import make_envelope, stored
from tests.moving.ends import End, columns, database, file_in
from tests.store.postgres.server import Server

pytestmark = pytest.mark.integration

COUNT = 20_000
KILLS = (1, 4000, 9000)
"""At how many moved envelopes the command is killed."""

DEADLINE_S = 60.0


def old_envelopes(count: int) -> list[NewEnvelope]:
    """So many envelopes of the last days, which a daemon keeps."""
    now = int(time.time())
    return [
        stored(
            make_envelope(number, created=now - 200_000 + number, data_bytes=300), received=now - 190_000 + 7 * number
        )
        for number in range(count)
    ]


async def count(end: End) -> int:
    ((found,),) = await end.rows("SELECT count(*) FROM envelopes")
    return int(found)


async def until_count(end: End, least: int) -> None:
    """Wait until there is more in a store than so many."""
    async with asyncio.timeout(DEADLINE_S):
        while True:
            if await count(end) >= least:
                return
            await asyncio.sleep(0.005)


async def test_killed_again_and_again_beside_two_daemons_it_moves_all(durable_server: Server, tmp_path: Path) -> None:
    source, target = file_in(tmp_path / "old"), database(durable_server)
    envelopes, client = old_envelopes(COUNT), Client(seed=1)
    client.sent |= {envelope.hash: envelope.raw for envelope in envelopes}
    client.confirmed |= client.sent
    await source.fill(envelopes)
    migrate = ("migrate", "--from", source.place, "--to", target.place)
    killed = 0
    with (
        running_daemon(tmp_path / "old") as old,
        running_daemon(tmp_path / "new", "--store", str(target.place)) as new,
    ):
        async with connected(old) as mail, connected(new) as other:
            for least in KILLS:
                with started_command(*migrate) as process:
                    assert await client.post(mail, client.envelopes(20))
                    assert await client.post(other, client.envelopes(5))
                    await until_count(target, least)
                    process.kill()
                    await asyncio.to_thread(process.communicate)
                killed += process.returncode == -9
            assert await client.post(mail, client.envelopes(20))
            done = await asyncio.to_thread(run_command, *migrate, "--json", within_s=DEADLINE_S)
            assert await client.post(mail, client.envelopes(20))
        assert old.stop() == 0
        last = await asyncio.to_thread(run_command, *migrate, "--json", within_s=DEADLINE_S)
        async with connected(new) as other:
            assert client.faults_of(await serves(other)) == []
        assert new.stop() == 0
    for file in (tmp_path / "old").glob("mailserver.db*"):
        file.rename(tmp_path / file.name)
    with running_daemon(tmp_path / "old", "--store", str(target.place)) as daemon:
        async with connected(daemon) as mail:
            assert client.faults_of(await serves(mail)) == []
        assert daemon.stop() == 0

    assert killed == len(KILLS)
    assert done.returncode == last.returncode == 0, done.stderr + last.stderr
    report = json.loads(last.stdout)
    assert report["missing"] == {"count": 0, "is_all": True, "ids": []}
    assert report["moved"] + report["there"] == report["envelopes"] == COUNT + 100
    assert report["more"]["count"] == 15
    expected = columns(envelopes)
    old_ones = set(expected)
    assert [row for row in await target.rows() if row in old_ones] == expected


async def test_database_that_is_killed_amid_a_move_costs_nothing(durable_server: Server, tmp_path: Path) -> None:
    source, target = file_in(tmp_path / "data"), database(durable_server)
    envelopes = old_envelopes(COUNT)
    await source.fill(envelopes)
    async with target.open():
        pass
    migrate = ("migrate", "--from", source.place, "--to", target.place)

    with started_command(*migrate) as process:
        await until_count(target, 4000)
        await asyncio.to_thread(durable_server.kill)
        _, said = await asyncio.to_thread(process.communicate)
    await asyncio.to_thread(durable_server.start)
    done = await asyncio.to_thread(run_command, *migrate, within_s=DEADLINE_S)

    assert process.returncode == 1
    assert_no_traceback(said)
    # Above it there may be a line of the log.
    assert said.splitlines()[-1].startswith("waku-mailserver: cannot "), said
    assert "database" in said.splitlines()[-1]
    assert done.returncode == 0, done.stderr
    assert await target.rows() == columns(envelopes)
    assert done.stdout.splitlines()[-1] == f"message ids compared: all of {COUNT} envelopes are there"


async def test_moved_back_and_killed_it_is_the_store_of_the_next_daemon(durable_server: Server, tmp_path: Path) -> None:
    source, target = database(durable_server), file_in(tmp_path / "data")
    envelopes, client = old_envelopes(COUNT), Client(seed=3)
    client.sent |= {envelope.hash: envelope.raw for envelope in envelopes}
    client.confirmed |= client.sent
    await source.fill(envelopes)
    async with target.open():
        pass
    migrate = ("migrate", "--from", source.place, "--to", target.place)

    with started_command(*migrate) as process:
        await until_count(target, 6000)
        process.kill()
        await asyncio.to_thread(process.communicate)
    assert process.returncode == -9
    done = await asyncio.to_thread(run_command, *migrate, within_s=DEADLINE_S)

    assert done.returncode == 0, done.stderr
    assert await target.rows() == columns(envelopes)
    with running_daemon(tmp_path / "data") as daemon:
        async with connected(daemon) as mail:
            assert client.faults_of(await serves(mail)) == []
        assert daemon.stop() == 0
