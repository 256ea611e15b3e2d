"""How fast a mailserver answers while envelopes come in: one client asks for one topic of a day, again and again, while
a peer in a process of its own (bench.poster) posts at an even rate.

The history that is asked for ends before anything is posted, so all answers are as long as without that. The default
rate is more than a peer from elsewhere may send our mailserver, but loopback is not limited. What was confirmed in a
second is reported.
"""

import asyncio
import random
import time
from dataclasses import dataclass

from bench.daemon import usage
from bench.data import Topics
from bench.helper import helper
from bench.history import ANSWER_TIMEOUT_S, PAGE_LIMIT, QUESTIONS, Answer, Asker, HistoryFailed, count_found
from bench.results import BusyRun
from bench.wire import connect
from mailserver.codec.keys import Enode
from mailserver.mail.request import MailRequest, RequestId

QUESTION = QUESTIONS[0]

PER_PACKET = 10
INTERVAL_S = 0.01
"""The client asks again so long after it has got an answer, in the mean: at random, as what it meets, a packet or a
transaction, comes in turns."""

WARM_UP_ANSWERS = 20
"""Of each run, while envelopes already come in: not counted."""

FLAGS = ("--retention-days", "0")
"""What the daemon is told: in a store that was kept, nothing has grown too old meanwhile, and is pruned beside us."""


@dataclass(frozen=True, slots=True)
class BusySpec:
    """One kind of run: so many envelopes a second, and answers timed for so many seconds."""

    rate: float
    seconds: float


async def measure_busy(
    enode: Enode, pid: int | None, spec: BusySpec, *, key: bytes, topics: Topics, end: int, rng: random.Random
) -> BusyRun:
    """Begin to post, ask some questions unmeasured, then ask for `spec.seconds`.

    Args:
        pid: the mailserver's process, whose use of the machine is reported; None if it is not here.
        key: the mailserver's symmetric key.
        end: where the history ends, Unix seconds.
    Raises:
        HelperFailed: an envelope was refused, or the poster lost its connection.
        HistoryFailed: a request was refused or not answered.
        ConnectionLost: the node ended the client's connection.
    """
    order = {
        "enode": str(enode),
        "topics": len(topics.all),
        "distribution": topics.distribution.value,
        "per_packet": PER_PACKET,
        "packets_per_s": spec.rate / PER_PACKET,
    }
    async with helper("bench.poster") as poster, connect(enode) as (wire, settings):
        client = _Client(Asker(wire, key, settings.pow_requirement), topics, end, rng)
        await poster.ask(order)
        await poster.ask({})
        for _ in range(WARM_UP_ANSWERS):
            await client.ask()
        timed = []
        before, used = await poster.ask({}), None if pid is None else usage(pid)
        until = time.perf_counter() + spec.seconds
        while time.perf_counter() < until:
            timed.append(await client.ask())
        after, used_then = await poster.ask({}), None if pid is None else usage(pid)
    return BusyRun(
        seconds=after["at"] - before["at"],
        confirmed=after["confirmed"] - before["confirmed"],
        first_s=tuple(answer.first_at - began for began, answer in timed),
        done_s=tuple(answer.done_at - began for began, answer in timed),
        found=count_found([answer for _, answer in timed]),
        daemon_cpu_s=used_then.cpu_s - used.cpu_s if used_then and used else None,
        peak_bytes=used_then.peak_bytes if used_then else None,
    )


class _Client:
    """Asks the question, each time about another topic."""

    def __init__(self, asker: Asker, topics: Topics, end: int, rng: random.Random) -> None:
        self._asker = asker
        self._topics = topics
        self._end = end
        self._rng = rng

    async def ask(self) -> tuple[float, Answer]:
        """Ask once and pause; return when it was asked, and the answer."""
        interest = QUESTION.interest(self._topics, self._rng)
        request = MailRequest(RequestId(bytes(32)), self._end - QUESTION.span_s, self._end, interest, limit=PAGE_LIMIT)
        began = time.perf_counter()
        try:
            async with asyncio.timeout(ANSWER_TIMEOUT_S):
                answer = await self._asker.ask(request)
        except TimeoutError as error:
            raise HistoryFailed(f"{QUESTION.name}: no answer within {ANSWER_TIMEOUT_S:g} s") from error
        await asyncio.sleep(self._rng.expovariate(1 / INTERVAL_S))
        return began, answer
