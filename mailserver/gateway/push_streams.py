"""The streams on which one client gets its pushes, and what waits for them.

Clients differ. js-waku reads any number of messages from one stream, and leaves its half of it open. go-waku reads one
message from each stream, and closes it. So the first message shows which kind a client is: the next ones wait PROBE_S
to see whether its stream is closed. go-waku resets the stream of a message that it has not subscribed to. Nothing else
tells us that it has forgotten its subscriptions, by a restart for example.
"""

from collections import deque
from collections.abc import Callable, Hashable
from typing import NamedTuple

from mailserver.libp2p.connection import Connection
from mailserver.libp2p.streams import StreamId

PROBE_S = 0.25
"""How long the first stream is watched: longer than the way to any client and back."""

MAX_STREAMS_AT_ONCE = 64
"""How many streams of one message each may be open: how many messages may be on their way to such a client."""


class _Waiting(NamedTuple):
    """A message that waits: its frame as sent, and what it is sent for."""

    frame: bytes
    criterion: Hashable


class PushStreams:
    """The streams of one client for one protocol. Times are monotonic seconds.

    `waiting_bytes`: how much waits for a stream. Its user bounds that.
    """

    def __init__(
        self,
        machine: Connection,
        protocol: str,
        is_wanted: Callable[[Hashable], bool],
        forgotten: Callable[[Hashable], None],
        owners: "dict[StreamId, PushStreams]",
    ) -> None:
        """Take the connection.

        Args:
            is_wanted: whether a message is still wanted, by its criterion: what was unsubscribed is not sent any more.
            forgotten: called with the criterion of a message whose stream the client has reset.
            owners: which object each stream of pushes belongs to; kept up to date here.
        """
        self._machine = machine
        self._protocol = protocol
        self._is_wanted = is_wanted
        self._forgotten = forgotten
        self._owners = owners
        self._kept: StreamId | None = None
        self._first: Hashable = None  # the criterion of the first message on it
        self._probe_ends = 0.0
        self._one_each = False
        self._single: dict[StreamId, Hashable] = {}  # and the criterion of its message
        self._waiting: deque[_Waiting] = deque()
        self.waiting_bytes = 0

    def push(self, frame: bytes, criterion: Hashable, now: float, *, may_send: bool) -> None:
        """Send a message, or have it wait.

        Args:
            frame: as it is sent. criterion: what it is sent for.
            may_send: whether the connection takes more at once.
        """
        if self._waiting or not may_send or not self._send(frame, criterion, now):
            self._waiting.append(_Waiting(frame, criterion))
            self.waiting_bytes += len(frame)

    def next_timer(self, now: float) -> float | None:
        """When to call `send_waiting`, if nothing happens before.

        What still waits after the first stream was watched waits for the client to read: no time is known for that.
        """
        is_watched = self._kept is not None and now < self._probe_ends
        return self._probe_ends if self._waiting and is_watched else None

    def send_waiting(self, now: float) -> None:
        """Send what waits, as far as there are streams for it."""
        while self._waiting and (not self._is_wanted(self._waiting[0].criterion) or self._send(*self._waiting[0], now)):
            self.waiting_bytes -= len(self._waiting.popleft().frame)

    def closed(self, stream: StreamId, now: float) -> None:
        """The client has closed its half of one of these streams: it reads no more from it."""
        if stream == self._kept:
            self._kept = None
            self._one_each = self._one_each or now < self._probe_ends
        self._single.pop(stream, None)
        self._owners.pop(stream, None)
        self._machine.close_write(stream)

    def reset(self, stream: StreamId, now: float) -> None:
        """The client has reset one of these streams, or does not speak the protocol."""
        self._owners.pop(stream, None)
        if stream == self._kept:
            self._kept = None
            if now < self._probe_ends:
                self._one_each = True
                self._forgotten(self._first)
        elif stream in self._single:
            self._forgotten(self._single.pop(stream))

    def _send(self, frame: bytes, criterion: Hashable, now: float) -> bool:
        machine = self._machine
        if self._kept is not None:
            if now < self._probe_ends or machine.unsent(self._kept):  # what is sent could not be taken back
                return False
            machine.send(self._kept, frame)
            return True
        if not machine.may_open or len(self._single) >= MAX_STREAMS_AT_ONCE:
            return False
        stream = machine.open_stream(self._protocol, now)
        self._owners[stream] = self
        machine.send(stream, frame)
        if self._one_each:
            machine.close_write(stream)
            self._single[stream] = criterion
        else:
            self._kept, self._first, self._probe_ends = stream, criterion, now + PROBE_S
        return True
