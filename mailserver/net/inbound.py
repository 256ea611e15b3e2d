"""The messages that one read of the socket has brought, on their way from the connection to their receiver."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import NamedTuple, TypeAlias

from mailserver.codec.snappy import decompress_long
from mailserver.limits.intake_bounds import LARGE_WORK, PART_WORK, QUANTUM_BYTES, PacketCost
from mailserver.net.sessions import WAKU
from mailserver.rlpx.events import BaseMessageReceived, LongMessageReceived, MessageReceived
from mailserver.waku.peer import ENVELOPE_CODES, LargePacket
from mailserver.waku.peer import Event as WakuEvent
from mailserver.wakuid.peer import IdPacketReceived

Event: TypeAlias = WakuEvent | IdPacketReceived
"""What a message of the peer means."""


class LongMessage(NamedTuple):
    """A message of `waku` that is longer than a stranger may send, inflated."""

    code: int
    payload: bytearray


async def inflated(message: LongMessageReceived) -> bytearray:
    """Inflate a long message in a thread, and let go of `message.data`: the caller may hold the message for longer.

    A cancelled caller waits for the thread, too: until then the message counts as memory in use.

    Raises:
        DecodeError: the message does not inflate.
    """
    with message.data as data:
        if not message.is_compressed:
            return bytearray(data)
        inflating = asyncio.ensure_future(asyncio.to_thread(decompress_long, data))
        try:
            return await asyncio.shield(inflating)
        except asyncio.CancelledError:
            await asyncio.gather(inflating, return_exceptions=True)
            raise
        finally:
            del inflating  # its DecodeError refers to this frame, and to what was inflated, up to 16 MiB


SessionMessage: TypeAlias = MessageReceived | LongMessage | BaseMessageReceived
"""A message of the peer, inflated but not decoded. One of the base protocol has been acted on by the session, and is
only counted."""


class Inbound:
    """The messages of one read, in the order in which they came.

    `decode` says what a message means. It is called once for each message that is not of the base protocol, in order,
    and raises RemoteProtocolError if the message breaks a rule. For one that `is_large`, `begin` may be called instead.
    """

    __slots__ = ("_messages", "begin", "bytes", "decode")

    def __init__(
        self,
        decode: Callable[[MessageReceived | LongMessage], Event],
        begin: Callable[[MessageReceived], LargePacket],
    ) -> None:
        self.decode = decode
        self.begin = begin
        self._messages: deque[SessionMessage] = deque()
        self.bytes = 0
        """How long the payloads of all of them are."""

    def __len__(self) -> int:
        return len(self._messages)

    def add(self, message: SessionMessage) -> None:
        """Add a message at the end."""
        self._messages.append(message)
        self.bytes += _payload_bytes(message)

    def peek(self) -> SessionMessage | None:
        """Return the next message and leave it there; None if there is none."""
        return self._messages[0] if self._messages else None

    def take(self) -> SessionMessage:
        """Remove the next message and return it.

        Raises:
            IndexError: there is none.
        """
        message = self._messages.popleft()
        self.bytes -= _payload_bytes(message)
        return message


def _payload_bytes(message: SessionMessage) -> int:
    return message.size if isinstance(message, BaseMessageReceived) else len(message.payload)


def is_large(message: MessageReceived, cost: PacketCost) -> bool:
    """Whether this is a packet of so many envelopes that it should be decoded part by part."""
    return cost.work > LARGE_WORK and message.code in ENVELOPE_CODES and message.capability == WAKU


Receive = Callable[[Inbound], Awaitable[float]]
"""Takes one or more messages and acts on them. It is called until none are left; only then is more read. While it
waits, nothing is read from this peer, and nobody else is held up.

It returns for how many seconds nothing is to be read from the peer. It may raise RemoteProtocolError: then the peer is
disconnected."""

Handler = Callable[[Event], Awaitable[None]]


def one_by_one(handler: Handler, *, is_wanted: Callable[[MessageReceived], bool] = lambda _: True) -> Receive:
    """Make a `Receive` that awaits the handler for each event of the peer. Only time is limited: after QUANTUM_BYTES of
    work, other tasks run. Of a large packet, each part is an event.

    Args:
        is_wanted: what it is False for is not even decoded.
    """
    done = 0

    async def pay(work: int) -> None:
        nonlocal done
        done += work
        if done >= QUANTUM_BYTES:
            done = 0
            await asyncio.sleep(0)

    async def receive(inbound: Inbound) -> float:
        message = inbound.take()
        if isinstance(message, BaseMessageReceived):
            return 0.0
        if isinstance(message, LongMessage):
            await handler(inbound.decode(message))
            return 0.0
        if not is_wanted(message):
            await pay(len(message.payload))
            return 0.0
        cost = PacketCost.of(message.code, message.payload)
        if is_large(message, cost):
            packet = inbound.begin(message)
            while part := packet.read():
                await handler(packet.event(part))
                await pay(PART_WORK)
        else:
            await handler(inbound.decode(message))
            await pay(cost.work)
        return 0.0

    return receive
