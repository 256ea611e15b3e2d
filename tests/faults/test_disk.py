"""A disk that is full, or fails: what was confirmed is there, reads go on, and all goes on by itself."""

import errno
from pathlib import Path

import pytest

from tests.faults.disk_client import WATCHFUL, Client, connected, serves
from tests.faults.faulty_io import Calls, faulty_io
from tests.integration.daemons import running_daemon

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
