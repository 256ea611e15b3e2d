"""How fast a mailserver answers for history: time to the first packet and to completion, all pages followed."""

import asyncio
import contextlib
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from bench.daemon import usage
from bench.data import Topics
from bench.history_results import HistoryRun
from bench.wire import Wire, connect
from mailserver.client.sealing import REQUEST_TOPIC, REQUEST_TTL_S, seal_envelope
from mailserver.codec.keys import Enode
from mailserver.errors import ConnectionLost
from mailserver.mail.completion import Completion, Failure, decode_completion
from mailserver.mail.request import MailRequest, RequestId, encode_fields
from mailserver.net.sessions import random_key
from mailserver.waku.bloom import FULL_INTEREST, Interest, bloom_of
from mailserver.waku.envelope import decode_envelopes
from mailserver.waku.packets import PacketCode

PAGE_LIMIT = 1000
ANSWER_TIMEOUT_S = 120.0
DAY_S = 86_400


class HistoryFailed(Exception):
    """The mailserver refused a request, or did not answer."""


def _some_topics(count: int) -> Callable[[Topics, random.Random], Interest]:
    return lambda topics, rng: Interest(topics=topics.choose_distinct(count, rng))


def _bloom_of_topics(count: int) -> Callable[[Topics, random.Random], Interest]:
    return lambda topics, rng: Interest(bloom=bloom_of(topics.choose_distinct(count, rng)))


@dataclass(frozen=True, slots=True)
class Question:
    """One row of the table. `interest` is drawn anew for each run and client."""

    name: str
    span_s: int
    interest: Callable[[Topics, random.Random], Interest]
    clients: int = 1


QUESTIONS = (
    Question("one topic, 24 h", DAY_S, _some_topics(1)),
    Question("one topic, 30 days", 30 * DAY_S, _some_topics(1)),
    Question("100 topics, 7 days", 7 * DAY_S, _some_topics(100)),
    Question("bloom of 3 topics, 30 days", 30 * DAY_S, _bloom_of_topics(3)),
    Question("full bloom, 24 h", DAY_S, lambda topics, rng: FULL_INTEREST),
    Question("100 topics, 7 days, 8 clients at once", 7 * DAY_S, _some_topics(100), clients=8),
)


@dataclass(frozen=True, slots=True)
class Answer:
    """Moments are of `perf_counter`; `packets` are payloads of P2P Message."""

    first_at: float
    done_at: float
    pages: int
    packets: list[bytes]


class Asker:
    """Asks over one connection, page after page."""

    def __init__(self, wire: Wire, key: bytes, min_pow: float) -> None:
        self._wire = wire
        self._key = key
        self._min_pow = min_pow
        # The deployed server expects a signature, whoever's. A key drawn for each page would be timed.
        self._signing_key = random_key()
        self._first_at = 0.0
        self._packets: list[bytes] = []
        self._completed: asyncio.Future[bytes]
        wire.on_packet = self._on_packet
        wire.on_lost = self._on_lost

    async def ask(self, request: MailRequest) -> Answer:
        """Ask for all pages.

        Raises:
            HistoryFailed: the mailserver refused, or its completion does not belong to the request.
        """
        self._first_at, self._packets = 0.0, []
        pages = 0
        while True:
            completion = await self._ask_page(request)
            done_at = time.perf_counter()
            pages += 1
            if completion.cursor is None:
                return Answer(self._first_at if self._packets else done_at, done_at, pages, self._packets)
            request = replace(request, cursor=completion.cursor)

    async def _ask_page(self, request: MailRequest) -> Completion:
        envelope = await seal_envelope(
            encode_fields(request),
            self._key,
            REQUEST_TOPIC,
            ttl=REQUEST_TTL_S,
            min_pow=self._min_pow,
            now=int(time.time()),
            signing_key=self._signing_key,
        )
        self._completed = asyncio.get_running_loop().create_future()
        self._wire.send(PacketCode.P2P_REQUEST, envelope.raw)
        self._wire.flush()
        completion = decode_completion(await self._completed)
        if isinstance(completion, Failure):
            raise HistoryFailed(f"request refused: {completion.message}")
        if completion.request_id != RequestId(envelope.hash()):
            raise HistoryFailed("completion of another request")
        return completion

    def _on_packet(self, code: int, payload: bytes) -> None:
        if code == PacketCode.P2P_MESSAGE:
            if not self._packets:
                self._first_at = time.perf_counter()
            self._packets.append(payload)
        elif code == PacketCode.P2P_REQUEST_COMPLETE:
            self._completed.set_result(payload)

    def _on_lost(self, error: ConnectionLost) -> None:
        if not self._completed.done():
            self._completed.set_exception(error)


async def measure_history(
    enode: Enode, pid: int | None, question: Question, *, key: bytes, topics: Topics, end: int, rng: random.Random
) -> HistoryRun:
    """Ask one question, from as many clients at once as it has; they are connected before the clock starts.

    Args:
        pid: the mailserver's process, whose use of the machine is reported; None if it is not here.
        key: the mailserver's symmetric key.
        end: where the history ends, Unix seconds.
    Returns:
        Times of the slowest client, counts of all together.
    Raises:
        HistoryFailed: a request was refused or not answered.
        ConnectionLost: the node ended a connection.
    """
    async with contextlib.AsyncExitStack() as stack:
        wires = [await stack.enter_async_context(connect(enode)) for _ in range(question.clients)]
        askers = [Asker(wire, key, settings.pow_requirement) for wire, settings in wires]
        requests = [
            MailRequest(
                RequestId(bytes(32)), end - question.span_s, end, question.interest(topics, rng), limit=PAGE_LIMIT
            )
            for _ in askers
        ]
        used = None if pid is None else usage(pid)
        began = time.perf_counter()
        try:
            async with asyncio.timeout(ANSWER_TIMEOUT_S):
                answers = await asyncio.gather(
                    *(asker.ask(request) for asker, request in zip(askers, requests, strict=True))
                )
        except TimeoutError as error:
            raise HistoryFailed(f"{question.name}: no answer within {ANSWER_TIMEOUT_S:g} s") from error
        after = None if pid is None else usage(pid)
    return HistoryRun(
        first_s=max(answer.first_at for answer in answers) - began,
        done_s=max(answer.done_at for answer in answers) - began,
        found=count_found(answers),
        pages=sum(answer.pages for answer in answers),
        daemon_cpu_s=after.cpu_s - used.cpu_s if after and used else None,
        peak_bytes=after.peak_bytes if after else None,
    )


def count_found(answers: Sequence[Answer]) -> int:
    """How many envelopes all of them have together."""
    return sum(len(decode_envelopes(packet)) for answer in answers for packet in answer.packets)
