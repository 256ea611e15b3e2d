"""`python -m bench.light_clients`: clients of a gateway, all in one process.

While the clock runs they keep what they get. Which messages these were, and how often, is looked at afterwards.
"""

import asyncio
import contextlib
import hashlib
import random
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from bench.addresses import MANY, address
from bench.helper import HelperFailed, Read, Write, cpu_s, run_helper
from bench.light_client import LightClient, Pushed, connect
from mailserver.ids.envelopes import content_topic_of
from mailserver.ids.muid import DEFAULT_NETWORK_TOPIC
from mailserver.ids.waku_message import WakuMessage
from mailserver.waku.envelope import Topic, decode_envelope
from mailserver.waku2.codes import LightPushStatus, StoreStatus
from mailserver.waku2.filter_packets import decode_message_push
from mailserver.waku2.lightpush import LightPushRequest, decode_light_push_response
from mailserver.waku2.protocols import ProtocolId
from mailserver.waku2.store_query import StoreQueryRequest, decode_store_query_response

SILENCE_S = 10.0
"""If nothing is pushed to any of them for so long, nothing more will be."""

DIALS_AT_ONCE = 16
INDEX_TIMEOUT_S = 280.0
_RETRY_S = 0.05
_PAYLOAD_BYTES = 256
_DIGEST_DIGITS = 32


Posted = tuple[str, str]
"""An envelope that was posted: its topic, and the digest of its data, in hex. The whole of all envelopes would not fit
into a command."""


def posted_of(raw: bytes) -> Posted:
    """What is to be known of an envelope."""
    envelope = decode_envelope(raw)
    return envelope.topic.hex(), _digest_of(envelope.data)


def _digest_of(payload: bytes) -> str:
    return hashlib.sha256(payload).hexdigest()[:_DIGEST_DIGITS]


def compare(pushed: Sequence[Pushed], topics: Sequence[Topic], posted: Sequence[Posted], late: int) -> dict[str, Any]:
    """Compare what was pushed to clients, who have subscribed to a topic each, with the envelopes that were posted.

    Args:
        late: of so many envelopes, the last ones, the moments are wanted at which clients had them.
    Returns:
        How many pushes were lacking, repeated and unwanted, and as "arrivals" those moments.
    """
    late_from = len(posted) - late
    number_of = {digest: number for number, (_, digest) in enumerate(posted)}
    due: dict[str, set[int]] = {topic.hex(): set() for topic in topics}
    for number, (topic_text, _) in enumerate(posted):
        due[topic_text].add(number)
    lacking = repeated = unwanted = 0
    arrivals: list[list[float]] = [[] for _ in range(late)]
    for pushes, topic in zip(pushed, topics, strict=True):
        counts: Counter[int] = Counter()
        for at, bodies in pushes:
            for body in bodies:
                number = number_of.get(_digest_of(decode_message_push(body).waku_message.payload), -1)
                counts[number] += 1
                if number >= late_from:
                    arrivals[number - late_from].append(at)
        lacking += len(due[topic.hex()] - counts.keys())
        repeated += counts.total() - len(counts)
        unwanted += len(counts.keys() - due[topic.hex()])
    return {"lacking": lacking, "repeated": repeated, "unwanted": unwanted, "arrivals": arrivals}


