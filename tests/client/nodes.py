"""A client that is connected to a mailserver, or to a node that behaves as the test says."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable

from mailserver.client.mail_client import MailClient, connect
from mailserver.codec.keys import Enode
from mailserver.history.delivery import DeliverySettings
from mailserver.limits.admission import Admission, AdmissionLimits
from mailserver.limits.request_quotas import RequestLimits
from mailserver.mail.completion import Completion, CompletionFormat
from mailserver.mail.request import UNSEALED_ID, MailRequest, RequestId, decode_request
from mailserver.net.connection import Connection
from mailserver.net.inbound import Event
from mailserver.net.listener import Listener
from mailserver.peers.connected import Peers
from mailserver.peers.served_peer import ServedPeer
from mailserver.store.sqlite.store import SqliteStore
from mailserver.waku.acceptance import Requirements
from mailserver.waku.bloom import Interest
from mailserver.waku.envelope import Envelope
from mailserver.waku.packets import PacketCode, StatusOptions
from mailserver.waku.peer import P2PRequestReceived
from tests.mailservers import NEWS, NO_REQUEST_LIMITS, PASSWORD_KEY, STATUS, Clock, wired
from tests.pairs import private_key
from tests.waiting import DEADLINE_S

KEY = private_key("server")
ASK = MailRequest(UNSEALED_ID, 0, 0, Interest(topics=frozenset({NEWS})))
Behave = Callable[[Connection, Event], Awaitable[None]]


class Taken:
    """Envelopes as they arrive, packet by packet."""

    def __init__(self) -> None:
        self.packets: list[list[Envelope]] = []

    def __call__(self, envelopes: object) -> None:
        assert isinstance(envelopes, list)
        self.packets.append(envelopes)

    @property
    def envelopes(self) -> list[Envelope]:
        return [envelope for packet in self.packets for envelope in packet]


@contextlib.asynccontextmanager
async def listening(serve: Callable[[Connection], Awaitable[None]], status: StatusOptions) -> AsyncIterator[Enode]:
    """Accept connections on a free port."""
    connections: list[Connection] = []

    async def note_and_serve(connection: Connection) -> None:
        connections.append(connection)
        await serve(connection)

    listener = Listener(
        KEY,
        "server/1",
        status=lambda: status,
        refuse=lambda _: None,
        admission=Admission(AdmissionLimits()),
        serve=note_and_serve,
    )
    try:
        yield Enode(KEY.public_key, "127.0.0.1", await listener.start("127.0.0.1", 0))
    finally:
        listener.stop()
        for connection in connections:
            connection.abort("the test is over")
        await asyncio.wait_for(listener.join(), DEADLINE_S)


@contextlib.asynccontextmanager
async def node(behave: Behave, status: StatusOptions = STATUS) -> AsyncIterator[MailClient]:
    """A client that is connected to a node that behaves so."""

    async def serve(connection: Connection) -> None:
        await connection.run(lambda event: behave(connection, event))

    async with listening(serve, status) as enode, connect(enode, "client/1") as client:
        yield client


@contextlib.asynccontextmanager
async def mailserver(
    store: SqliteStore,
    *,
    min_pow: float = 0.0,
    min_request_pow: float = 0.0,
    completion_format: CompletionFormat = CompletionFormat.BYTES,
    max_limit: int = 10,
    allow_clear: bool = True,
    requests: RequestLimits = NO_REQUEST_LIMITS,
) -> AsyncIterator[MailClient]:
    """A client that is connected to a mailserver over this store."""
    settings = DeliverySettings(
        PASSWORD_KEY,
        KEY,
        max_limit=max_limit,
        min_request_pow=min_request_pow,
        completion_format=completion_format,
        allow_clear=allow_clear,
    )
    _, services = wired(store, Clock(), settings, Peers(1), requirements=Requirements(min_pow), requests=requests)

    async def serve(connection: Connection) -> None:
        await ServedPeer(connection, services, 1).run()

    async with (
        listening(serve, StatusOptions(pow_requirement=min_pow, confirmations=True)) as enode,
        connect(enode, "client/1", private_key("client")) as client,
    ):
        yield client


async def silent(connection: Connection, event: Event) -> None:
    """A node that never answers."""


def completing(*completions: Callable[[RequestId], bytes]) -> Behave:
    """A node that answers a request with these."""

    async def behave(connection: Connection, event: Event) -> None:
        if isinstance(event, P2PRequestReceived):
            for completion in completions:
                payload = completion(decode_request(event.payload).request_id)
                connection.send(PacketCode.P2P_REQUEST_COMPLETE, payload)

    return behave


def done(request_id: RequestId) -> bytes:
    return Completion(request_id).encode()
