"""The store is removed or replaced while the daemon runs: nothing is confirmed any more, and all can be saved."""

import asyncio
import json
import shutil
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from mailserver.data_dir.folder import KEY_FILE
from mailserver.store.sqlite.schema import STORE_FILE
from tests.faults.disk_client import Client, connected, metrics_port, ready, serves
from tests.integration.daemons import Daemon, run_command, running_daemon

pytestmark = pytest.mark.integration

WITHIN_S = 5.0
"""So soon it is known, on a machine that has much else to do: it is looked once a second."""

LOST = "store lost, nothing is stored until a restart"


def remove_all(data: Path) -> None:
    for file in data.glob(f"{STORE_FILE}*"):
        file.unlink()


def remove_folder(data: Path) -> None:
    shutil.rmtree(data)


def replace_by_backup(data: Path) -> None:
    done = run_command("backup", "--data-dir", data, data.with_name("backup"))
    assert done.returncode == 0, done.stderr
    (data.with_name("backup") / STORE_FILE).replace(data / STORE_FILE)


def until_not_ready(port: int) -> str:
    """Wait until `/ready` says 503; return what it says then."""
    deadline = time.monotonic() + WITHIN_S
    while (answer := ready(port))[0] != 503:
        assert time.monotonic() < deadline, answer
    return answer[1]


def copy_what_is_open(daemon: Daemon, target: Path) -> None:
    """As docs/operating/recipes.md says."""
    target.mkdir()
    for descriptor in Path(f"/proc/{daemon.process.pid}/fd").iterdir():
        name = str(descriptor.readlink()).removesuffix(" (deleted)")
        if name.endswith((STORE_FILE, f"{STORE_FILE}-wal", f"{STORE_FILE}-shm")):
            shutil.copy(descriptor, target / Path(name).name)


@pytest.mark.parametrize("harm", [remove_all, remove_folder, replace_by_backup])
async def test_nothing_is_confirmed_and_503_says_why(tmp_path: Path, harm: Callable[[Path], None]) -> None:
    data, client = tmp_path / "data", Client(seed=2)
    with running_daemon(data, "--metrics", "127.0.0.1:0") as daemon:
        port = metrics_port(daemon)
        async with connected(daemon) as mail:
            assert await client.post(mail, client.envelopes(3))
            await asyncio.to_thread(harm, data)
            assert not await client.post(mail, client.envelopes(3), within_s=1)
            text = await asyncio.to_thread(until_not_ready, port)
        async with connected(daemon) as mail:
            assert not await client.post(mail, client.envelopes(3), within_s=1)
            assert client.faults_of(await serves(mail)) == []  # history is answered
        assert daemon.stop() == 0

    (problem,) = [problem for problem in json.loads(text)["problems"] if problem["check"] == "store"]
    assert problem["fatal"]
    assert f"{data / STORE_FILE} was re" in problem["text"]
    assert len([line for line in daemon.lines if LOST in line]) == 1


async def test_it_is_known_though_nobody_sends_anything(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with running_daemon(data, "--metrics", "127.0.0.1:0") as daemon:
        remove_all(data)

        text = await asyncio.to_thread(until_not_ready, metrics_port(daemon))

        assert "was removed" in text


async def test_what_was_confirmed_is_saved_from_the_files_that_are_open(tmp_path: Path) -> None:
    data, saved, client = tmp_path / "data", tmp_path / "saved", Client(seed=3)
    with running_daemon(data) as daemon:
        async with connected(daemon) as mail:
            assert await client.post(mail, client.envelopes(30))
            remove_all(data)
            assert not await client.post(mail, client.envelopes(3), within_s=1)
        daemon.wait_for_line(LOST)

        copy_what_is_open(daemon, saved)
        shutil.copy(data / KEY_FILE, saved)
        checked = run_command("check", "--data-dir", saved)
        assert checked.returncode == 0, checked.stderr
        daemon.stop()

    refused = run_command("run", "--data-dir", data, "--listen", "127.0.0.1:0")
    assert refused.returncode == 1
    assert f"{data / STORE_FILE} is not there, but there was a store before" in refused.stderr
    assert not (data / STORE_FILE).exists()
    with running_daemon(saved) as daemon:
        async with connected(daemon) as mail:
            assert client.faults_of(await serves(mail)) == []


async def test_backup_that_was_put_in_its_place_is_there_after_a_restart(tmp_path: Path) -> None:
    data, client = tmp_path / "data", Client(seed=4)
    with running_daemon(data) as daemon:
        async with connected(daemon) as mail:
            assert await client.post(mail, client.envelopes(3))
            await asyncio.to_thread(replace_by_backup, data)
            daemon.wait_for_line(LOST)
        assert daemon.stop() == 0
    (data / f"{STORE_FILE}-wal").unlink()  # of the former store; docs/operating/recipes.md says so

    with running_daemon(data) as daemon:
        async with connected(daemon) as mail:
            assert client.faults_of(await serves(mail)) == []


async def test_failed_write_is_503_at_once_and_200_as_soon_as_it_is_over(tmp_path: Path) -> None:
    data, client = tmp_path / "data", Client(seed=5)
    with running_daemon(data, "--metrics", "127.0.0.1:0") as daemon:
        port = metrics_port(daemon)
        async with connected(daemon) as mail:
            assert await client.post(mail, client.envelopes(3))
            assert ready(port)[0] == 200
            locked = sqlite3.connect(data / STORE_FILE)
            locked.execute("BEGIN IMMEDIATE")  # by somebody else: each write fails after BUSY_TIMEOUT_S

            failing = asyncio.create_task(client.post(mail, client.envelopes(3), within_s=8))
            await asyncio.to_thread(daemon.wait_for_line, "store write failed")
            await asyncio.to_thread(until_not_ready, port)
            assert not await failing
            locked.close()
        async with connected(daemon) as mail:
            assert await client.post(mail, client.envelopes(3))
            stored_at = time.monotonic()
            while (await asyncio.to_thread(ready, port))[0] != 200:
                assert time.monotonic() - stored_at < WITHIN_S
        assert daemon.stop() == 0
