"""How fast a mailserver relays: one sender, many peers, until each of them has every envelope that it wants.

First as many envelopes as are to be sent, in packets of 100, as fast as they are confirmed; then single ones at random
intervals, for the time that one takes to get everywhere. The peers live in a process of their own (bench.receivers).
"""

import asyncio
import random
import secrets
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from bench.daemon import usage
from bench.data import ENVELOPE_BYTES, Topics, live_envelopes, packets
from bench.helper import Helper, helper
from bench.ingest import IngestFailed, Sender, check_responses
from bench.receivers import FAULTS, interest_of
from bench.results import RelayRun
from bench.wire import Wire, connect
from mailserver.codec.keys import Enode
from mailserver.waku.envelope import Topic, decode_envelope, encode_envelopes
from mailserver.waku.packets import PacketCode

PER_PACKET = 100
WINDOW_PACKETS = 20
INTERESTS = (None, 500)
"""What all peers want: everything, or so many topics of their own each. Deployed phones have up to some hundred."""

RUN_TIMEOUT_S = 300.0
_MARK_BYTES = 8


class RelayFailed(Exception):
    """A peer did not get what it wants, or more than that, or something twice."""


@dataclass(frozen=True, slots=True)
class RelaySpec:
    """One kind of run. `late`: how many single envelopes are sent, after intervals of `interval_s` in the mean."""

    envelopes: int
    peers: int
    interest: int | None
    late: int
    interval_s: float


async def measure_relay(enode: Enode, pid: int | None, spec: RelaySpec, *, topics: Topics, seed: int) -> RelayRun:
    """Connect the peers and the sender, then send.

    Args:
        pid: the mailserver's process, whose use of the machine is reported; None if it is not here.
    Raises:
        RelayFailed: not every peer got each envelope exactly once.
        IngestFailed: an envelope was refused, or a confirmation did not come.
        HelperFailed: a peer lost its connection.
        ConnectionLost: the sender did.
    """
    rng = random.Random(f"{seed} {time.time_ns()}")
    mark = secrets.token_bytes(_MARK_BYTES)
    order = {
        "enode": str(enode),
        "peers": spec.peers,
        "interest": spec.interest,
        "topics": len(topics.all),
        "distribution": topics.distribution.value,
        "mark": mark.hex(),
    }
    audience = _Audience(spec, topics)
    async with helper("bench.receivers") as receivers, connect(enode) as (wire, settings):
        ready = await receivers.ask(order)
        min_pow = settings.pow_requirement
        raws = live_envelopes(spec.envelopes, topics, int(time.time()), min_pow=min_pow, rng=rng, mark=mark)
        sender = Sender(wire, packets(raws, PER_PACKET), WINDOW_PACKETS)
        before = None if pid is None else usage(pid)
        began = time.perf_counter()
        try:
            async with asyncio.timeout(RUN_TIMEOUT_S):
                arrived, confirmed_at = await asyncio.gather(
                    receivers.ask({"wait": audience.expect(raws)}), _confirmed(sender)
                )
        except TimeoutError as error:
            raise IngestFailed(f"not everything was confirmed within {RUN_TIMEOUT_S:g} s") from error
        after = None if pid is None else usage(pid)
        deliveries = audience.deliveries
        late, sent_at = await _send_late(wire, spec, audience, topics, min_pow=min_pow, mark=mark, rng=rng)
        await receivers.ask({"wait": audience.expect(late)})
        checked = await _compare(receivers, [*raws, *late], len(late))
        check_receivers(checked)
        check_responses(sender.responses)
    arrivals = checked["arrivals"]
    return RelayRun(
        deliveries=deliveries,
        seconds=arrived["last_at"] - began,
        confirmed_s=confirmed_at - began,
        receivers_cpu_s=arrived["cpu_s"] - ready["cpu_s"],
        daemon_cpu_s=after.cpu_s - before.cpu_s if after and before else None,
        peak_bytes=after.peak_bytes if after else None,
        median_s=tuple(median(each) - at for each, at in zip(arrivals, sent_at, strict=True)),
        last_s=tuple(max(each) - at for each, at in zip(arrivals, sent_at, strict=True)),
    )


class _Audience:
    """Who wants what, and how much of what was sent that makes for each peer."""

    def __init__(self, spec: RelaySpec, topics: Topics) -> None:
        self._counts = [0] * spec.peers
        self._wanting: dict[Topic, list[int]] = {topic: [] for topic in topics.all}
        for peer in range(spec.peers):
            wanted = topics.all if spec.interest is None else interest_of(peer, spec.interest, topics)
            for topic in wanted:
                self._wanting[topic].append(peer)

    def wants(self, raw: bytes) -> bool:
        """Whether anybody wants an envelope."""
        return bool(self._wanting[decode_envelope(raw).topic])

    def expect(self, raws: Sequence[bytes]) -> list[int]:
        """How many envelopes each peer will have had after these, too."""
        for raw in raws:
            for peer in self._wanting[decode_envelope(raw).topic]:
                self._counts[peer] += 1
        return self._counts

    @property
    def deliveries(self) -> int:
        """Of what was expected so far, all peers together."""
        return sum(self._counts)


async def _confirmed(sender: Sender) -> float:
    await sender.run()
    return time.perf_counter()


async def _send_late(
    wire: Wire,
    spec: RelaySpec,
    audience: _Audience,
    topics: Topics,
    *,
    min_pow: float,
    mark: bytes,
    rng: random.Random,
) -> tuple[list[bytes], list[float]]:
    """Send single envelopes; return them, and when each was sent."""
    raws: list[bytes] = []
    sent_at = []
    while len(raws) < spec.late:
        await asyncio.sleep(rng.expovariate(1 / spec.interval_s))
        [raw] = live_envelopes(1, topics, int(time.time()), min_pow=min_pow, rng=rng, mark=mark)
        if audience.wants(raw):
            sent_at.append(time.perf_counter())
            wire.send(PacketCode.MESSAGES, encode_envelopes([raw]))
            wire.flush()
            raws.append(raw)
    return raws, sent_at


async def _compare(receivers: Helper, raws: Sequence[bytes], late: int) -> dict[str, Any]:
    """Have what came compared with what was sent."""
    order = {"check": b"".join(raws).hex(), "size": ENVELOPE_BYTES, "late": late}
    checked: dict[str, Any] = await receivers.ask(order)
    return checked


def check_receivers(checked: Mapping[str, Sequence[int]]) -> None:
    """Look for faults in what `Receivers.check` has found.

    Raises:
        RelayFailed: there is one.
    """
    faults = [f"{sum(checked[kind])} envelopes {kind}" for kind in FAULTS if any(checked[kind])]
    if faults:
        peers = sum(map(any, zip(*(checked[kind] for kind in FAULTS), strict=True)))
        raise RelayFailed(f"{', '.join(faults)} at {peers} peers, taken together")
