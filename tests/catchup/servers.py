"""Mailservers that answer as a test says, honest or not, on ports of loopback; and envelopes for them to give.

`serving` runs one. What it answers is a function of the request: an `Archive` is honest, as ours or as the deployed
Go server; everything else is written where it is needed. They speak through RawPeer, so that nothing of the mailserver
that is tested stands on this side, too.
"""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from mailserver.catchup.settings import CatchupSettings
from mailserver.codec.keys import Enode
from mailserver.mail.completion import NO_ENVELOPE, Completion, Failure
from mailserver.mail.request import Cursor, MailRequest, RequestId, SealedRequest, decode_fields, decode_request
from mailserver.rlpx.handshake import Recipient
from mailserver.waku.acceptance import Acceptance, Requirements
from mailserver.waku.bloom import FULL_BLOOM, FULL_INTEREST, Interest
from mailserver.waku.envelope import Envelope, EnvelopeHash, Topic, encode_envelopes
from mailserver.waku.packets import PacketCode, StatusOptions
from mailserver.waku.payload import open_symmetric
from tests.mailservers import NEWS, NOW, make_envelope
from tests.pairs import digest, entropy, private_key
from tests.raw_peer import Hangup, RawPeer, close_stream, open_stream, read_handshake_packet
from tests.store.samples import rows
from tests.waiting import DEADLINE_S

DAY = 86_400
PASSWORD_KEY = digest("password")

STATUS = StatusOptions(pow_requirement=0.0, bloom=FULL_BLOOM, light_node=False, confirmations=True)

_PACKET_ENVELOPES = 100
_PACKET_BYTES = 512 * 1024


def make_envelopes(count: int, *, first: int = 0, step_s: int = 1, topic: Topic = NEWS) -> list[Envelope]:
    """So many envelopes, newest first, one every `step_s` seconds back from NOW."""
    numbers = range(first, first + count)
    return [make_envelope(number, created=NOW - number * step_s, topic=topic) for number in numbers]


def place(envelope: Envelope) -> tuple[int, EnvelopeHash]:
    """Where an envelope stands in the order of answers."""
    return envelope.created, envelope.hash()


THREE_DAYS = make_envelopes(250, step_s=1000)
"""Over a little less than three days."""

SMALL = 20
"""Envelopes in a page of an archive that gives few at once."""


def raws(envelopes: Iterable[Envelope]) -> list[bytes]:
    """Their bytes, in an order that tells nothing."""
    return sorted(envelope.raw for envelope in envelopes)


def stored_raws(path: Path) -> list[bytes]:
    """The bytes of everything in a store, in the same order; what is there twice is twice in it."""
    return sorted(raw for (raw,) in rows(path, "SELECT raw FROM envelopes"))


def settings_for(*sources: Enode, min_pow: float = 0.0, interest: Interest = FULL_INTEREST) -> CatchupSettings:
    """Settings to ask these sources."""
    return CatchupSettings(sources, PASSWORD_KEY, "sync/test", Acceptance(Requirements(min_pow, interest)))


@dataclass
class Asked:
    """A request, its work, and ways to answer it. `visit` and `number` count connections and requests from 1."""

    peer: RawPeer
    request: MailRequest
    visit: int
    number: int
    pow: float

    def give(self, envelopes: Sequence[Envelope], *, per_packet: int = _PACKET_ENVELOPES) -> None:
        """Send envelopes, byte for byte, packet by packet; a long one by itself."""
        part: list[bytes] = []
        for envelope in envelopes:
            if part and (len(part) == per_packet or len(part) * len(envelope.raw) > _PACKET_BYTES):
                self.peer.say(PacketCode.P2P_MESSAGE, encode_envelopes(part))
                part = []
            part.append(envelope.raw)
        self.peer.say(PacketCode.P2P_MESSAGE, encode_envelopes(part))

    def complete(self, cursor: Cursor | None = None) -> None:
        """End the answer."""
        completion = Completion(self.request.request_id, NO_ENVELOPE, cursor)
        self.peer.say(PacketCode.P2P_REQUEST_COMPLETE, completion.encode())

    def fail(self, message: str) -> None:
        """End the answer with an error."""
        self.peer.say(PacketCode.P2P_REQUEST_COMPLETE, Failure(self.request.request_id, message).encode())


