"""How fast a mailserver takes envelopes in: packets ahead of their confirmations, until the last is confirmed."""

import asyncio
import contextlib
import random
import time
from collections.abc import Sequence

from bench.daemon import usage
from bench.data import Sizes, Topics, live_envelopes, packets
from bench.results import IngestRun
from bench.wire import Wire, connect
from mailserver.codec.keys import Enode
from mailserver.errors import ConnectionLost
from mailserver.waku.packets import MessageResponse, PacketCode

WINDOW_ENVELOPES = 16_000
"""Envelopes of one connection that are sent ahead of their confirmations, in whole packets. More than makes our daemon
stop reading (4,000): deployed nodes send whatever the socket takes."""

RUN_TIMEOUT_S = 300.0


class IngestFailed(Exception):
    """Envelopes were refused, or not confirmed."""


class Sender:
    """Sends packets over one connection, as many unconfirmed as the window allows."""

    def __init__(self, wire: Wire, payloads: Sequence[bytes], window: int) -> None:
        self._wire = wire
        self._payloads = payloads
        self._window = window
        self._sent = 0
        self._confirmed = 0
        self._done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.responses: list[bytes] = []
        wire.on_packet = self._on_packet
        wire.on_lost = self._on_lost

    async def run(self) -> None:
        """Send everything; return when the last packet is confirmed."""
        self._fill_window()
        self._wire.flush()
        await self._done

    def _on_packet(self, code: int, payload: bytes) -> None:
        if code == PacketCode.BATCH_ACKNOWLEDGED:
            self._confirmed += 1
            self._fill_window()
            if self._confirmed == len(self._payloads):
                self._done.set_result(None)
        elif code == PacketCode.MESSAGE_RESPONSE:
            self.responses.append(payload)

    def _fill_window(self) -> None:
        stop = min(self._confirmed + self._window, len(self._payloads))
        for payload in self._payloads[self._sent : stop]:
            self._wire.send(PacketCode.MESSAGES, payload)
        self._sent = max(self._sent, stop)

    def _on_lost(self, error: ConnectionLost) -> None:
        if not self._done.done():
            self._done.set_exception(error)


async def measure_ingest(
    enode: Enode,
    pid: int | None,
    *,
    envelopes: int,
    connections: int,
    per_packet: int,
    topics: Topics,
    seed: int,
    sizes: Sizes = Sizes.ONE,
) -> IngestRun:
    """Send so many new envelopes in packets of `per_packet`, shared out to the connections.

    Args:
        pid: the mailserver's process, whose use of the machine is reported; None if it is not here.
    Raises:
        IngestFailed: an envelope was refused, or a confirmation did not come.
        ConnectionLost: the node ended a connection.
    """
    return await measure_ingest_of(
        [enode],
        [] if pid is None else [pid],
        envelopes=envelopes,
        connections=connections,
        per_packet=per_packet,
        topics=topics,
        seed=seed,
        sizes=sizes,
    )


async def measure_ingest_of(
    enodes: Sequence[Enode],
    pids: Sequence[int],
    *,
    envelopes: int,
    connections: int,
    per_packet: int,
    topics: Topics,
    seed: int,
    sizes: Sizes = Sizes.ONE,
) -> IngestRun:
    """The same to several mailservers, which share the connections. CPU and memory are those of all `pids`."""
    async with contextlib.AsyncExitStack() as stack:
        wires = [
            await stack.enter_async_context(connect(enodes[number % len(enodes)])) for number in range(connections)
        ]
        min_pow = max(settings.pow_requirement for _, settings in wires)
        # Not the same envelopes again if the same node is measured twice: it has them already.
        rng = random.Random(f"{seed} {time.time_ns()}")
        raws = live_envelopes(envelopes, topics, int(time.time()), min_pow=min_pow, rng=rng, sizes=sizes)
        payloads = packets(raws, per_packet)
        del raws
        window = max(1, WINDOW_ENVELOPES // per_packet)
        senders = [Sender(wire, payloads[index::connections], window) for index, (wire, _) in enumerate(wires)]
        used = [usage(pid) for pid in pids]
        client_cpu_s, began = time.process_time(), time.perf_counter()
        try:
            async with asyncio.timeout(RUN_TIMEOUT_S):
                await asyncio.gather(*(sender.run() for sender in senders))
        except TimeoutError as error:
            raise IngestFailed(f"not everything was confirmed within {RUN_TIMEOUT_S:g} s") from error
        seconds = time.perf_counter() - began
        client_cpu_s = time.process_time() - client_cpu_s
        after = [usage(pid) for pid in pids]
        for sender in senders:
            check_responses(sender.responses)
    return IngestRun(
        seconds,
        client_cpu_s,
        sum(each.cpu_s for each in after) - sum(each.cpu_s for each in used) if pids else None,
        sum(each.peak_bytes for each in after) if pids else None,
    )


def check_responses(responses: Sequence[bytes]) -> None:
    """Look for refusals in Message Responses.

    Raises:
        IngestFailed: there is one.
    """
    for payload in responses:
        response = MessageResponse.decode(payload)
        if response is not None and response.errors:
            error = response.errors[0]
            raise IngestFailed(f"{len(response.errors)} envelopes of a packet were refused: {error.description}")
