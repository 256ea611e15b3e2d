"""The requests of one peer, for history and about message ids. They wait here and are answered one after the other, or
they are refused."""

import asyncio
import contextlib
from collections import deque
from typing import NamedTuple

from mailserver.errors import ConnectionLost, DisconnectReason, Rejection, RemoteProtocolError, RequestRejected
from mailserver.history.delivery import MAX_REQUEST_BYTES, Delivery
from mailserver.history.id_conversation import IdConversation
from mailserver.limits.intake_bounds import RESERVED_BYTES, IntakeBounds, MemoryBudget
from mailserver.limits.request_quotas import Requester
from mailserver.limits.send_rate import SendRate
from mailserver.mail.packing import TARGET_PACKET_BYTES
from mailserver.net.sessions import Code
from mailserver.peers.paced_sender import PacedSender
from mailserver.waku.packets import PacketCode
from mailserver.wakuid.packets import MAX_QUESTION_BYTES, IdPacketCode

MAX_WAITING_REQUESTS = 16
"""How many requests of one peer may wait while another is answered. Deployed clients send 3 at once."""

CONCURRENCY_RETRY_S = 1
"""After this time, a client that had too many requests under way may send one again. One takes some milliseconds."""


class _Request(NamedTuple):
    code: Code
    payload: bytes

    @property
    def max_bytes(self) -> int:
        return MAX_REQUEST_BYTES if isinstance(self.code, PacketCode) else MAX_QUESTION_BYTES


class RequestQueue:
    """The requests of one connection."""

    def __init__(
        self, delivery: Delivery, conversation: IdConversation, bounds: IntakeBounds, send_rate: SendRate
    ) -> None:
        """Start empty.

        Args:
            delivery, conversation: answer history requests, and questions about message ids.
            bounds: has the budgets for waiting requests of all peers.
            send_rate: the rate limits that the peer has announced.
        """
        self._delivery = delivery
        self._conversation = conversation
        self._bounds = bounds
        self._send_rate = send_rate
        self._waiting: deque[_Request] = deque()
        self._arrived = asyncio.Event()
        self._is_answering = False
        self._requester: Requester | None = None

    def __len__(self) -> int:
        """How many requests wait."""
        return len(self._waiting)

    async def add(
        self, code: Code, payload: bytes, requester: Requester, sender: PacedSender, *, held_bytes: int
    ) -> None:
        """Queue a request, or refuse it, and then wait until the refusal was sent.

        Args:
            code: P2P_REQUEST, or one of `wakuid.packets.QUESTIONS`.
            held_bytes: how much of the peer is in memory while this waits: the request, and what was read with it.
        Raises:
            RemoteProtocolError: it is refused, and too much of others waits that do not read either.
        """
        self._requester = requester
        request = _Request(code, payload)
        refused = None
        if len(payload) > request.max_bytes:
            refused = RequestRejected(Rejection.MALFORMED)
        elif not self._has_room_for(request, requester):
            refused = RequestRejected(Rejection.TOO_MANY_WAITING, retry_after_s=CONCURRENCY_RETRY_S)
        if refused is None:
            self._waiting.append(request)
            self._arrived.set()
            if not self._is_answering:
                await asyncio.sleep(0)  # its answer begins now, so it does not count as waiting when the next one comes
            return
        memory = self._bounds.refused
        if not memory.try_acquire(held_bytes, is_first=True):
            raise RemoteProtocolError(
                DisconnectReason.SUBPROTOCOL_ERROR, "asks for more than it may, and too many do not read that"
            )
        try:
            with contextlib.suppress(ConnectionLost):
                if isinstance(code, IdPacketCode):
                    await self._conversation.refuse(payload, refused, sender, requester)
                else:
                    await self._delivery.refuse(payload, refused, sender, requester.node_id)
        finally:
            memory.release(held_bytes)

    def _has_room_for(self, request: _Request, requester: Requester) -> bool:
        """Whether one more request may wait. If so, it is counted."""
        if len(self._waiting) >= MAX_WAITING_REQUESTS or not requester.begin():
            return False
        is_first = not self._waiting and not self._is_answering
        if self._memory(request).try_acquire(len(request.payload), is_first=is_first):
            return True
        requester.end()
        return False

    async def answer_all(self, sender: PacedSender) -> None:
        """Answer one request after the other, until the connection has ended."""
        while True:
            await self._arrived.wait()
            if not self._waiting:
                self._arrived.clear()
                continue
            assert self._requester is not None, "a request has come"
            request = self._waiting.popleft()
            self._is_answering = True
            memory = self._bounds.answers
            has_room = memory.try_acquire(TARGET_PACKET_BYTES, is_first=False)
            try:
                try:
                    max_packet_bytes = TARGET_PACKET_BYTES if has_room else RESERVED_BYTES
                    await self._answer(request, sender, self._requester, max_packet_bytes)
                finally:
                    self._is_answering = False
                    self._forget(request, self._requester)
                await sender.drain()  # the last packet waits to be read
            except ConnectionLost:
                return
            finally:
                sender.end()
                if has_room:
                    memory.release(TARGET_PACKET_BYTES)

    async def _answer(
        self, request: _Request, sender: PacedSender, requester: Requester, max_packet_bytes: int
    ) -> None:
        max_packet_bytes = min(max_packet_bytes, self._send_rate.max_packet_bytes)
        code, payload = request
        if isinstance(code, IdPacketCode):
            await self._conversation.answer(code, payload, sender, requester, max_packet_bytes=max_packet_bytes)
        else:
            await self._delivery.answer(payload, sender, requester, max_packet_bytes=max_packet_bytes)

    def end(self) -> None:
        """Drop all waiting requests, as the connection has ended."""
        while self._waiting:
            assert self._requester is not None, "a request has come"
            self._forget(self._waiting.popleft(), self._requester)

    def _forget(self, request: _Request, requester: Requester) -> None:
        """Give back what a request took. It takes memory until its answer has ended: its client may read slowly."""
        requester.end()
        self._memory(request).release(len(request.payload))

    def _memory(self, request: _Request) -> MemoryBudget:
        return self._bounds.requests if isinstance(request.code, PacketCode) else self._bounds.questions
