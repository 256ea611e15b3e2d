"""A session over a socket: what goes out, and how it ended."""

import asyncio
from collections.abc import Iterable

from mailserver.errors import ConnectionLost, DisconnectReason
from mailserver.net.pipe import Pipe
from mailserver.net.sessions import CAPABILITIES, Code
from mailserver.rlpx.events import SessionClosed
from mailserver.rlpx.moves import SessionState
from mailserver.rlpx.session import Session
from mailserver.rlpx.shared_payload import SharedPayload

WRITE_TIMEOUT_S = 20.0
"""How long a full write buffer may take to shrink. Deployed clients use the same limit."""


class Link:
    """A `Session` and the `Pipe` that carries it.

    `closed`: how the session ended; None while it has not, or while packets that came before the end are acted on.
    """

    def __init__(self, session: Session, pipe: Pipe) -> None:
        self.session = session
        self.pipe = pipe
        self.closed: SessionClosed | None = None
        self._loop = asyncio.get_running_loop()
        self._will_flush = False

    @property
    def is_open(self) -> bool:
        """Whether the handshake is over and the session has not ended."""
        return self.session.state is SessionState.OPEN

    def send_all(self, packets: Iterable[tuple[Code, bytes | SharedPayload]]) -> None:
        """Queue packets: each a code and a payload.

        Raises:
            ConnectionLost: the session is not open.
            LocalProtocolError: the peer does not share the capability of a code.
        """
        session = self.session
        if session.state is not SessionState.OPEN:
            raise self.lost()
        for code, payload in packets:
            session.send(CAPABILITIES[type(code)], code, payload)
        if not self._will_flush:  # packets queued in one turn of the loop go out together
            self._will_flush = True
            self._loop.call_soon(self.flush)

    def flush(self) -> None:
        """Write what the session has queued."""
        self._will_flush = False
        data = self.session.data_to_send()
        if data:
            self.pipe.write(data)

    async def drain(self) -> None:
        """Write what is queued; if the write buffer is full, wait until the peer has read enough of it.

        Raises:
            ConnectionLost: the peer read nothing for WRITE_TIMEOUT_S, or the session is not open.
        """
        self.flush()
        if self.pipe.is_full:
            try:
                async with asyncio.timeout(WRITE_TIMEOUT_S):
                    await self.pipe.drain()
            except TimeoutError:
                self.abort(f"peer read nothing for {WRITE_TIMEOUT_S:g} s")
        if not self.is_open:
            raise self.lost()

    def disconnect(self, reason: DisconnectReason, cause: str) -> None:
        """End the session and tell the peer why."""
        self.session.disconnect(reason, cause)
        self.settle()
        self.pipe.wake()

    def abort(self, cause: str) -> None:
        """End the session and close the socket at once; unsent data is dropped."""
        self.session.disconnect(DisconnectReason.TCP_ERROR, cause)
        self._note_end()
        self.pipe.abort()
        self.pipe.wake()

    def close(self) -> None:
        """Close the socket; the session ends, if it has not."""
        self.session.receive_eof()
        self._note_end()
        self.pipe.abort()

    def settle(self) -> None:
        """Note whether our side or a timer has ended the session, and write what it has queued."""
        self._note_end()
        self.flush()

    def lost(self) -> ConnectionLost:
        """The error for a caller that needs an open session."""
        if self.closed is None:  # the end has been read, but not yet acted on
            return ConnectionLost(None, "connection is ending")
        return ConnectionLost(self.closed.reason, self.closed.cause)

    def _note_end(self) -> None:
        for event in self.session.events():
            if isinstance(event, SessionClosed):
                self.closed = event
