"""How many handshakes a mailserver makes: peers that connect, are told its Status, and leave, one after the other.

A handshake is a TCP connection, auth and ack, Hello and Status, each both ways, as the benchmark's client makes it
(bench.wire). What it costs the peer's side is about as much: so the peers live in processes of their own
(bench.dialers), as many as there are processors but for the mailserver's; and what a handshake costs the mailserver in
CPU says more than how many there were in a second.

No limit is measured: each peer is a new one, and from an address and a subnet of its own, as many as there are on
loopback. Our daemon looks those up and counts them as strangers', but lets all together come as fast as they like.
A mailserver that is not on loopback sees all of them come from one address.
"""

import asyncio
import contextlib
import os
import time
from dataclasses import dataclass

from bench.daemon import usage
from bench.helper import helper
from bench.results import HandshakesRun
from mailserver.codec.keys import Enode


@dataclass(frozen=True, slots=True)
class HandshakesSpec:
    """One kind of run: so many handshakes by `dialers`, who each make one at a time."""

    handshakes: int
    dialers: int

    @property
    def processes(self) -> int:
        """How many processes the dialers live in: the mailserver has a processor to itself, if there are two."""
        return min(self.dialers, max((os.cpu_count() or 1) - 1, 1))


async def measure_handshakes(enode: Enode, pid: int | None, spec: HandshakesSpec, *, run: int) -> HandshakesRun:
    """Make the handshakes; what dials is there before the clock starts.

    Args:
        pid: the mailserver's process, whose use of the machine is reported; None if it is not here.
        run: the number of this run, from 0: each comes from other addresses.
    Raises:
        HelperFailed: a handshake failed.
    """
    async with contextlib.AsyncExitStack() as stack:
        dialers = [await stack.enter_async_context(helper("bench.dialers")) for _ in range(spec.processes)]
        first, end = run * spec.handshakes, (run + 1) * spec.handshakes
        ready = [
            await each.ask(
                {
                    "enode": str(enode),
                    "dialers": len(range(index, spec.dialers, spec.processes)),
                    "numbers": [first + index, end, spec.processes],
                }
            )
            for index, each in enumerate(dialers)
        ]
        before = None if pid is None else usage(pid)
        began = time.perf_counter()
        done = await asyncio.gather(*(each.ask({}) for each in dialers))
        after = None if pid is None else usage(pid)
    return HandshakesRun(
        seconds=max(each["done_at"] for each in done) - began,
        dialers_cpu_s=sum(each["cpu_s"] for each in done) - sum(each["cpu_s"] for each in ready),
        daemon_cpu_s=after.cpu_s - before.cpu_s if after and before else None,
        peak_bytes=after.peak_bytes if after else None,
    )