Answer = Callable[[Asked], Awaitable[None]]


@dataclass
class Server:
    """A mailserver that runs. `requests` is what it has been asked so far."""

    enode: Enode
    requests: list[MailRequest] = field(default_factory=list)
    visits: int = 0


class Archive:
    """Answers honestly from these envelopes, newest first.

    `like_go`: as the deployed server does: no more than 24 h at once, without the upper bound itself, and with a
    cursor also where nothing remains.
    """

    def __init__(self, envelopes: Iterable[Envelope], *, like_go: bool = False, max_limit: int = 1000) -> None:
        self.envelopes = sorted(envelopes, key=place, reverse=True)
        self._places = {envelope.raw: place(envelope) for envelope in self.envelopes}
        self._like_go = like_go
        self._max_limit = max_limit

    def add(self, newest: Envelope) -> None:
        """Have one more, newer than all others."""
        self.envelopes.insert(0, newest)
        self._places[newest.raw] = place(newest)

    async def __call__(self, asked: Asked) -> None:
        """Answer one request."""
        request = asked.request
        if self._like_go and request.upper - request.lower > DAY:
            asked.fail("query range is too long")
            return
        upper = request.upper - 1 if self._like_go else request.upper
        matching = [
            envelope
            for envelope in self.envelopes
            if request.lower <= envelope.created <= upper
            and request.interest.wants(envelope.topic)
            and (request.cursor is None or self._places[envelope.raw] < request.cursor)
        ]
        limit = min(request.limit or self._max_limit, self._max_limit)
        page = matching[:limit]
        asked.give(page)
        more = len(matching) >= limit if self._like_go else len(matching) > limit
        asked.complete(Cursor(*self._places[page[-1].raw]) if more and page else None)


async def silent(asked: Asked) -> None:
    """Answer nothing."""


@contextlib.asynccontextmanager
async def serving(
    answer: Answer, *, name: str = "source", status: StatusOptions = STATUS, key: bytes = PASSWORD_KEY
) -> AsyncIterator[Server]:
    """Accept connections on a free port and answer their requests; whatever goes wrong here is raised at the end.

    Args:
        key: that of the password, which requests are sealed with.
    """
    listening = socket.create_server(("127.0.0.1", 0))
    listening.setblocking(False)
    server = Server(Enode(private_key(name).public_key, "127.0.0.1", listening.getsockname()[1]))
    tasks: set[asyncio.Task[None]] = set()
    failures: list[BaseException] = []

    def ended(task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            failures.append(error)

    async def accept() -> None:
        while True:
            end, _ = await asyncio.get_running_loop().sock_accept(listening)
            server.visits += 1
            task = asyncio.create_task(_serve(end, server, answer, name, status, key))
            task.add_done_callback(ended)
            tasks.add(task)

    accepting = asyncio.create_task(accept())
    try:
        yield server
    finally:
        accepting.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await accepting
        listening.close()
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=DEADLINE_S)
    assert not failures, failures


async def _serve(
    end: socket.socket, server: Server, answer: Answer, name: str, status: StatusOptions, key: bytes
) -> None:
    visit = server.visits
    reader, writer = await open_stream(end)
    try:
        recipient = Recipient(private_key(name), entropy(name))
        ack, secrets = recipient.receive_auth(await read_handshake_packet(reader))
        writer.write(ack)
        peer = RawPeer(reader, writer, private_key(name), secrets)
        await peer.greet(status=status.encode())
        while True:
            packet = await peer.hear_packet()
            if packet.code == PacketCode.P2P_REQUEST:
                request, work = _read(packet.payload, key)
                server.requests.append(request)
                await answer(Asked(peer, request, visit, len(server.requests), work))
    except (Hangup, ConnectionError):  # it has gone, whatever we were about to say
        pass
    finally:
        await close_stream(writer)


def _read(payload: bytes, key: bytes) -> tuple[MailRequest, float]:
    """A request, and the proof of work of its envelope."""
    sealed = decode_request(payload)
    assert isinstance(sealed, SealedRequest)
    fields = open_symmetric(sealed.envelope.data, key).payload
    return decode_fields(RequestId(sealed.request_id), fields), sealed.envelope.pow()
