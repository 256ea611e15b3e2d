"""What a flood does to an honest client: peers that send new envelopes at ten times their limit, and one that asks for
history and posts. Limits are stated, as these hold on loopback, too; the flooders live in a process of their own.
"""

import asyncio
import math
import random
import time
from dataclasses import dataclass, replace

from bench.daemon import Daemon, usage
from bench.data import ENVELOPE_BYTES, Topics, live_envelopes
from bench.helper import Helper, helper
from bench.history import ANSWER_TIMEOUT_S, DAY_S, PAGE_LIMIT, Asker
from bench.ingest import check_responses
from bench.results import Flood, FloodPhase
from bench.store import FilledStore
from bench.wire import Wire, connect
from mailserver.app.config import Config
from mailserver.errors import ConnectionLost
from mailserver.limits.packet_rates import DEFAULT_BYTE_LIMITS, DEFAULT_PACKET_LIMITS
from mailserver.mail.request import MailRequest, RequestId
from mailserver.waku.bloom import Interest
from mailserver.waku.envelope import encode_envelopes
from mailserver.waku.packets import PacketCode

TIMES_THE_LIMIT = 10
PER_PACKET = (1, 100)
"""Packets of 1 are limited by their number, packets of 100 by their bytes."""

INTERVAL_S = 0.05
"""The honest client asks, and posts, so long after it has got the answer: it is well within the limits."""

QUIET_S = 5.0
BURST_S = 12.0
"""Begins with the flood: so long it takes at most until it has used up what is allowed at once."""

_SEED = 1


class FloodFailed(Exception):
    """The honest client was not served at all."""


@dataclass(frozen=True, slots=True)
class FloodSpec:
    """One kind of flood. `seconds` are measured without the flood, at its beginning, and then."""

    peers: int
    per_packet: int
    tolerance_s: float
    seconds: tuple[float, float, float]

    @property
    def flags(self) -> tuple[str, ...]:
        """What the daemon is told: the default limits of a peer, but none of an address."""
        return (
            "--packet-rate-limits",
            f"0,{DEFAULT_PACKET_LIMITS.peer},0",
            "--byte-rate-limits",
            f"0,{DEFAULT_BYTE_LIMITS.peer},0",
            "--rate-limit-tolerance-s",
            str(self.tolerance_s),
        )

    @property
    def packet_bytes(self) -> int:
        """The length of a packet, as the limit counts it."""
        return len(encode_envelopes([bytes(ENVELOPE_BYTES)] * self.per_packet))

    @property
    def packets_per_s(self) -> float:
        """What one flooder may send."""
        return min(DEFAULT_PACKET_LIMITS.peer, DEFAULT_BYTE_LIMITS.peer / self.packet_bytes)

    @property
    def envelopes_per_s(self) -> float:
        """What all of them may send."""
        return self.peers * self.per_packet * self.packets_per_s


def flood_specs(peers: int, seconds: float, *, is_quick: bool) -> tuple[FloodSpec, ...]:
    """The kinds of flood: each limit, slowed for ever; then as by default, disconnected after a while."""
    quiet_s, burst_s = (seconds, seconds) if is_quick else (QUIET_S, BURST_S)
    slowed = tuple(FloodSpec(peers, count, math.inf, (quiet_s, burst_s, seconds)) for count in PER_PACKET)
    if is_quick:
        return slowed
    tolerance_s = Config().rate_limit_tolerance_s
    # Long enough that each is disconnected once, and floods again.
    return (*slowed, FloodSpec(peers, PER_PACKET[0], tolerance_s, (quiet_s, burst_s, tolerance_s + seconds)))


async def measure_flood(daemon: Daemon, store: FilledStore, spec: FloodSpec, *, key: bytes, topics: Topics) -> Flood:
    """Flood a daemon that was started with the flags of `spec`, on a store that was filled.

    Args:
        key: the mailserver's symmetric key.
    Raises:
        FloodFailed: the honest client waited too long.
        HelperFailed, HistoryFailed, IngestFailed: the flooders, a request or a post failed.
        ConnectionLost: the node ended the honest client's connection.
    """
    order = {
        "enode": str(daemon.enode),
        "peers": spec.peers,
        "per_packet": spec.per_packet,
        "packets_per_s": spec.packets_per_s * TIMES_THE_LIMIT,
        "seed": _SEED,
    }
    async with (
        helper("bench.flooders") as flooders,
        connect(daemon.enode) as (asking, settings),
        connect(daemon.enode) as (posting, _),
    ):
        await flooders.ask(order)
        client = _Client(topics, settings.pow_requirement)
        honest = asyncio.gather(
            client.ask(Asker(asking, key, settings.pow_requirement), store.end), client.post(Poster(posting))
        )
        phases = asyncio.create_task(_phases(daemon.pid, client, flooders, spec.seconds))
        try:
            await asyncio.wait((honest, phases), return_when=asyncio.FIRST_COMPLETED)
            client.stop()
            async with asyncio.timeout(ANSWER_TIMEOUT_S):
                await honest  # first: what ended it early is what went wrong
            measured = [*(await phases)]
        except TimeoutError as error:
            raise FloodFailed(f"no answer or confirmation within {ANSWER_TIMEOUT_S:g} s") from error
        finally:
            honest.cancel()
            phases.cancel()
        answers_s, confirmations_s = client.take()  # of what was under way when the last phase was over
        last = measured[-1]
        measured[-1] = replace(
            last, answers_s=last.answers_s + answers_s, confirmations_s=last.confirmations_s + confirmations_s
        )
    return Flood(
        peers=spec.peers,
        per_packet=spec.per_packet,
        offered=spec.envelopes_per_s * TIMES_THE_LIMIT,
        allowed=spec.envelopes_per_s,
        tolerance_s=None if math.isinf(spec.tolerance_s) else spec.tolerance_s,
        phases=tuple(measured),
    )


