"""A way out to one peer: what goes there goes in turn, no faster than the peer has said, and while it reads.

How long a packet will be is not always known when its turn comes: what an answer is made of is read only then, so that
who does not read has us keep none of it. So a turn is for about so many bytes, and what it was more or less counts
with the next.
"""

from mailserver.limits.send_rate import SendRate
from mailserver.limits.turns import TurnShare
from mailserver.net.connection import Connection
from mailserver.waku.packets import PacketCode


class PacedSender:
    """Used by one task, packet by packet: first its turn, then the packet."""

    __slots__ = ("_connection", "_counted", "_sealing", "_send_rate")

    def __init__(self, connection: Connection, send_rate: SendRate, sealing: TurnShare) -> None:
        """Lead to a connection.

        Args:
            send_rate: follows what the peer announces.
            sealing: the connection's share of what is sealed for all.
        """
        self._connection = connection
        self._send_rate = send_rate
        self._sealing = sealing
        self._counted = 0

    async def turn(self, size: int) -> None:
        """Wait until a packet of about so many bytes may be sent.

        Raises:
            ConnectionLost: the connection has ended.
        """
        await self._connection.drain()
        await self._send_rate.take(size)
        await self._sealing.take(size)
        await self._connection.drain()  # what else goes there may have come between
        self._counted = size

    def send(self, code: PacketCode, payload: bytes) -> None:
        """Send a packet whose turn it is.

        Raises:
            ConnectionLost: the connection has ended.
        """
        more = len(payload) - self._counted
        if more:
            self._send_rate.correct(more)
            self._sealing.correct(more)
        self._counted = 0
        self._connection.send(code, payload)