class LightClients:
    """All of them."""

    def __init__(self, stack: contextlib.AsyncExitStack, order: dict[str, Any]) -> None:
        self._stack = stack
        self._address: str = order["address"]
        self._muxer: str = order["muxer"]
        self.topics: list[Topic] = []
        self._changed = asyncio.Event()
        self._rng = random.Random(time.time_ns())
        self.all: list[LightClient] = []
        self.count = 0
        self.last_at = 0.0

    async def connect(self, count: int, first: int | None) -> dict[str, Any]:
        """Connect so many; where `first` is a number, each from an address of its own."""
        numbers = iter(range(count))
        began = time.perf_counter()
        await asyncio.gather(*(self._connect(numbers, first) for _ in range(DIALS_AT_ONCE)))
        return {"seconds": time.perf_counter() - began}

    async def _connect(self, numbers: Iterator[int], first: int | None) -> None:
        for number in numbers:
            source = None if first is None else address((first + number) % MANY)
            connecting = connect(self._address, self._muxer, source=source, on_pushed=self._on_pushed)
            self.all.append(await self._stack.enter_async_context(connecting))

    async def dial(self, first: int, end: int, step: int, at_once: int) -> dict[str, Any]:
        """Connect and leave, as somebody new from another address each time."""
        numbers = iter(range(first, end, step))
        await asyncio.gather(*(self._dial(numbers) for _ in range(at_once)))
        return {"done_at": time.perf_counter()}

    async def _dial(self, numbers: Iterator[int]) -> None:
        for number in numbers:
            async with connect(self._address, self._muxer, source=address(number % MANY)):
                pass

    async def subscribe(self, topics: Sequence[str]) -> dict[str, Any]:
        """Each client subscribes to one topic, the first to the first and so on, or all to the only one."""
        self.topics = [Topic(bytes.fromhex(topic)) for topic in topics] * (len(self.all) if len(topics) == 1 else 1)
        await asyncio.gather(
            *(
                client.subscribe(DEFAULT_NETWORK_TOPIC, (content_topic_of(topic),))
                for client, topic in zip(self.all, self.topics, strict=True)
            )
        )
        return {}

    async def wait(self, count: int) -> dict[str, Any]:
        """Wait until so many pushes have come, or none for long."""
        while self.count < count:
            self._changed.clear()
            try:
                async with asyncio.timeout(SILENCE_S):
                    await self._changed.wait()
            except TimeoutError:
                break
            for client in self.all:
                if client.lost is not None:
                    raise client.lost
            await asyncio.sleep(_RETRY_S)
        return {"last_at": self.last_at, "count": self.count}

    def _on_pushed(self, count: int) -> None:
        self.count += count
        self.last_at = time.perf_counter()
        self._changed.set()

    async def await_index(self) -> dict[str, Any]:
        """Wait until queries are answered: the gateway has looked at the whole store."""
        request = StoreQueryRequest("1", pagination_limit=1)
        until = time.perf_counter() + INDEX_TIMEOUT_S
        while True:
            packet, at = await self.all[0].ask(ProtocolId.STORE_QUERY, request.encode())
            if decode_store_query_response(packet).status_code == StoreStatus.OK:
                return {"at": at}
            if at > until:
                raise HelperFailed(f"history was not to be had within {INDEX_TIMEOUT_S:g} s")
            await asyncio.sleep(_RETRY_S)

    async def query(self, queries: Sequence[Sequence[tuple[Sequence[str], int | None]]], limit: int) -> dict[str, Any]:
        """The first clients ask their queries, each one after the other, all at once.

        Args:
            queries: topics, or none for all, and a time to begin at, in nanoseconds.
        """
        answered = await asyncio.gather(
            *(self._query(client, each, limit) for client, each in zip(self.all, queries, strict=False))
        )
        pages = [decode_store_query_response(packet) for each in answered for packet, _ in each]
        if refused := [page for page in pages if page.status_code != StoreStatus.OK]:
            raise HelperFailed(f"{len(refused)} queries were refused: {refused[0].status_desc}")
        found = sum(len(page.messages) for page in pages)
        return {"times_s": [seconds for each in answered for _, seconds in each], "found": found}

    async def _query(
        self, client: LightClient, queries: Sequence[tuple[Sequence[str], int | None]], limit: int
    ) -> list[tuple[bytes, float]]:
        answered = []
        for topics, start in queries:
            request = StoreQueryRequest(
                "1",
                include_data=True,
                pubsub_topic=DEFAULT_NETWORK_TOPIC if topics else None,
                content_topics=tuple(content_topic_of(Topic(bytes.fromhex(topic))) for topic in topics),
                time_start=start,
                pagination_forward=True,
                pagination_limit=limit,
            )
            asked_at = time.perf_counter()
            packet, at = await client.ask(ProtocolId.STORE_QUERY, request.encode())
            answered.append((packet, at - asked_at))
        return answered

    async def send(self, count: int, topic: str) -> dict[str, Any]:
        """Send so many messages, all clients at once, each one after the other."""
        content_topic, numbers = content_topic_of(Topic(bytes.fromhex(topic))), iter(range(count))
        times_s: list[float] = []
        await asyncio.gather(*(self._send(client, content_topic, numbers, times_s) for client in self.all))
        return {"times_s": times_s, "done_at": time.perf_counter()}

    async def _send(
        self, client: LightClient, content_topic: str, numbers: Iterator[int], times_s: list[float]
    ) -> None:
        for _ in numbers:
            message = WakuMessage(
                self._rng.randbytes(_PAYLOAD_BYTES), content_topic, version=1, timestamp=time.time_ns()
            )
            request = LightPushRequest("1", DEFAULT_NETWORK_TOPIC, message)
            asked_at = time.perf_counter()
            packet, at = await client.ask(ProtocolId.LIGHTPUSH, request.encode())
            answer = decode_light_push_response(packet)
            if answer.status_code != LightPushStatus.OK:
                raise HelperFailed(f"a message was refused: {answer.status_code} {answer.status_desc}")
            times_s.append(at - asked_at)


async def _do(clients: LightClients, command: dict[str, Any]) -> dict[str, Any]:
    match command.pop("do"):
        case "connect":
            return await clients.connect(**command)
        case "dial":
            return await clients.dial(**command)
        case "subscribe":
            return await clients.subscribe(**command)
        case "wait":
            return await clients.wait(**command)
        case "check":
            return compare([client.pushed for client in clients.all], clients.topics, **command)
        case "await index":
            return await clients.await_index()
        case "query":
            return await clients.query(**command)
        case "send":
            return await clients.send(**command)
        case other:
            raise HelperFailed(f"{other!r} is no command")


async def _work(read: Read, write: Write) -> None:
    """Be told where the gateway is, then do what is told, and say what CPU was used so far."""
    async with contextlib.AsyncExitStack() as stack:
        clients = LightClients(stack, await read())
        write({})
        while True:
            command = await read()
            write({**await _do(clients, command), "cpu_s": cpu_s()})


if __name__ == "__main__":
    run_helper(_work)
