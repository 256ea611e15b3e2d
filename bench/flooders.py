"""`python -m bench.flooders`: peers that send new envelopes at a rate that they are not allowed, all in one process.

What the daemon does not read, they do not send later: as much as fits is on its way, the rest is given up. Who is
disconnected comes back at once, as the same peer.
"""

import asyncio
import contextlib
import random
import time
from dataclasses import dataclass
from typing import Any

from bench.data import envelope
from bench.helper import Read, Write, run_helper
from bench.wire import Wire, connect
from mailserver.codec.keys import Enode
from mailserver.errors import ConnectionLost
from mailserver.net.sessions import random_key
from mailserver.waku.envelope import TOPIC_BYTES, Topic, encode_envelopes
from mailserver.waku.packets import PacketCode

_TICK_S = 0.01
_MAX_UNSENT_BYTES = 256 * 1024
_RETRY_S = 0.1


@dataclass(slots=True)
class _Totals:
    """Of all flooders, since they began. `confirmed`: envelopes."""

    confirmed: int = 0
    disconnects: int = 0


class _Flooder:
    """One of them."""

    def __init__(self, enode: Enode, *, per_packet: int, packets_per_s: float, totals: _Totals, seed: int) -> None:
        self._enode = enode
        self._key = random_key()
        self._per_packet = per_packet
        self._packets_per_s = packets_per_s
        self._totals = totals
        self._rng = random.Random(seed)
        self._lost = asyncio.Event()

    async def run(self, began: asyncio.Event) -> None:
        """Connect, wait for the beginning, then flood for ever."""
        while True:
            with contextlib.suppress(ConnectionLost, OSError):
                async with connect(self._enode, key=self._key, trusting=True) as (wire, _):
                    self._lost.clear()
                    wire.on_packet = self._on_packet
                    wire.on_lost = lambda error: self._lost.set()
                    await began.wait()
                    await self._flood(wire)
            self._totals.disconnects += 1
            await asyncio.sleep(_RETRY_S)

    async def _flood(self, wire: Wire) -> None:
        due = 0.0
        last = time.perf_counter()
        while not self._lost.is_set():
            now = time.perf_counter()
            due += (now - last) * self._packets_per_s
            last = now
            while due >= 1 and wire.unsent_bytes < _MAX_UNSENT_BYTES:
                wire.send(PacketCode.MESSAGES, self._packet())
                wire.flush()
                due -= 1
            due = min(due, self._packets_per_s * _TICK_S)
            await asyncio.sleep(_TICK_S)

    def _packet(self) -> bytes:
        rng, now = self._rng, int(time.time())
        return encode_envelopes(
            [envelope(now, Topic(rng.randbytes(TOPIC_BYTES)), rng) for _ in range(self._per_packet)]
        )

    def _on_packet(self, code: int, payload: bytes) -> None:
        if code == PacketCode.BATCH_ACKNOWLEDGED:
            self._totals.confirmed += self._per_packet


async def _work(read: Read, write: Write) -> None:
    """Connect as the first command says, begin at the second, and say at each how things stand."""
    order: dict[str, Any] = await read()
    totals, began = _Totals(), asyncio.Event()
    async with asyncio.TaskGroup() as group:
        tasks = [
            group.create_task(
                _Flooder(
                    Enode.parse(order["enode"]),
                    per_packet=order["per_packet"],
                    packets_per_s=order["packets_per_s"],
                    totals=totals,
                    seed=order["seed"] + number,
                ).run(began)
            )
            for number in range(order["peers"])
        ]
        write({})
        with contextlib.suppress(EOFError):
            while True:
                await read()
                began.set()
                write({"confirmed": totals.confirmed, "disconnects": totals.disconnects})
        for task in tasks:
            task.cancel()


if __name__ == "__main__":
    run_helper(_work)
