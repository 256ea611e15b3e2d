"""What one read of the socket has brought, on its way from the connection to whoever takes it."""

from collections import deque
from collections.abc import Awaitable, Callable
from typing import NamedTuple

from mailserver.waku.peer import Event


class Packet(NamedTuple):
    """One message of the peer, inflated and not decoded yet; `size` is how long it is.

    `code` is None for a message of the base protocol, which the session has acted on: it only counts. The payload is a
    bytearray if it is longer than a stranger's may be.
    """

    code: int | None
    payload: bytes | bytearray
    size: int

    @property
    def is_long(self) -> bool:
        """Whether it is longer than a stranger may send."""
        return isinstance(self.payload, bytearray)


class Inbound:
    """Packets of one read, in the order in which they came. Whoever takes one out decodes it."""

    __slots__ = ("_decode", "_packets")

    def __init__(self, decode: Callable[[Packet], Event]) -> None:
        self._decode = decode
        self._packets: deque[Packet] = deque()

    def __len__(self) -> int:
        return len(self._packets)

    def add(self, packet: Packet) -> None:
        """One more has come."""
        self._packets.append(packet)

    def peek(self) -> Packet | None:
        """The next packet, which stays; None if there is none."""
        return self._packets[0] if self._packets else None

    def take(self) -> Packet:
        """Take the next packet out.

        Raises:
            IndexError: there is none.
        """
        return self._packets.popleft()

    def decode(self, packet: Packet) -> Event:
        """Decode a packet that was taken out and is not of the base protocol; each once, in their order.

        Raises:
            RemoteProtocolError: it breaks a rule: the peer is to be disconnected.
        """
        return self._decode(packet)


Receive = Callable[[Inbound], Awaitable[float]]
"""Takes one packet or more out of what has come, and acts on it. It is called until nothing is left, and before more is
read: while it waits, the peer is not read from, and nobody else is held up.

Returns for how many seconds the peer is not to be read from. It may raise RemoteProtocolError: the peer goes."""

Handler = Callable[[Event], Awaitable[None]]


def one_by_one(handler: Handler) -> Receive:
    """Have a handler told of each event of the peer, one at a time, without any limits."""

    async def receive(inbound: Inbound) -> float:
        packet = inbound.take()
        if packet.code is not None:
            await handler(inbound.decode(packet))
        return 0.0

    return receive
