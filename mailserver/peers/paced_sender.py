"""Sends packets to one peer: by turns with other peers, within the peer's rate limits, and only while the peer reads.

A sender waits for its turn first, and makes the packet afterwards. So a peer that does not read makes us keep no part
of an answer in memory. But then the length of the packet is not known when it waits: it gives an estimate, which is
corrected when the packet is sent.
"""

from mailserver.limits.loop_scheduler import WorkBudget
from mailserver.limits.send_rate import SendRate
from mailserver.net.connection import Connection
from mailserver.net.sessions import Code
from mailserver.rlpx.shared_payload import SharedPayload


class PacedSender:
    """Used by one task. For each packet, it calls `wait_turn` and then `send`. A turn in which nothing is sent is given
    back with the next one."""

    __slots__ = ("_connection", "_counted", "_sealing", "_send_rate")

    def __init__(self, connection: Connection, send_rate: SendRate, sealing: WorkBudget) -> None:
        """Send on a connection.

        Args:
            send_rate: the rate limits that the peer has announced.
            sealing: how much the connection may have sealed before it waits for a turn.
        """
        self._connection = connection
        self._send_rate = send_rate
        self._sealing = sealing
        self._counted: int | None = None  # the size of a packet that has its turn, and was not sent yet

    async def wait_turn(self, size: int) -> None:
        """Wait until a packet of about `size` bytes may be sent.

        Raises:
            ConnectionLost: the connection has ended.
        """
        if self._counted is not None:
            self._send_rate.give_back(self._counted)
            self._sealing.correct(-self._counted)
            self._counted = None
        await self._connection.drain()
        await self._send_rate.take(size)
        await self._sealing.take(size)
        await self._connection.drain()  # other packets may have filled the buffer meanwhile
        self._counted = size

    async def drain(self) -> None:
        """Wait until the peer has read enough of what was sent.

        Raises:
            ConnectionLost: the connection has ended.
        """
        await self._connection.drain()

    def send(self, code: Code, payload: bytes | SharedPayload) -> None:
        """Send a packet, after `wait_turn`.

        Raises:
            ConnectionLost: the connection has ended.
        """
        size = len(payload.raw if isinstance(payload, SharedPayload) else payload)
        more = size - (self._counted or 0)
        if more:
            self._send_rate.correct(more)
            self._sealing.correct(more)
        self._counted = None
        self._connection.send(code, payload)
