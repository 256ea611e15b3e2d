"""Sends packets to one peer: by turns with other peers, within the peer's rate limits, and only while the peer reads.

A sender waits for its turn first, and makes the packet afterwards. So a peer that does not read makes us keep no part
of an answer in memory. But then the length of the packet is not known when it waits: it gives an estimate, which is
corrected when the packet is sent.
"""

import asyncio
import math

from mailserver.errors import ConnectionLost, DisconnectReason, Rejection, RequestRejected
from mailserver.limits.intake_bounds import MemoryBudget
from mailserver.limits.loop_scheduler import WorkBudget
from mailserver.limits.send_rate import SendRate
from mailserver.mail.packing import TARGET_PACKET_BYTES
from mailserver.net.connection import Connection
from mailserver.net.link import WRITE_TIMEOUT_S
from mailserver.net.sessions import Code
from mailserver.rlpx.shared_payload import SharedPayload

UNREAD_TIMEOUT_S = WRITE_TIMEOUT_S
"""How long a long packet may wait for memory. In this time, each peer that has some either reads or is dropped."""


RATE_TIMEOUT_S = 300.0
"""How long a packet may wait for the rate limits that its peer has announced. A limit should not be less than one
packet a second (6/WAKU1 "Rate Limits Field"). Without this, an answer to a peer that takes a byte a second would keep
its share of the memory for answers for days."""


class PacedSender:
    """Used by one task. For each packet, it calls `wait_turn` and then `send`; at the end, it calls `end`. A turn in
    which nothing is sent is given back with the next one.

    A packet of more than TARGET_PACKET_BYTES takes memory of a budget that all peers share, until the peer has read
    nearly all of it.
    """

    __slots__ = ("_connection", "_counted", "_held", "_sealing", "_send_rate", "_unread")

    def __init__(self, connection: Connection, send_rate: SendRate, sealing: WorkBudget, unread: MemoryBudget) -> None:
        """Send on a connection.

        Args:
            unread: memory of all peers for long packets.
            send_rate: the rate limits that the peer has announced.
            sealing: how much the connection may have sealed before it waits for a turn.
        """
        self._connection = connection
        self._send_rate = send_rate
        self._sealing = sealing
        self._unread = unread
        self._held = 0  # how much memory of `unread` this has taken
        self._counted: int | None = None  # the size of a packet that has its turn, and was not sent yet

    async def wait_turn(self, size: int) -> None:
        """Wait until a packet of about `size` bytes may be sent.

        Raises:
            ConnectionLost: the connection has ended.
            RequestRejected: there is no memory for a packet of that length.
        """
        if self._counted is not None:
            self._send_rate.give_back(self._counted)
            self._sealing.correct(-self._counted)
            self._counted = None
        await self._connection.drain()
        self._release()
        if self._send_rate.is_limited:
            await self._wait_for_rate(size)
        if size > TARGET_PACKET_BYTES:
            await self._wait_for_memory(size)
        await self._sealing.take(size)
        await self._connection.drain()  # other packets may have filled the buffer meanwhile
        self._counted = size

    async def drain(self) -> None:
        """Wait until the peer has read enough of what was sent.

        Raises:
            ConnectionLost: the connection has ended.
        """
        await self._connection.drain()
        self._release()

    def end(self) -> None:
        """Give back what is held: nothing more is sent, or the connection has ended."""
        self._release()

    async def _wait_for_rate(self, size: int) -> None:
        try:
            async with asyncio.timeout(RATE_TIMEOUT_S):
                await self._send_rate.take(size)
        except TimeoutError as error:
            cause = f"peer takes less than one packet in {RATE_TIMEOUT_S:g} s"
            self._connection.disconnect(DisconnectReason.SUBPROTOCOL_ERROR, cause)
            raise ConnectionLost(DisconnectReason.SUBPROTOCOL_ERROR, cause) from error

    async def _wait_for_memory(self, size: int) -> None:
        try:
            async with asyncio.timeout(UNREAD_TIMEOUT_S):
                await self._unread.acquire(size, is_first=False)
        except TimeoutError as error:
            self._send_rate.give_back(size)
            raise _too_much_unread() from error
        self._held = size

    def _release(self) -> None:
        if self._held:
            self._unread.release(self._held)
            self._held = 0

    def send(self, code: Code, payload: bytes | SharedPayload) -> None:
        """Send a packet, after `wait_turn`.

        Raises:
            ConnectionLost: the connection has ended.
            RequestRejected: it is longer than its turn was for, and there is no memory for a packet of that length now.
        """
        size = len(payload.raw if isinstance(payload, SharedPayload) else payload)
        if size > TARGET_PACKET_BYTES and size > self._held:
            # It does not wait: what it was made of is in memory, which would then have no bound.
            if not self._unread.try_acquire(size - self._held, is_first=False):
                raise _too_much_unread()
            self._held = size
        more = size - (self._counted or 0)
        if more:
            self._send_rate.correct(more)
            self._sealing.correct(more)
        self._counted = None
        self._connection.send(code, payload)


def _too_much_unread() -> RequestRejected:
    cause = "too many peers do not read their long envelopes"
    return RequestRejected(Rejection.RATE_LIMITED, cause, math.ceil(UNREAD_TIMEOUT_S))
