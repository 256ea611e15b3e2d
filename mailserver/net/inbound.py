"""What one read of the socket has brought, on its way from the connection to whoever takes it."""

from collections import deque
from collections.abc import Awaitable, Callable
from typing import NamedTuple, TypeAlias

from mailserver.rlpx.events import BaseMessageReceived, MessageReceived
from mailserver.waku.peer import Event


class LongMessage(NamedTuple):
    """A message that is longer than a stranger may send, inflated."""

    code: int
    payload: bytearray


Message: TypeAlias = MessageReceived | LongMessage | BaseMessageReceived
"""One message of the peer, inflated and not decoded yet; or one of the base protocol, which only counts, as the session
has acted on it."""


class Inbound:
    """Messages of one read, in the order in which they came.

    `decode` says what a message means; it is called once for each that is not of the base protocol, in their order. It
    raises RemoteProtocolError where one breaks a rule.
    """

    __slots__ = ("_messages", "decode")

    def __init__(self, decode: Callable[[MessageReceived | LongMessage], Event]) -> None:
        self.decode = decode
        self._messages: deque[Message] = deque()

    def __len__(self) -> int:
        return len(self._messages)

    def add(self, message: Message) -> None:
        """One more has come."""
        self._messages.append(message)

    def peek(self) -> Message | None:
        """The next message, which stays; None if there is none."""
        return self._messages[0] if self._messages else None

    def take(self) -> Message:
        """Take the next message out.

        Raises:
            IndexError: there is none.
        """
        return self._messages.popleft()


Receive = Callable[[Inbound], Awaitable[float]]
"""Takes one message or more out of what has come, and acts on them. It is called until nothing is left, before more is
read: while it waits, the peer is not read from, and nobody else is held up.

Returns for how many seconds the peer is not to be read from. It may raise RemoteProtocolError: the peer goes."""

Handler = Callable[[Event], Awaitable[None]]


def one_by_one(handler: Handler) -> Receive:
    """Have a handler told of each event of the peer, one at a time, without any limits."""

    async def receive(inbound: Inbound) -> float:
        message = inbound.take()
        if not isinstance(message, BaseMessageReceived):
            await handler(inbound.decode(message))
        return 0.0

    return receive
