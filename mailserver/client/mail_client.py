"""A mail client on the same core: asks any mailserver for history, posts envelopes to any Waku v1 node, and receives
live ones from it.

docs/python-client.md shows how to use it.
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from mailserver.client.live_messages import LiveMessages
from mailserver.client.sealing import seal_request
from mailserver.codec.keccak import keccak256
from mailserver.codec.keys import Enode, NodeId, PrivateKey
from mailserver.errors import ConnectionLost, DecodeError, DisconnectReason, LocalProtocolError, MailserverError
from mailserver.limits.frame_bounds import FrameBounds
from mailserver.limits.send_rate import SendRate
from mailserver.mail.answer import AnswerCheck
from mailserver.mail.completion import Completion, Failure, decode_completion
from mailserver.mail.request import MailRequest, RequestId
from mailserver.net.connection import Connection
from mailserver.net.dialer import dial
from mailserver.net.inbound import Event, one_by_one
from mailserver.net.sessions import WAKU, Code, random_key, session_config
from mailserver.rlpx.capabilities import Capability
from mailserver.rlpx.events import MessageReceived
from mailserver.units import number_text
from mailserver.waku.bloom import EMPTY_BLOOM, Interest
from mailserver.waku.envelope import Envelope, encode_envelopes
from mailserver.waku.packets import MessageResponse, PacketCode, PeerSettings, StatusOptions
from mailserver.waku.peer import (
    ENVELOPE_CODES,
    BatchAcknowledged,
    MessageResponseReceived,
    MessagesReceived,
    P2PMessagesReceived,
    P2PRequestCompleted,
)

ANSWER_TIMEOUT_S = 30.0
"""How long to wait for the next packet of an answer, or for a confirmation. Deployed clients wait 10 to 30 s."""

MAX_PAGES = 100_000
"""Most pages of one answer: a hundred million envelopes."""

NOTHING_LIVE = StatusOptions(pow_requirement=0.0, bloom=EMPTY_BLOOM, light_node=True, confirmations=False)
"""What a client announces while it wants no live envelopes."""

OnEnvelopes = Callable[[Sequence[Envelope]], None]


class Attached(Protocol):
    """What speaks another capability on the connection of a client."""

    def on_event(self, event: Event) -> None:
        """Take what the node sends.

        Raises:
            RemoteProtocolError: it breaks a rule.
        """

    def on_lost(self, lost: ConnectionLost) -> None:
        """The connection has ended."""


class RequestFailed(MailserverError):
    """The mailserver answered with an error; `failure` says which."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure)
        self.failure = failure

    def __str__(self) -> str:
        return self.failure.message


class RequestPowTooLow(RequestFailed):
    """The mailserver wants more proof of work than `pow`, which the request was sealed with."""

    def __init__(self, failure: Failure, pow_: float) -> None:
        super().__init__(failure)
        self.pow = pow_

    def __str__(self) -> str:
        return f"{self.failure.message} (it was sealed with {number_text(self.pow)})"


class NoAnswer(MailserverError):
    """The node is connected but did not answer within ANSWER_TIMEOUT_S."""


@dataclass
class _Answer:
    """A request under way."""

    request_id: RequestId
    on_envelopes: OnEnvelopes
    check: AnswerCheck | None
    progressed: asyncio.Event
    completion: Completion | Failure | None = None


