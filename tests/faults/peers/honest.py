"""Honest peers of a mailserver under attack: one that asks for history and posts, and one that gets what is posted.

What they must get is known byte for byte. How long an answer took is measured by the clock, and less what the daemon
and this process waited for a processor, see `usage.waited_s`. Both may wait at the same time, so the latter is the
least that it can have been.
"""

import asyncio
import contextlib
import os
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from bench.data import envelope
from bench.flood import Poster
from bench.history import DAY_S, PAGE_LIMIT, Asker, HistoryFailed
from bench.ingest import IngestFailed
from bench.wire import connect
from mailserver.errors import ConnectionLost
from mailserver.mail.request import MailRequest, RequestId
from mailserver.waku.bloom import FULL_BLOOM, Interest
from mailserver.waku.envelope import Topic, decode_envelopes
from mailserver.waku.packets import PacketCode, StatusOptions
from tests.faults.peers.attacker import Target
from tests.usage import waited_s
from tests.waiting import until

ADDRESS = "127.1.2.3"
"""Where the honest peers come from: alone in its subnet."""

ASK_EVERY_S = 0.1
POST_EVERY_S = 1.0
ANSWER_TIMEOUT_S = 30.0
"""Longer than this is no answer."""

OWN_TOPIC = Topic(b"mine")
_MARK = b"of the honest client"
_FULL_NODE = StatusOptions(pow_requirement=0.0, bloom=FULL_BLOOM, light_node=False, confirmations=True)

Expected = Mapping[Topic, frozenset[bytes]]
"""By topic, the envelopes of the last 24 hours of the history."""


@dataclass(slots=True)
class Served:
    """How the honest peers were served. Times in seconds, by the clock (`asked_at`: of each answer, `perf_counter`);
    `own` ones less what was waited for a processor on either side."""

    asked_at: list[float] = field(default_factory=list)
    answers_s: list[float] = field(default_factory=list)
    own_answers_s: list[float] = field(default_factory=list)
    confirmations_s: list[float] = field(default_factory=list)
    posted: set[bytes] = field(default_factory=set)
    relayed: set[bytes] = field(default_factory=set)
    wrong: list[str] = field(default_factory=list)


class Honest:
    """The honest peers. Made by `honest_peers`."""

    def __init__(self, target: Target, expected: Expected, askers: Sequence[Asker], poster: Poster) -> None:
        self.served = Served()
        self._target = target
        self._expected = expected
        self._askers = askers
        self._poster = poster
        self._rng = random.Random(target.seed)
        self._stopping = False

    async def run(self) -> None:
        """Ask and post until `stop`; whatever goes wrong is noted in `served`."""
        async with asyncio.TaskGroup() as group:
            for asker in self._askers:
                group.create_task(self._repeat(partial(self._ask, asker), ASK_EVERY_S))
            group.create_task(self._repeat(self._post, POST_EVERY_S))

    def stop(self) -> None:
        """Let what is under way be the last."""
        self._stopping = True

    async def check_posted(self) -> None:
        """Ask for all that was confirmed, and wait for what is still to be relayed."""
        served = self.served
        now = int(time.time())
        try:
            async with asyncio.timeout(ANSWER_TIMEOUT_S):
                found = await self._find(self._askers[0], OWN_TOPIC, now - DAY_S, now + 1)
            with contextlib.suppress(TimeoutError):
                await until(lambda: served.posted <= served.relayed)
        except (ConnectionLost, HistoryFailed, TimeoutError) as error:
            served.wrong.append(f"what was posted is not served: {error!r}")
            return
        if set(found) != served.posted or len(found) != len(served.posted):
            served.wrong.append(f"{len(served.posted)} were confirmed, {len(found)} are served")
        if not served.posted <= served.relayed:
            served.wrong.append(f"{len(served.posted - served.relayed)} that were confirmed were not relayed")

    def on_relayed(self, code: int, payload: bytes) -> None:
        """Take what the other honest peer gets."""
        if code == PacketCode.MESSAGES and _MARK in payload:
            self.served.relayed.update(found.raw for found in decode_envelopes(payload) if _MARK in found.raw)

    def on_lost(self, error: ConnectionLost) -> None:
        """The other honest peer was disconnected."""
        self.served.wrong.append(f"the relayed peer was disconnected: {error}")

    async def _repeat(self, act: Callable[[], Awaitable[None]], every_s: float) -> None:
        while not self._stopping:
            try:
                async with asyncio.timeout(ANSWER_TIMEOUT_S):
                    await act()
            except TimeoutError:
                self.served.wrong.append(f"no answer or confirmation within {ANSWER_TIMEOUT_S:g} s")
                return
            except (ConnectionLost, HistoryFailed, IngestFailed) as error:
                self.served.wrong.append(f"an honest peer was not served: {error!r}")
                return
            await asyncio.sleep(every_s)

    async def _ask(self, asker: Asker) -> None:
        topic = self._rng.choice(list(self._expected))
        end = self._target.history_end
        pids = self._target.pid, os.getpid()
        began, waited = time.perf_counter(), sum(map(waited_s, pids))
        found = await self._find(asker, topic, end - DAY_S, end)
        took = time.perf_counter() - began
        self.served.asked_at.append(began)
        self.served.answers_s.append(took)
        self.served.own_answers_s.append(took - (sum(map(waited_s, pids)) - waited))
        expected = self._expected[topic]
        if set(found) != expected or len(found) != len(expected):
            self.served.wrong.append(f"topic {topic.hex()}: {len(expected)} in the store, {len(found)} answered")

    async def _post(self) -> None:
        raw = envelope(int(time.time()), OWN_TOPIC, self._rng, _MARK)
        began = time.perf_counter()
        await self._poster.post(raw)
        self.served.confirmations_s.append(time.perf_counter() - began)
        self.served.posted.add(raw)

    async def _find(self, asker: Asker, topic: Topic, lower: int, upper: int) -> list[bytes]:
        interest = Interest(topics=frozenset({topic}))
        answer = await asker.ask(MailRequest(RequestId(bytes(32)), lower, upper, interest, limit=PAGE_LIMIT))
        return [found.raw for packet in answer.packets for found in decode_envelopes(packet)]


@contextlib.asynccontextmanager
async def honest_peers(target: Target, expected: Expected, *, askers: int = 1) -> AsyncIterator[Honest]:
    """Connect the honest peers; they leave at the end.

    Args:
        askers: how many ask for history at once, the others each from an address of its own.
    """
    async with (
        contextlib.AsyncExitStack() as stack,
        connect(target.enode, source=ADDRESS) as (posting, settings),
        connect(target.enode, source=ADDRESS, status=_FULL_NODE) as (relayed, _),
    ):
        asking = []
        for number in range(askers):
            wire, _ = await stack.enter_async_context(connect(target.enode, source=f"127.1.{2 + number}.3"))
            asking.append(Asker(wire, bytes.fromhex(target.request_key), settings.pow_requirement))
        honest = Honest(target, expected, asking, Poster(posting))
        relayed.on_packet, relayed.on_lost = honest.on_relayed, honest.on_lost
        yield honest
