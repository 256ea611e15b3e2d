"""`python -m bench.receivers`: the peers that envelopes are relayed to, all in one process.

While the clock runs they count envelopes, by a mark that the data of each begins with, and keep the packets. Which
envelopes came, and how often, is looked at afterwards.
"""

import asyncio
import contextlib
import random
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any

from bench.data import Distribution, Topics
from bench.helper import Read, Write, cpu_s, run_helper
from bench.wire import Wire, connect
from mailserver.codec.keys import Enode
from mailserver.errors import ConnectionLost
from mailserver.waku.bloom import FULL_BLOOM
from mailserver.waku.envelope import Topic, decode_envelope, decode_envelopes
from mailserver.waku.packets import PacketCode, StatusOptions

SILENCE_S = 15.0
"""If nothing comes to any of them for so long, nothing more will: fifty times the interval at which nodes relay."""

FAULTS = ("lacking", "repeated", "unwanted")
"""What each may have of what was sent, and should not."""

_KEY_BYTES = 64


def interest_of(peer: int, count: int, topics: Topics) -> frozenset[Topic]:
    """The topics that a peer, numbered from 0, is interested in: always the same ones."""
    return topics.choose_distinct(count, random.Random(peer))


class _Packets:
    """Packets that came, each kept once: peers that want the same get the same, and 50 copies would fill the memory."""

    def __init__(self) -> None:
        self._known: dict[bytes, bytes] = {}

    def keep(self, payload: bytes) -> bytes:
        # Two packets that begin alike are compared, which takes a tenth of what hashing them would.
        known = self._known.setdefault(payload[:_KEY_BYTES], payload)
        return known if known == payload else payload


class Receiver:
    """One peer: when which packet came, and how many of our envelopes that makes."""

    def __init__(self, receivers: "Receivers", interest: frozenset[Topic] | None) -> None:
        self._receivers = receivers
        self.interest = interest
        self.packets: list[tuple[float, bytes]] = []
        self.count = 0
        self.wanted = 0

    def take_over(self, wire: Wire) -> None:
        """Take what comes by a connection."""
        wire.on_packet = self.on_packet
        wire.on_lost = self._receivers.on_lost

    def on_packet(self, code: int, payload: bytes) -> None:
        """Keep a packet of envelopes, and count ours."""
        if code != PacketCode.MESSAGES:
            return
        now = time.perf_counter()
        self.packets.append((now, self._receivers.packets.keep(payload)))
        lacked = self.count < self.wanted
        self.count += payload.count(self._receivers.mark)
        self._receivers.last_at = now
        if lacked and self.count >= self.wanted:
            self._receivers.on_complete()


class Receivers:
    """All of them."""

    def __init__(self, mark: bytes, interests: Sequence[frozenset[Topic] | None]) -> None:
        self.mark = mark
        self.packets = _Packets()
        self.last_at = 0.0
        self.all = [Receiver(self, interest) for interest in interests]
        self._lacking = 0
        self._changed = asyncio.Event()
        self._lost: ConnectionLost | None = None

    def on_complete(self) -> None:
        """One has all that it is waiting for."""
        self._lacking -= 1
        if not self._lacking:
            self._changed.set()

    def on_lost(self, error: ConnectionLost) -> None:
        """One has lost its connection."""
        self._lost = error
        self._changed.set()

    async def wait(self, wanted: Sequence[int]) -> None:
        """Wait until each has had as many envelopes as it wants, or nothing has come for long.

        Raises:
            ConnectionLost: one of the connections.
        """
        for receiver, count in zip(self.all, wanted, strict=True):
            receiver.wanted = count
        self._lacking = sum(receiver.count < receiver.wanted for receiver in self.all)
        while self._lacking:
            before = self.last_at
            self._changed.clear()
            if self._lost is None:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(SILENCE_S):
                        await self._changed.wait()
            if self._lost is not None:
                raise self._lost
            if self.last_at == before:
                return

    def check(self, sent: Sequence[bytes], late: int) -> dict[str, Any]:
        """Compare what came with what was sent.

        Args:
            late: of so many envelopes, the last ones, the moments are wanted at which peers had them.
        Returns:
            For each of FAULTS, how many envelopes each peer had of it; and as "arrivals" those moments.
        """
        late_from = len(sent) - late
        topics = [decode_envelope(raw).topic for raw in sent]
        number_of = {raw: number for number, raw in enumerate(sent)}
        decoded: dict[int, list[int]] = {}  # by identity: that each is kept once pays here, too
        faults: list[tuple[int, int, int]] = []
        arrivals: list[list[float]] = [[] for _ in range(late)]
        for receiver in self.all:
            counts: Counter[int] = Counter()
            for at, payload in receiver.packets:
                numbers = decoded.get(id(payload))
                if numbers is None:
                    raws = (envelope.raw for envelope in decode_envelopes(payload))
                    numbers = decoded[id(payload)] = [number_of[raw] for raw in raws if raw in number_of]
                counts.update(numbers)
                for number in numbers:
                    if number >= late_from:
                        arrivals[number - late_from].append(at)
            interest = receiver.interest
            due = {number for number, topic in enumerate(topics) if interest is None or topic in interest}
            faults.append((len(due - counts.keys()), counts.total() - len(counts), len(counts.keys() - due)))
        return {**dict(zip(FAULTS, zip(*faults, strict=True), strict=True)), "arrivals": arrivals}


async def _work(read: Read, write: Write) -> None:
    """Connect as the first command says; then wait, and check, as the others say."""
    order = await read()
    topics = Topics(order["topics"], Distribution(order["distribution"]))
    count: int | None = order["interest"]
    interests = [None if count is None else interest_of(peer, count, topics) for peer in range(order["peers"])]
    receivers = Receivers(bytes.fromhex(order["mark"]), interests)
    async with contextlib.AsyncExitStack() as stack:
        for receiver in receivers.all:
            status = StatusOptions(
                pow_requirement=0.0,
                bloom=FULL_BLOOM if receiver.interest is None else None,
                light_node=False,
                confirmations=False,
                topic_interest=receiver.interest,
            )
            wire, _ = await stack.enter_async_context(
                connect(Enode.parse(order["enode"]), status=status, trusting=True)
            )
            receiver.take_over(wire)
        write({"cpu_s": cpu_s()})
        while True:
            command = await read()
            if "wait" in command:
                await receivers.wait(command["wait"])
                write({"last_at": receivers.last_at, "cpu_s": cpu_s()})
            else:
                sent, size = bytes.fromhex(command["check"]), command["size"]
                raws = [sent[at : at + size] for at in range(0, len(sent), size)]
                write(receivers.check(raws, command["late"]))


if __name__ == "__main__":
    run_helper(_work)