class MailClient:
    """One connection to a node, made by `connect`. Several tasks may make requests and posts at the same time.

    `own_id`: our node id on it.
    """

    def __init__(self, connection: Connection, settings: PeerSettings, own_id: NodeId) -> None:
        self.own_id = own_id
        self._connection = connection
        self._attached: Attached | None = None
        self.settings = settings
        self._answer: _Answer | None = None
        self._send_rate = SendRate()
        self._turn = asyncio.Lock()  # one request at a time: P2P Messages do not say which one they answer
        self._confirmations: dict[bytes, asyncio.Future[MessageResponse]] = {}
        self._responses: dict[bytes, MessageResponse] = {}
        self._live: LiveMessages | None = None

    @property
    def capabilities(self) -> frozenset[Capability]:
        """What both sides speak."""
        return self._connection.capabilities

    def attach(self, attached: Attached) -> None:
        """Pass on what the node sends, and the end of the connection."""
        self._attached = attached

    async def post(self, envelopes: Sequence[Envelope]) -> MessageResponse:
        """Send live envelopes in one packet; return the confirmation of the node, with the errors that it reports.

        Raises:
            ConnectionLost: the connection ended first.
            NoAnswer: no confirmation came within ANSWER_TIMEOUT_S.
        """
        payload = encode_envelopes([envelope.raw for envelope in envelopes])
        batch_hash = keccak256(payload)
        future = self._confirmations.get(batch_hash)
        if future is None:
            future = self._confirmations[batch_hash] = asyncio.get_running_loop().create_future()
        try:
            await self.send(PacketCode.MESSAGES, payload)
            async with asyncio.timeout(ANSWER_TIMEOUT_S):
                return await asyncio.shield(future)
        except TimeoutError as error:
            raise NoAnswer(f"no confirmation within {ANSWER_TIMEOUT_S:g} s") from error
        finally:
            self._confirmations.pop(batch_hash, None)
            del future  # its error refers to this frame by its traceback: without this, they keep each other in memory

    async def request(
        self,
        request: MailRequest,
        key: bytes,
        on_envelopes: OnEnvelopes,
        *,
        min_pow: float | None = None,
        check: AnswerCheck | None = None,
    ) -> Completion:
        """Ask for one page of history, in the deployed form.

        Args:
            request, key: as of `seal_request`.
            on_envelopes: called with the envelopes of each packet as it arrives.
            min_pow: the proof of work of the request; None for as much as the node announces.
            check: sees all envelopes, and passes on those that were asked for.
        Raises:
            RequestFailed: the mailserver refused it; RequestPowTooLow: because of its proof of work.
            ConnectionLost: the connection ended first.
            NoAnswer: nothing came for ANSWER_TIMEOUT_S.
            TooMuchWork: the proof of work takes longer than REQUEST_TTL_S.
        """
        if min_pow is None:
            min_pow = self.settings.pow_requirement
        envelope = await seal_request(request, key, min_pow=min_pow, now=int(time.time()))
        if check is not None:
            check.begin(request)
        async with self._turn:
            answer = _Answer(RequestId(envelope.hash()), on_envelopes, check, asyncio.Event())
            self._answer = answer
            try:
                await self.send(PacketCode.P2P_REQUEST, envelope.raw)
                while answer.completion is None:
                    answer.progressed.clear()
                    async with asyncio.timeout(ANSWER_TIMEOUT_S):
                        await answer.progressed.wait()
                    if answer.completion is None:  # it may have come just before the end of the connection
                        self._check_open()
            except TimeoutError as error:
                raise NoAnswer(f"no answer within {ANSWER_TIMEOUT_S:g} s") from error
            finally:
                self._answer = None
        if isinstance(answer.completion, Failure):
            if answer.completion.is_pow_too_low:
                raise RequestPowTooLow(answer.completion, min_pow)
            raise RequestFailed(answer.completion)
        return answer.completion

    async def request_all(
        self,
        request: MailRequest,
        key: bytes,
        on_envelopes: OnEnvelopes,
        *,
        min_pow: float | None = None,
        check: AnswerCheck | None = None,
    ) -> Completion:
        """Ask for page after page by their cursors, even after short and empty ones; return the last completion.

        Raises:
            RequestFailed: as `request`, or the cursors go in circles, or do not end within MAX_PAGES.
            ConnectionLost, NoAnswer, TooMuchWork: as `request`.
        """
        seen = {request.cursor}
        while True:
            completion = await self.request(request, key, on_envelopes, min_pow=min_pow, check=check)
            if completion.cursor is None:
                return completion
            if completion.cursor in seen:
                raise RequestFailed(Failure(completion.request_id, "the mailserver's cursor does not advance"))
            if len(seen) >= MAX_PAGES:
                raise RequestFailed(Failure(completion.request_id, f"the answer does not end within {MAX_PAGES} pages"))
            seen.add(completion.cursor)
            request = replace(request, cursor=completion.cursor)

    @contextlib.contextmanager
    def subscribe(self, interest: Interest) -> Iterator[LiveMessages]:
        """Have the node relay live envelopes to us, until the end of the `with`.

        The node is told the interest when this begins, and that we want nothing when it ends. There may be one
        subscription at a time, as a connection has one interest.

        Args:
            interest: at most MAX_TOPIC_INTEREST topics, or a bloom filter.
        Raises:
            ConnectionLost: the connection has ended.
            LocalProtocolError: there is a subscription already.
        """
        if self._live is not None:
            raise LocalProtocolError("subscribed twice on one connection")
        self._check_open()
        live = self._live = LiveMessages(interest)
        topics = interest.topics
        try:
            self._connection.announce(
                replace(
                    NOTHING_LIVE,
                    bloom=interest.bloom if topics is None else None,
                    topic_interest=None if topics is None else frozenset(topics),
                )
            )
            yield live
        finally:
            self._live = None
            self._connection.announce(NOTHING_LIVE)

    async def send(self, code: Code, payload: bytes) -> None:
        """Send a packet, within the rate limits that the node has announced.

        Raises:
            ConnectionLost: the connection has ended.
            TimeoutError: it could not be sent within ANSWER_TIMEOUT_S, or was not allowed to.
        """
        self._send_rate.follow(self._connection.settings)
        async with asyncio.timeout(ANSWER_TIMEOUT_S):
            await self._send_rate.take(len(payload))
            self._connection.send(code, payload)
            await self._connection.drain()

    def _check_open(self) -> None:
        if self._connection.closed is not None:
            raise self._lost()

    def _lost(self) -> ConnectionLost:
        closed = self._connection.closed
        return ConnectionLost(closed.reason, closed.cause) if closed else ConnectionLost(None, "")

    def is_wanted(self, message: MessageReceived) -> bool:
        """Whether a packet is looked at: envelopes are only if somebody waits for such. A node that sends any number of
        others costs little, and gets no answer for them: some are on their way when a subscription ends."""
        if message.capability != WAKU or message.code not in ENVELOPE_CODES:
            return True
        return (self._live if message.code == PacketCode.MESSAGES else self._answer) is not None

    async def on_event(self, event: Event) -> None:
        """Take what the node sends."""
        match event:
            case MessagesReceived(envelopes=envelopes) if self._live is not None:
                self._live.put(envelopes)
            case P2PMessagesReceived(envelopes=envelopes) if self._answer is not None:
                check = self._answer.check
                right = envelopes if check is None else check.right(envelopes)
                if right:  # others could come for ever
                    self._answer.on_envelopes(right)
                    self._answer.progressed.set()
            case P2PRequestCompleted(payload=payload) if self._answer is not None:
                self._on_completion(self._answer, payload)
            case MessageResponseReceived(response=response) if response.batch_hash in self._confirmations:
                self._responses[response.batch_hash] = response
            case BatchAcknowledged(batch_hash=batch_hash):
                response = self._responses.pop(batch_hash, MessageResponse(batch_hash))
                future = self._confirmations.get(batch_hash)
                if future is not None and not future.done():
                    future.set_result(response)
            case _:
                if self._attached is not None:
                    self._attached.on_event(event)

    def on_lost(self) -> None:
        """The connection has ended: tell everybody who waits."""
        for future in self._confirmations.values():
            if not future.done():
                future.set_exception(self._lost())
        if self._live is not None:
            self._live.end(self._lost())
        if self._answer is not None:
            self._answer.progressed.set()
        if self._attached is not None:
            self._attached.on_lost(self._lost())

    def _on_completion(self, answer: _Answer, payload: bytes) -> None:
        try:
            completion = decode_completion(payload)
        except DecodeError as error:
            self._connection.disconnect(DisconnectReason.SUBPROTOCOL_ERROR, f"completion: {error}")
            return
        if completion.request_id == answer.request_id:  # it may be of a request that we gave up on
            answer.completion = completion
            answer.progressed.set()


@contextlib.asynccontextmanager
async def connect(
    enode: Enode, client_id: str, key: PrivateKey | None = None, *, bounds: FrameBounds | None = None
) -> AsyncIterator[MailClient]:
    """Connect to a node, as a light node that wants no live envelopes before it subscribes; disconnect at the end.

    Args:
        key: our node key; a new one if not given.
        bounds: shared with other connections; None: the connection has its own.
    Raises:
        ConnectionLost: nobody answers there, the handshake fails, or no Status comes.
    """
    key = key or random_key()
    connection = await dial(enode, session_config(key, client_id), NOTHING_LIVE, bounds=bounds)
    client = MailClient(connection, PeerSettings(), key.public_key)
    running = asyncio.create_task(connection.pump(one_by_one(client.on_event, is_wanted=client.is_wanted)))
    running.add_done_callback(lambda _: client.on_lost())
    try:
        try:
            client.settings = await connection.ready()
        except ConnectionLost as error:
            cause = f"cannot connect to {enode.host}:{enode.port}: {error.cause}"
            raise ConnectionLost(error.reason, cause) from error
        yield client
    finally:
        connection.disconnect(DisconnectReason.CLIENT_QUITTING, "done")
        await running
