"""One client: its connection, what it asks on its streams, and what is pushed to it.

There is no task for each client. Its socket calls `Peer`, which feeds the machine of libp2p, hands what came to the
handlers of streams, and sends. Only while answers wait for the store or the daemon does a client have a task.
"""

import asyncio
from collections.abc import Awaitable, Callable, Hashable, Mapping
from functools import partial
from typing import Protocol

from mailserver.gateway.answers import Answers
from mailserver.gateway.pace import ReadingPace
from mailserver.gateway.push_streams import PushStreams
from mailserver.gateway.send_memory import MAX_CLIENT_BYTES, SendMemory
from mailserver.gateway.transport import Transport
from mailserver.libp2p.connection import Connection
from mailserver.libp2p.events import Closed, Event, ProtocolRefused, Secured, StreamFailed, StreamOpened
from mailserver.libp2p.peer_id import PeerId
from mailserver.libp2p.streams import DataReceived, StreamId, StreamReset, WriteClosed
from mailserver.limits.buckets import TokenBucket
from mailserver.metrics.gateway import Ending
from mailserver.net.due import call_when_due
from mailserver.waku2.frames import encode_frame

MAX_UNREAD_BYTES = 2 * MAX_CLIENT_BYTES
"""When so much waits for a client, nothing is read from it. Pushes alone do not lead so far: a client that is slow to
read them can still ask us to stop."""

BLOCKED_S = 20.0
"""A client that has read nothing for so long, though something waits for it, is disconnected."""

STREAMS_PER_SECOND = 200.0
STREAMS_BURST = 1000.0
"""How fast a client may open streams. js-waku opens one for each request, and some in advance."""

MAX_REQUESTS_BYTES = 2 * 1024 * 1024
"""How many bytes of requests that are not whole are kept of one client. The longest request has a tenth of that."""


class Handler(Protocol):
    """What is at our end of a stream that a client has opened."""

    def on_data(self, data: bytes) -> None:
        """Bytes have come."""

    def on_closed(self) -> None:
        """The client has closed its half."""


class MakeHandler(Protocol):
    """Makes the handler of a stream of some protocol; None if none is needed."""

    def __call__(self, peer: "Peer", stream: StreamId) -> Handler | None: ...


class Owner(Protocol):
    """Whoever a peer tells how far it is."""

    def on_open(self, peer: "Peer") -> Ending | None:
        """Its address is known. Return why it may not stay, or None."""

    def on_secured(self, peer: "Peer") -> Ending | None:
        """Its peer id is known. Return why it may not stay, or None."""

    def on_failed(self, error: Exception) -> None:
        """A request of it was not answered, by a fault of ours."""

    def on_gone(self, peer: "Peer") -> None:
        """Its socket is gone."""


