"""The history requests of one peer. They wait here and are answered one after the other, or they are refused."""

import asyncio
import contextlib
from collections import deque

from mailserver.errors import ConnectionLost, Rejection, RequestRejected
from mailserver.history.delivery import MAX_REQUEST_BYTES, Delivery
from mailserver.limits.intake_bounds import MemoryBudget
from mailserver.limits.request_quotas import Requester
from mailserver.limits.send_rate import SendRate
from mailserver.mail.packing import TARGET_PACKET_BYTES
from mailserver.peers.paced_sender import PacedSender

MAX_WAITING_REQUESTS = 16
"""How many requests of one peer may wait while another is answered. Deployed clients send 3 at once."""

CONCURRENCY_RETRY_S = 1
"""After this time, a client that had too many requests under way may send one again. One takes some milliseconds."""


class RequestQueue:
    """The requests of one connection."""

    def __init__(self, delivery: Delivery, memory: MemoryBudget, send_rate: SendRate) -> None:
        """Start empty.

        Args:
            memory: the budget for waiting requests of all peers.
            send_rate: the rate limits that the peer has announced.
        """
        self._delivery = delivery
        self._memory = memory
        self._send_rate = send_rate
        self._waiting: deque[bytes] = deque()
        self._waiting_bytes = 0
        self._arrived = asyncio.Event()
        self._is_answering = False
        self._requester: Requester | None = None

    def __len__(self) -> int:
        """How many requests wait."""
        return len(self._waiting)

    async def add(self, payload: bytes, requester: Requester, sender: PacedSender) -> None:
        """Queue a request, or refuse it, and then wait until the refusal was sent."""
        self._requester = requester
        refused = None
        if len(payload) > MAX_REQUEST_BYTES:
            refused = RequestRejected(Rejection.MALFORMED)
        elif not self._has_room_for(payload, requester):
            refused = RequestRejected(Rejection.TOO_MANY_WAITING, retry_after_s=CONCURRENCY_RETRY_S)
        if refused is None:
            self._waiting.append(payload)
            self._waiting_bytes += len(payload)
            self._arrived.set()
            if not self._is_answering:
                await asyncio.sleep(0)  # its answer begins now, so it does not count as waiting when the next one comes
        else:
            with contextlib.suppress(ConnectionLost):
                await self._delivery.refuse(payload, refused, sender, requester.node_id)

    def _has_room_for(self, request: bytes, requester: Requester) -> bool:
        """Whether one more request may wait. If so, it is counted."""
        if len(self._waiting) >= MAX_WAITING_REQUESTS or not requester.begin():
            return False
        if self._memory.try_acquire(len(request), is_first=not self._waiting):
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
            payload = self._waiting.popleft()
            self._waiting_bytes -= len(payload)
            self._memory.release(len(payload))
            self._is_answering = True
            try:
                await self._delivery.answer(
                    payload,
                    sender,
                    self._requester,
                    max_packet_bytes=min(TARGET_PACKET_BYTES, self._send_rate.max_packet_bytes),
                )
            except ConnectionLost:
                return
            finally:
                self._is_answering = False
                self._requester.end()

    def end(self) -> None:
        """Drop all waiting requests, as the connection has ended."""
        for _ in self._waiting:
            assert self._requester is not None, "a request has come"
            self._requester.end()
        self._memory.release(self._waiting_bytes)
        self._waiting.clear()
        self._waiting_bytes = 0
