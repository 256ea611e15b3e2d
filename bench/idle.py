"""What idle peers cost a mailserver: memory for each, and CPU for all of them.

The daemon's memory with nobody connected, and when so many peers have finished their handshakes and have been idle for
a while: what it has grown by, also by what the first of them makes it load and keep for all, is shared out among them.
What the kernel takes for their sockets is no memory of a process, and not part of it. Each comes from an address and a
subnet of its own, as strangers do.
"""

import asyncio
import contextlib
import time
from dataclasses import dataclass

from bench.addresses import AS_STRANGERS, source_to
from bench.daemon import Daemon, usage
from bench.results import IdleRun
from bench.wire import connect
from mailserver.errors import ConnectionLost


@dataclass(frozen=True, slots=True)
class IdleSpec:
    """So many peers, who are idle for `seconds` once the last of them is connected."""

    connections: int
    seconds: float

    @property
    def flags(self) -> tuple[str, ...]:
        """What the daemon is told: to have room for all of them."""
        return (*AS_STRANGERS, "--max-peers", str(self.connections))


async def measure_idle(daemon: Daemon, spec: IdleSpec) -> IdleRun:
    """Connect the peers, one after the other, to a daemon that was started with the flags of `spec` and has had none.

    Raises:
        ConnectionLost: the node ended a connection.
    """
    lost: list[ConnectionLost] = []
    async with contextlib.AsyncExitStack() as stack:
        before, began = usage(daemon.pid), time.perf_counter()
        for number in range(spec.connections):
            source = source_to(daemon.enode, number)
            wire, _ = await stack.enter_async_context(connect(daemon.enode, source=source))
            wire.on_lost = lost.append
        seconds, connected = time.perf_counter() - began, usage(daemon.pid)
        await asyncio.sleep(spec.seconds)
        after = usage(daemon.pid)
        if lost:
            raise lost[0]
    return IdleRun(
        seconds=seconds,
        daemon_cpu_s=connected.cpu_s - before.cpu_s,
        idle_s=spec.seconds,
        idle_cpu_s=after.cpu_s - connected.cpu_s,
        before_bytes=before.memory_bytes,
        after_bytes=after.memory_bytes,
    )
