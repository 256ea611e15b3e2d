"""A disk that is full, or fails: what was confirmed is there, reads go on, and all goes on by itself."""

import errno
import subprocess
from pathlib import Path

import pytest

from mailserver.client.mail_client import RequestFailed
from mailserver.mail.request import MailRequest, RequestId
from mailserver.store.sqlite.schema import PAGE_BYTES, STORE_FILE
from mailserver.waku.bloom import FULL_INTEREST
from tests.faults import disk
from tests.faults.disk_client import WATCHFUL, Client, connected, metrics_port, ready, serves
from tests.faults.faulty_io import Calls, faulty_io
from tests.integration.daemons import run_command, running_daemon
from tests.mailservers import PASSWORD_KEY
from tests.store.samples import pages_of

pytestmark = pytest.mark.integration


async def test_what_a_failed_sync_has_left_in_memory_is_not_taken_for_stored(tmp_path: Path) -> None:
    """Linux drops what it could not write, and says so once; a process that starts anew would find it in memory."""
    data, shadow = tmp_path / "data", tmp_path / "shadow"
    client = Client(seed=1)
    with running_daemon(data, program=WATCHFUL) as daemon:
        async with connected(daemon) as mail:
            assert await client.post(mail, client.envelopes(3))
        daemon.end()
    with faulty_io(tmp_path / "faults", data, shadow=shadow) as faults:
        with running_daemon(data, program=WATCHFUL, environment=faults.environment) as daemon:
            async with connected(daemon) as mail:
                faults.fail(errno.EIO, Calls.SYNC, "-wal")
                lost = client.envelopes(3)
                assert not await client.post(mail, lost, within_s=1)
            daemon.end()
        faults.mend()
        with running_daemon(data, program=WATCHFUL, environment=faults.environment) as daemon:
            async with connected(daemon) as mail:
                assert await client.post(mail, lost)
            daemon.end()
    with running_daemon(shadow, program=WATCHFUL) as daemon:  # as after a power cut
        async with connected(daemon) as mail:
            assert client.faults_of(await serves(mail)) == []


async def test_what_was_confirmed_survives_errors_of_every_kind(tmp_path: Path) -> None:
    figures, broken = await disk.errors(tmp_path, seed=6, rounds=3)

    assert broken == []
    assert figures["failed_calls"] != 0
    assert figures["packets_not_confirmed"] != 0


async def test_errors_while_it_prunes_cost_nothing_that_should_stay(tmp_path: Path) -> None:
    _, broken = await disk.pruning(tmp_path, seed=6, rounds=2)

    assert broken == []


async def test_full_disk_is_told_and_over_when_there_is_room(tmp_path: Path) -> None:
    try:
        _, broken = await disk.full(tmp_path / "small", seed=6)
    except subprocess.CalledProcessError as error:
        if error.cmd[0] != "mount":
            raise
        pytest.skip(f"needs the right to mount a tmpfs: {error}")

    assert broken == []


async def test_starts_and_backups_that_fail_say_so_in_a_line_and_lose_nothing(tmp_path: Path) -> None:
    _, broken = await disk.commands(tmp_path, seed=9, count=1)

    assert broken == []


async def test_damaged_page_costs_what_is_on_it_until_it_is_salvaged(tmp_path: Path) -> None:
    data, saved = tmp_path / "data", tmp_path / "saved"
    client = Client(seed=2)
    with running_daemon(data, program=WATCHFUL) as daemon:
        async with connected(daemon) as mail:
            for _ in range(10):  # older than the newest, however soon those follow
                assert await client.post(mail, client.envelopes(50, age_s=10))
        assert daemon.stop() == 0
    leaf = pages_of(data / STORE_FILE, "envelopes", "leaf")[1]
    with (data / STORE_FILE).open("r+b") as file:
        file.seek((leaf - 1) * PAGE_BYTES)
        file.write(b"damage" * 100)

    with running_daemon(data, "--metrics", "127.0.0.1:0", program=WATCHFUL) as daemon:
        async with connected(daemon) as mail:
            with pytest.raises(RequestFailed, match="the store could not answer"):
                await serves(mail)
            assert await client.post(mail, client.envelopes(5))
            newest: list[bytes] = []
            request = MailRequest(RequestId(bytes(32)), 0, 2**32 - 1, FULL_INTEREST, limit=3)
            await mail.request(request, PASSWORD_KEY, lambda envelopes: newest.extend(e.raw for e in envelopes))
            assert len(newest) == 3
        daemon.wait_for_line("problem check=damage")
        code, text = ready(metrics_port(daemon))
        assert code == 200
        assert "the store is damaged: some of it cannot be read: database disk image is malformed" in text
        assert run_command("salvage", "--data-dir", data, saved).returncode == 1  # it runs
        assert daemon.stop() == 0

    found = run_command("check", "--data-dir", data)
    assert found.returncode == 1
    assert "run waku-mailserver salvage" in found.stdout
    done = run_command("salvage", "--data-dir", data, saved)
    assert done.returncode == 0, done.stderr
    assert "set aside in set-aside.jsonl: 1 unreadable page" in done.stdout
    assert run_command("check", "--data-dir", saved).returncode == 0
    with running_daemon(saved, program=WATCHFUL) as daemon:
        async with connected(daemon) as mail:
            served = await serves(mail)
    assert 440 < len(served) < 505
    assert all(count == 1 for count in served.values())
    assert served.keys() <= set(client.sent.values())


def test_daemon_refuses_a_damaged_store_in_one_line(tmp_path: Path) -> None:
    with running_daemon(tmp_path) as daemon:
        daemon.stop()
    store = tmp_path / STORE_FILE
    store.write_bytes(store.read_bytes()[: 3 * PAGE_BYTES])
    before = store.read_bytes()
    should = int.from_bytes(before[28:32], "big") * PAGE_BYTES

    done = run_command("run", "--data-dir", tmp_path, "--listen", "127.0.0.1:0")

    assert done.returncode == 1
    cut = f"the file is cut off, {len(before)} bytes of {should}"
    assert (
        done.stderr == f"waku-mailserver: {store} is damaged: {cut}; nothing was changed; run waku-mailserver check\n"
    )
    assert store.read_bytes() == before