class Peer:
    """One client, from accept until its socket is gone.

    `peer_id`: None until the handshake is over. `ending`: why we have ended the connection; None if we have not.
    `fault`: the particulars. `is_gone`: nothing is sent to it any more, or taken from it.
    """

    def __init__(
        self,
        transport: Transport,
        machine: Connection,
        protocols: Mapping[str, MakeHandler],
        owner: Owner,
        memory: SendMemory,
    ) -> None:
        """Take a socket that was accepted.

        Args:
            memory: shared by all clients, for what they have not read, and requests that are not answered.
        """
        self.transport = transport
        self.machine = machine
        self.peer_id: PeerId | None = None
        self.ending: Ending | None = None
        self.fault: object = ""
        self.is_gone = False
        self._protocols = protocols
        self._owner = owner
        self._memory = memory.share(partial(self.abort, Ending.NOT_READING))
        self._loop = asyncio.get_running_loop()
        self._handlers: dict[StreamId, Handler] = {}
        self._opened = TokenBucket(STREAMS_PER_SECOND, STREAMS_BURST, self._loop.time())
        self._pushes: dict[str, PushStreams] = {}
        self._push_streams: dict[StreamId, PushStreams] = {}
        self._answers = Answers(f"answers {transport.address}", self.may_queue, self.answer, self.failed)
        self._timer: asyncio.TimerHandle | None = None
        self._due = 0.0
        self._pace = ReadingPace(transport)
        self._requests: dict[StreamId, int] = {}  # how much is kept of each that is not whole
        self._requests_bytes = 0
        self._is_dirty = False
        self._blocked_since: float | None = None
        self._written_before = 0
        self._set_timer(self._loop.time())

    @property
    def host(self) -> str:
        """The client's address."""
        return self.transport.host

    # What the transport calls.

    def on_open(self) -> None:
        """Begin the handshake, if the client is admitted."""
        ending = self._owner.on_open(self)
        if ending is not None:
            self.abort(ending)

    def on_data(self, data: bytes) -> None:
        """Take what has come."""
        if self.is_gone:
            return
        if data:
            self.machine.receive_data(data, self._loop.time())
        self._pace.count(self.machine.received_frames)
        self._handle_events()

    def on_eof(self) -> None:
        """The client sends nothing more."""
        self.machine.receive_eof(self._loop.time())
        self._handle_events()

    def on_writable(self) -> None:
        """Some of what waited was sent."""
        self._flush()

    def on_fault(self, error: Exception) -> None:
        """A fault of ours ends the connection."""
        self._owner.on_failed(error)
        self._stop()

    def on_lost(self) -> None:
        """The socket is gone."""
        self._stop()
        self._owner.on_gone(self)

    # What handlers and services call.

    def answer(self, stream: StreamId, answer: bytes) -> None:
        """Send an answer, and close our half of its stream: js-waku waits for that."""
        self.machine.send(stream, encode_frame(answer))
        self.machine.close_write(stream)
        self._mark_dirty()

    @property
    def is_busy(self) -> bool:
        """Whether so many answers wait that no further request may be taken that takes a while."""
        return self._answers.is_full

    def answer_later(self, stream: StreamId, answer: Callable[[], Awaitable[bytes]], request_bytes: int) -> None:
        """Send an answer that takes a while, when those before it are sent and read.

        Args:
            request_bytes: how much of the request is kept until then.
        """
        self._answers.add(stream, answer, request_bytes)

    def failed(self, stream: StreamId, error: Exception) -> None:
        """A request is not answered, by a fault of ours: its stream ends."""
        self._owner.on_failed(error)
        self.reset(stream)

    def send(self, stream: StreamId, data: bytes) -> None:
        """Send bytes on a stream."""
        self.machine.send(stream, data)
        self._mark_dirty()

    @property
    def queued_bytes(self) -> int:
        """How much waits to be sent to the client."""
        queued = self.transport.queued_bytes + self.machine.queued_bytes
        for streams in self._pushes.values():
            queued += streams.waiting_bytes
        return queued

    def may_queue(self) -> bool:
        """Whether more may be queued for the client than waits for it already."""
        return self._memory.allows(self.queued_bytes)

    def close_write(self, stream: StreamId) -> None:
        """Close our half of a stream."""
        self.machine.close_write(stream)
        self._mark_dirty()

    def consumed(self, stream: StreamId, count: int) -> None:
        """So many bytes of a stream are done with."""
        self.machine.consumed(stream, count)
        self._mark_dirty()

    def reset(self, stream: StreamId) -> None:
        """End a stream at once."""
        self.machine.reset(stream)
        self._close(stream)
        self._mark_dirty()

    def keep(self, stream: StreamId, count: int) -> bool:
        """So many bytes of a request that is not whole are kept. Return False if all of them are too many."""
        self._requests_bytes += count - self._requests.pop(stream, 0)
        if count:
            self._requests[stream] = count
        return self._requests_bytes <= MAX_REQUESTS_BYTES

    def may_push(self) -> bool:
        """Whether a message may be pushed to the client now: it is there, and reads."""
        is_idle = not self._is_dirty and self._memory.allows(self._memory.used)  # no more waits than at the last flush
        return not self.is_gone and (is_idle or self.may_queue())

    def push(
        self,
        protocol: str,
        frame: bytes,
        criterion: Hashable,
        is_wanted: Callable[[Hashable], bool],
        forgotten: Callable[[Hashable], None],
    ) -> None:
        """Push a message to a client to which one `may_push`.

        Args:
            frame, criterion: see `PushStreams.push`. is_wanted, forgotten: see `PushStreams`.
        """
        streams = self._pushes.get(protocol)
        if streams is None:
            streams = PushStreams(self.machine, protocol, is_wanted, forgotten, self._push_streams)
            self._pushes[protocol] = streams
        streams.push(frame, criterion, self._loop.time(), may_send=not self.transport.is_full)
        self._mark_dirty()

    def close(self) -> None:
        """Say goodbye, and close once what waits is sent."""
        if not self.is_gone:
            self.ending = Ending.QUITTING
            self.machine.close()
            self._end()

    def abort(self, ending: Ending) -> None:
        """Close at once."""
        if self.ending is None and not self.is_gone:
            self.ending = ending
        self._stop()
        self.transport.abort()

    # Events.

    def _handle_events(self) -> None:
        while events := self.machine.events():
            for event in events:
                if self.is_gone:
                    return
                self._handle(event)
        self._flush()

    def _handle(self, event: Event) -> None:
        match event:
            case DataReceived(stream=stream, data=data):
                handler = self._handlers.get(stream)
                if handler is None:  # on a stream of pushes, or one that we have done with: it says nothing to us
                    self.machine.consumed(stream, len(data))
                else:
                    handler.on_data(data)
            case StreamOpened(stream=stream, protocol=protocol, is_ours=False):
                self._open(stream, protocol)
            case WriteClosed(stream=stream):
                if (pushes := self._push_streams.get(stream)) is not None:
                    pushes.closed(stream, self._loop.time())
                elif (handler := self._close(stream)) is not None:
                    handler.on_closed()
            case StreamReset(stream=stream) | ProtocolRefused(stream=stream) | StreamFailed(stream=stream):
                if (pushes := self._push_streams.get(stream)) is not None:
                    pushes.reset(stream, self._loop.time())
                self._close(stream)
            case Secured(peer_id=peer_id):
                self.peer_id = peer_id
                ending = self._owner.on_secured(self)
                if ending is not None:
                    self.abort(ending)
            case Closed(fault=fault):
                if fault is not None:
                    self.ending, self.fault = Ending.LIBP2P_FAULT, fault
                self._end()

    def _open(self, stream: StreamId, protocol: str) -> None:
        if self._opened.take(1.0, self._loop.time()) > 0.0:
            self.abort(Ending.TOO_MANY_STREAMS)
            return
        handler = self._protocols[protocol](self, stream)
        if handler is not None:
            self._handlers[stream] = handler

    def _close(self, stream: StreamId) -> Handler | None:
        """Nothing more comes on a stream; return what was at our end."""
        self.keep(stream, 0)
        return self._handlers.pop(stream, None)

    def _end(self) -> None:
        """The machine is closed: send what it still has, and close."""
        if chunks := self.machine.data_to_send():
            self.transport.write(chunks)
        self._stop()
        self.transport.close()
        self._memory.set(self.transport.queued_bytes, self._loop.time())

    def _stop(self) -> None:
        """Nothing is sent any more, or taken: wait for nothing, keep nothing."""
        self.is_gone = True
        if self._timer is not None:
            self._timer.cancel()
        self._pace.stop()
        self._answers.stop()
        self._handlers.clear()
        self._pushes.clear()
        self._push_streams.clear()
        self._memory.set(0, self._loop.time())

    # Sending.

    def _mark_dirty(self) -> None:
        """Send what the machine has at the end of this iteration of the loop, all at once."""
        if not self._is_dirty:
            self._is_dirty = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._is_dirty = False
        if self.is_gone:
            return
        transport, machine, now = self.transport, self.machine, self._loop.time()
        if not transport.is_full:
            for streams in self._pushes.values():
                if streams.waiting_bytes:
                    streams.send_waiting(now)
            if chunks := machine.data_to_send():
                transport.write(chunks)
        queued = self.queued_bytes
        if queued == 0:
            self._blocked_since = None
        elif self._blocked_since is None:
            self._blocked_since = now
        self._answers.go_on()
        self._set_timer(now)
        self._pace.set_crowded(is_crowded=queued > MAX_UNREAD_BYTES)
        held = transport.held_bytes + machine.held_bytes + self._requests_bytes + self._answers.held_bytes
        self._memory.set(queued + held, now)

    # Time.

    def _set_timer(self, now: float) -> None:
        due = self.machine.next_timer()
        for streams in self._pushes.values():
            if streams.waiting_bytes:
                due = _earlier(due, streams.next_timer(now))
        if self._blocked_since is not None:
            due = _earlier(due, self._blocked_since + BLOCKED_S)
        if self._timer is not None:
            if self._due == due:
                return
            self._timer.cancel()
            self._timer = None
        if due is not None:
            self._timer, self._due = call_when_due(due, self._on_timer), due

    def _on_timer(self) -> None:
        self._timer = None
        now = self._loop.time()
        if self._blocked_since is not None and now >= self._blocked_since + BLOCKED_S:
            written = self.transport.written_bytes
            if written == self._written_before:
                self.abort(Ending.NOT_READING)
                return
            self._written_before, self._blocked_since = written, now  # it reads, if slowly
        self.machine.handle_timer(now)
        self._handle_events()


def _earlier(one: float | None, other: float | None) -> float | None:
    """The earlier of two moments, if there are any."""
    if one is None or other is None:
        return other if one is None else one
    return min(one, other)
