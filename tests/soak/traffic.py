"""Who uses the mailserver: peers that post, peers that have it relay, phones that come, ask, and go."""

import asyncio
import contextlib
import os
import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from bench.data import Topics
from bench.history import Asker
from bench.wire import CLIENT_STATUS, Wire, connect
from mailserver.codec.keccak import keccak256
from mailserver.codec.keys import Enode
from mailserver.errors import ConnectionLost
from mailserver.mail.request import MailRequest, RequestId
from mailserver.net.sessions import random_key
from mailserver.waku.bloom import FULL_BLOOM, Interest
from mailserver.waku.envelope import Envelope, Topic, decode_envelopes, encode_envelopes
from mailserver.waku.packets import MessageResponse, PacketCode, StatusOptions, decode_batch_acknowledged
from tests.soak.model import Model, key_of
from tests.usage import waited_s

POSTERS = 4
PAGE_LIMITS = (20, 100, 1000)
LATE_S = 60
"""Phones ask from so long before they were last there."""

CONFIRMATION_TIMEOUT_S = 30.0


class Times:
    """How long things took, in seconds: by the clock, and less what was waited for a processor."""

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self.own: list[float] = []

    @contextlib.contextmanager
    def measured(self, pid: int, parts: Callable[[], int] = lambda: 1) -> Iterator[None]:
        """Take down what is done meanwhile, by this process and the daemon; not if it fails.

        Args:
            parts: how many things that was; asked at the end.
        """
        pids = pid, os.getpid()
        began, waited = time.perf_counter(), sum(map(waited_s, pids))
        yield
        took = time.perf_counter() - began
        self.seconds.append(took / parts())
        self.own.append((took - (sum(map(waited_s, pids)) - waited)) / parts())

    def clear(self) -> None:
        """Begin anew."""
        self.seconds.clear()
        self.own.clear()


class Poster:
    """One peer that posts envelopes, a packet at a time."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        self._acknowledged: asyncio.Future[bytes] | None = None
        self.refused = 0
        wire.on_packet = self._on_packet
        wire.on_lost = self._on_lost

    async def post(self, envelopes: Sequence[Envelope], times: Times, pid: int) -> None:
        """Post a packet, and take down how long its confirmation by process `pid` took.

        Raises:
            ConnectionLost: it is not confirmed.
        """
        payload = encode_envelopes([envelope.raw for envelope in envelopes])
        self._acknowledged = asyncio.get_running_loop().create_future()
        with times.measured(pid):
            self._wire.send(PacketCode.MESSAGES, payload)
            self._wire.flush()
            async with asyncio.timeout(CONFIRMATION_TIMEOUT_S):
                batch_hash = await self._acknowledged
        assert batch_hash == keccak256(payload)

    def _on_packet(self, code: int, payload: bytes) -> None:
        if code == PacketCode.BATCH_ACKNOWLEDGED and self._acknowledged is not None:
            self._acknowledged.set_result(decode_batch_acknowledged(payload))
        elif code == PacketCode.MESSAGE_RESPONSE:
            response = MessageResponse.decode(payload)
            self.refused += 0 if response is None else len(response.errors)

    def _on_lost(self, error: ConnectionLost) -> None:
        if self._acknowledged is not None and not self._acknowledged.done():
            self._acknowledged.set_exception(error)


class RelayPeer:
    """A peer that wants live envelopes: all, or some topics, that it changes now and then."""

    def __init__(self, topics: frozenset[Topic] | None) -> None:
        self.topics = topics
        self.received = 0
        self.repeated = 0
        self._today: set[bytes] = set()
        self._wire: Wire | None = None

    @property
    def status(self) -> StatusOptions:
        """What it announces."""
        bloom = FULL_BLOOM if self.topics is None else None
        return StatusOptions(0.0, bloom, light_node=False, confirmations=False, topic_interest=self.topics)

    def take_over(self, wire: Wire) -> None:
        """Listen on a connection."""
        self._wire = wire
        wire.on_packet = self._on_packet

    def change(self, topics: frozenset[Topic]) -> None:
        """Want other topics: a Status Update."""
        self.topics = topics
        if self._wire is not None:
            self._wire.send(PacketCode.STATUS_UPDATE, StatusOptions(topic_interest=topics).encode())
            self._wire.flush()

    def forget(self) -> None:
        """What came before today does not come again: it has expired."""
        self._today.clear()

    def _on_packet(self, code: int, payload: bytes) -> None:
        if code == PacketCode.MESSAGES:
            for envelope in decode_envelopes(payload):
                key = key_of(envelope.raw)
                self.repeated += key in self._today
                self._today.add(key)
                self.received += 1


@dataclass
class Phone:
    """Somebody who is interested in some topics, and now and then online."""

    topics: frozenset[Topic]
    last_there: int


@dataclass
class Visits:
    """What phones have found: how long a page of each request took, and everything that was wrong."""

    times: Times = field(default_factory=Times)
    requests: int = 0
    pages: int = 0
    envelopes: int = 0
    wrong: list[str] = field(default_factory=list)


async def visit(
    phone: Phone,
    enode: Enode,
    pid: int,
    password_key: bytes,
    model: Model,
    *,
    now: int,
    kept_since: int,
    rng: random.Random,
    visits: Visits,
) -> None:
    """Connect, ask for what was missed since `kept_since`, compare it with what it should be, and go."""
    lower = max(phone.last_there - LATE_S, kept_since)
    request = MailRequest(
        RequestId(bytes(32)), lower, now, Interest(topics=phone.topics), limit=rng.choice(PAGE_LIMITS)
    )
    async with connect(enode, key=random_key(), trusting=True) as (wire, settings):
        with visits.times.measured(pid, lambda: answer.pages):
            answer = await Asker(wire, password_key, settings.pow_requirement).ask(request)
    found = [envelope for packet in answer.packets for envelope in decode_envelopes(packet)]
    wrong = model.compare(found, phone.topics, lower, now)
    visits.requests += 1
    visits.pages += answer.pages
    visits.envelopes += len(found)
    if wrong.lacking or wrong.repeated or wrong.foreign:
        visits.wrong.append(f"request of {now}, from {lower}, {len(found)} found: {wrong}")
    phone.last_there = now


class Peers:
    """Those who stay connected as long as the mailserver runs."""

    def __init__(self, topics: Topics, rng: random.Random) -> None:
        self.relay_peers = [RelayPeer(None), RelayPeer(topics.choose_distinct(20, rng))]
        self.posters: list[Poster] = []
        self._connections = contextlib.AsyncExitStack()

    async def connect(self, enode: Enode) -> None:
        """Connect all of them."""
        self._connections = contextlib.AsyncExitStack()
        self.posters = []
        for _ in range(POSTERS):
            wire, _ = await self._connections.enter_async_context(connect(enode, status=CLIENT_STATUS, trusting=True))
            self.posters.append(Poster(wire))
        for peer in self.relay_peers:
            wire, _ = await self._connections.enter_async_context(connect(enode, status=peer.status, trusting=True))
            peer.take_over(wire)

    async def close(self) -> None:
        """Disconnect all of them."""
        await self._connections.aclose()
