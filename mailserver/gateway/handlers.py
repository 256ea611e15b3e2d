"""Our ends of the streams that clients open."""

from collections.abc import Awaitable, Callable
from typing import Protocol

from mailserver.errors import DecodeError
from mailserver.gateway.peer import MakeHandler, Peer
from mailserver.libp2p.ping import Echo
from mailserver.libp2p.streams import StreamId
from mailserver.waku2.frames import FrameReader


class Service(Protocol):
    """Answers the requests of one protocol: one request on each stream, and one answer, or none."""

    max_request_bytes: int

    def answer(self, peer: Peer, request: bytes) -> bytes | Callable[[], Awaitable[bytes]] | None:
        """Answer a request at once, or return what answers it later; None if it gets no answer.

        Raises:
            DecodeError: the request is none. Its stream is reset.
        """


class RequestHandler:
    """Reads a request, and has it answered. A client may open streams in advance, and leave them idle."""

    def __init__(self, peer: Peer, stream: StreamId, service: Service) -> None:
        self._peer = peer
        self._stream = stream
        self._service = service
        self._reader: FrameReader | None = FrameReader(service.max_request_bytes)  # until the request is whole

    def on_data(self, data: bytes) -> None:
        """Take a part of the request; what comes after it is ignored."""
        self._peer.consumed(self._stream, len(data))
        if self._reader is None:
            return
        try:
            request = self._reader.receive_first(data)
            if request is not None:
                self._reader = None
                self._peer.keep(self._stream, 0)
                self._answer(request)
            elif not self._peer.keep(self._stream, self._reader.pending):
                self._peer.reset(self._stream)
        except DecodeError:
            self._peer.reset(self._stream)

    def on_closed(self) -> None:
        """The client has closed its half: nothing more comes. Without a request, there is nothing to answer."""
        if self._reader is not None:
            self._peer.close_write(self._stream)

    def _answer(self, request: bytes) -> None:
        try:
            answer = self._service.answer(self._peer, request)
        except DecodeError:
            raise
        except Exception as error:  # noqa: BLE001 - whatever it is, it costs this request, and no other
            self._peer.failed(self._stream, error)
            return
        if isinstance(answer, bytes):
            self._peer.answer(self._stream, answer)
        elif answer is None:
            self._peer.close_write(self._stream)
        else:
            self._peer.answer_later(self._stream, answer, len(request))


def requests_to(service: Service) -> MakeHandler:
    """Make handlers of streams whose requests this service answers."""

    def make(peer: Peer, stream: StreamId) -> RequestHandler:
        return RequestHandler(peer, stream, service)

    return make


class PingHandler:
    """Sends back what comes (libp2p/specs, "ping"), as long as the client keeps the stream open."""

    def __init__(self, peer: Peer, stream: StreamId) -> None:
        self._peer = peer
        self._stream = stream
        self._echo = Echo()

    def on_data(self, data: bytes) -> None:
        """Send it back, unless the client does not read."""
        self._peer.consumed(self._stream, len(data))
        if not self._peer.may_queue():
            self._peer.reset(self._stream)
        elif answer := self._echo.receive_data(data):
            self._peer.send(self._stream, answer)

    def on_closed(self) -> None:
        """The client has had enough."""
        self._peer.close_write(self._stream)
