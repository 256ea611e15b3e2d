"""An attack, in a process of its own (`attacker_process`).

An attack is an async function of a module of this folder: it gets a `Target`, attacks for `seconds`, and returns
figures. It runs at a low priority: true attackers have machines of their own, and leave the mailserver its processors.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import asdict, dataclass

from bench.helper import helper
from mailserver.codec.keys import Enode
from tests.faults.report import Figure

_PROCESS = "tests.faults.peers.attacker_process"


@dataclass(frozen=True, slots=True)
class Target:
    """What an attacker knows.

    `pid` is the daemon's process: to measure it, see `bench.daemon`. `request_key` is the symmetric key of history
    requests, in hex. `history_end`: of the newest envelope in the store, Unix seconds. `is_quick`: with less of
    everything.
    """

    enode_url: str
    pid: int
    request_key: str
    history_end: int
    seconds: float
    seed: int
    is_quick: bool

    @property
    def enode(self) -> Enode:
        """Where the mailserver listens, and who it is."""
        return Enode.parse(self.enode_url)


Attack = Callable[[Target], Awaitable[Mapping[str, Figure]]]


@contextlib.asynccontextmanager
async def attacking(attack: Attack, target: Target) -> AsyncIterator["asyncio.Task[dict[str, Figure]]"]:
    """Run an attack in a process of its own as long as the context is entered; its figures are the task's result."""
    async with helper(_PROCESS) as process:
        order = {"module": attack.__module__, "name": attack.__name__, "target": asdict(target)}
        task = asyncio.create_task(process.ask(order))
        try:
            yield task
        finally:
            task.cancel()