async def _phases(
    pid: int, client: "_Client", flooders: Helper, seconds: tuple[float, float, float]
) -> list[FloodPhase]:
    """Let time pass: without the flood, at its beginning, and then."""
    quiet_s, burst_s, rest_s = seconds
    names = ("no flood", quiet_s), (f"first {burst_s:g} s", burst_s), (f"next {rest_s:g} s", rest_s)
    phases = []
    totals = {"confirmed": 0, "disconnects": 0}
    for index, (name, duration_s) in enumerate(names):
        before, began = usage(pid), time.perf_counter()
        if index:  # the flood begins with the second phase
            totals = await flooders.ask("count")
        await asyncio.sleep(duration_s)
        after = await flooders.ask("count") if index else totals
        passed_s, used = time.perf_counter() - began, usage(pid)
        answers_s, confirmations_s = client.take()
        phases.append(
            FloodPhase(
                name=name,
                seconds=passed_s,
                flood=after["confirmed"] - totals["confirmed"],
                disconnects=after["disconnects"] - totals["disconnects"],
                daemon_cpu_s=used.cpu_s - before.cpu_s,
                peak_bytes=used.peak_bytes,
                answers_s=answers_s,
                confirmations_s=confirmations_s,
            )
        )
    return phases


class _Client:
    """The honest client: asks and posts until it is stopped; how long that took since it was last asked for it."""

    def __init__(self, topics: Topics, min_pow: float) -> None:
        self._topics = topics
        self._min_pow = min_pow
        self._answers_s: list[float] = []
        self._confirmations_s: list[float] = []
        self._stopping = False

    def take(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """The times since the last call, of answers and of confirmations."""
        taken = tuple(self._answers_s), tuple(self._confirmations_s)
        self._answers_s, self._confirmations_s = [], []
        return taken

    def stop(self) -> None:
        """Let what is under way be the last."""
        self._stopping = True

    async def ask(self, asker: Asker, end: int) -> None:
        """Ask for one topic and 24 h, again and again."""
        rng = random.Random(_SEED)
        while not self._stopping:
            interest = Interest(topics=self._topics.choose_distinct(1, rng))
            request = MailRequest(RequestId(bytes(32)), end - DAY_S, end, interest, limit=PAGE_LIMIT)
            began = time.perf_counter()
            answer = await asker.ask(request)
            self._answers_s.append(answer.done_at - began)
            await asyncio.sleep(INTERVAL_S)

    async def post(self, poster: "Poster") -> None:
        """Post single envelopes, again and again."""
        rng = random.Random(_SEED)
        while not self._stopping:
            [raw] = live_envelopes(1, self._topics, int(time.time()), min_pow=self._min_pow, rng=rng)
            began = time.perf_counter()
            await poster.post(raw)
            self._confirmations_s.append(time.perf_counter() - began)
            await asyncio.sleep(INTERVAL_S)


class Poster:
    """Posts over one connection."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        self._responses: list[bytes] = []
        self._confirmed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        wire.on_packet = self._on_packet
        wire.on_lost = self._on_lost

    async def post(self, raw: bytes) -> None:
        """Send an envelope and wait for its confirmation.

        Raises:
            IngestFailed: it was refused.
        """
        self._responses = []
        self._confirmed = asyncio.get_running_loop().create_future()
        self._wire.send(PacketCode.MESSAGES, encode_envelopes([raw]))
        self._wire.flush()
        await self._confirmed
        check_responses(self._responses)

    def _on_packet(self, code: int, payload: bytes) -> None:
        if code == PacketCode.MESSAGE_RESPONSE:
            self._responses.append(payload)
        elif code == PacketCode.BATCH_ACKNOWLEDGED:
            self._confirmed.set_result(None)

    def _on_lost(self, error: ConnectionLost) -> None:
        if not self._confirmed.done():
            self._confirmed.set_exception(error)
