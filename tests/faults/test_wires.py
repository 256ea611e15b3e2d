"""tests.faults.wires: hosts reach each other as their lines let them, and leave nothing behind."""

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.faults import wires
from tests.faults.switch import Line
from tests.faults.wires import CUT, REJECTING, Network, network
from tests.waiting import DEADLINE_S, until

pytestmark = pytest.mark.integration

HOLD_ON = """
import sys, time
from pathlib import Path
from tests.faults.wires import network
with network(Path(sys.argv[1]), 2, 7) as made:
    print(*made.processes, flush=True)
    time.sleep(600)
"""


@pytest.fixture
async def hosts(tmp_path: Path) -> AsyncIterator[Network]:
    """Two hosts."""
    wires.require()
    with network(tmp_path, 2, 7) as made:
        yield made


async def heard(made: Network, data: bytes) -> bytes:
    """What the first host hears of what the second one sends."""
    loop = asyncio.get_running_loop()
    with made[1].socket() as listening, made[2].socket() as sending:
        listening.bind((made[1].address, 0))
        listening.listen()
        async with asyncio.timeout(DEADLINE_S):
            await loop.sock_connect(sending, listening.getsockname())
            hearing, _ = await loop.sock_accept(listening)
            await loop.sock_sendall(sending, data)
            with hearing:
                return await loop.sock_recv(hearing, 1000)


async def test_hosts_hear_each_other_also_after_a_move_and_by_a_bad_line(hosts: Network) -> None:
    assert await heard(hosts, b"hello") == b"hello"

    for host in (1, 2):
        hosts[host].move()
        hosts.everywhere(Line(delay_s=0.01, jitter_s=0.005, loss=0.1, duplication=0.1, reordering=0.1))
        assert await heard(hosts, b"again") == b"again"


async def test_cut_line_is_silent_and_a_rejecting_one_is_not(hosts: Network) -> None:
    hosts.everywhere(REJECTING)
    with pytest.raises(ConnectionRefusedError):
        await heard(hosts, b"hello")

    hosts.set((2, 1), line=CUT)
    hearing = asyncio.create_task(heard(hosts, b"hello"))
    await until(lambda: hosts.counts().get("cut", 0) > 0)
    assert not hearing.done()
    hosts.heal()
    assert await hearing == b"hello"


async def test_hosts_know_each_other_by_names_that_follow_them(hosts: Network) -> None:
    def found() -> str:
        command = [*hosts[2].inside, "getent", "ahostsv4", "mailserver"]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()[0]

    hosts.name("mailserver", hosts[1])
    before = found()
    hosts[1].move()
    hosts.name("mailserver", hosts[1])

    assert (before, found()) == ("10.77.1.1", "10.77.1.2")


async def test_nothing_is_left_when_whoever_made_the_hosts_is_killed(tmp_path: Path) -> None:
    wires.require()
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    holding = await asyncio.create_subprocess_exec(
        sys.executable, "-c", HOLD_ON, str(tmp_path), stdout=asyncio.subprocess.PIPE, env=environment
    )
    assert holding.stdout is not None
    processes = [Path("/proc") / number for number in (await holding.stdout.readline()).decode().split()]
    assert len(processes) == 3
    assert all(map(is_alive, processes))

    holding.kill()
    await holding.wait()

    await until(lambda: not any(is_alive(process) for process in processes))


def is_alive(process: Path) -> bool:
    """Whether it runs; where nobody waits for orphans, one that has ended still has a name."""
    try:
        return "\nState:\tZ" not in (process / "status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
