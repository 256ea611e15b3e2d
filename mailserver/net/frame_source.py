"""Reads one peer's frames, so that all connections share the processor and the memory for it.

A connection that opens many frames takes turns with the others (`limits.loop_scheduler`). A large frame is read once
there is memory for it (`limits.frame_memory`); until then it waits in the peer's own TCP window.
"""

import asyncio
from collections.abc import Sequence

from mailserver.errors import DisconnectReason
from mailserver.limits.frame_bounds import FrameBounds
from mailserver.limits.frame_memory import FRAME_TIMEOUT_S, FrameReservation
from mailserver.limits.loop_scheduler import FRAMES_AT_ONCE, FREE_FRAMES, HANDSHAKE_FRAMES, WorkBudget
from mailserver.net.link import Link
from mailserver.net.peer_timers import PeerTimers
from mailserver.rlpx.events import Event, MessageReceived
from mailserver.rlpx.moves import SessionState

MEMORY_TIMEOUT_S = 20.0
"""How long a large frame waits for memory: deployed clients give it up after that time."""

LONG_MEMORY_TIMEOUT_S = 300.0
"""How long a message waits for memory that is longer than a stranger may send: ten others may take their full time."""

DECISION_POLL_S = 0.1
"""How often to ask again whether a peer is wanted, while that is undecided."""

FRAMES_TOGETHER = 4 * FRAMES_AT_ONCE
BYTES_TOGETHER = 16 * 1024
"""One read returns about so many frames, or bytes of their messages, at most. Others have their turns in between.
Messages that are acted on together cost little more than one, and take a millisecond or two."""


class FrameSource:
    """Feeds what comes through the pipe to the session, and returns what the session makes of it.

    `last_received_at`: when bytes came last, by the loop's clock. `refused_bytes`: the length of a named peer's packet
    that was too long even for one, or that did not come to its end in time; 0 if there was none.
    """

    def __init__(self, link: Link, timers: PeerTimers, bounds: FrameBounds, *, max_message_bytes: int) -> None:
        """Read nothing yet.

        Args:
            bounds: shared by all connections.
            max_message_bytes: a message that inflates to more is a long one.
        """
        self._link = link
        self._timers = timers
        self._loop = asyncio.get_running_loop()
        self._opening = WorkBudget(bounds.opening, FREE_FRAMES)
        self._counted_frames = 0  # those of the session that have been charged to `_opening`
        self._reservation = FrameReservation(
            bounds.memory,
            max_message_bytes=max_message_bytes,
            on_granted=link.pipe.wake,
            on_late=self._on_late_frame,
        )
        self.last_received_at = self._loop.time()
        self.refused_bytes = 0

    async def read(self) -> list[Event]:
        """Wait for bytes if there are none; return what the session makes of some frames."""
        session = self._link.session
        await self._open_frames()
        while session.is_undecided:
            self._link.flush()  # the peer waits for our part of the key exchange
            if not await self._link.pipe.sleep(DECISION_POLL_S):
                session.receive_eof()
            session.reconsider(self._loop.time(), max_frames=FRAMES_AT_ONCE)
        events = session.events()
        while session.has_more and _may_grow(events):
            await self._open_frames()
            events += session.events()
        return events

    async def make_room(self) -> None:
        """Wait for memory before more of a large frame is read; disconnect if there is none in time."""
        link, reservation = self._link, self._reservation
        if link.closed is not None or reservation.reserve(link.session.frame):
            return
        self._timers.pause()
        await link.pipe.sleep(LONG_MEMORY_TIMEOUT_S if reservation.is_long else MEMORY_TIMEOUT_S)
        self._timers.resume()
        if not reservation.is_granted and link.closed is None:
            link.disconnect(DisconnectReason.REQUESTED, "no memory for a large frame")

    def note_too_long(self, size: int) -> None:
        """The peer has sent a message that is too long even for a named peer: `size` bytes when inflated."""
        self.refused_bytes = size

    def note_unfinished(self) -> None:
        """The peer has ended the connection: note the long packet that was coming. A Go peer gives it up after 20 s."""
        self.refused_bytes = self.refused_bytes or self._reservation.long_bytes_due

    def end(self) -> None:
        """Give the memory back: nothing more is read."""
        self._reservation.close()

    async def _open_frames(self) -> None:
        """Open some of the frames that have come; wait for more if there are none."""
        session = self._link.session
        data = b"" if session.has_more else await self._link.pipe.read()
        if data:
            self.last_received_at = self._loop.time()
        elif not session.has_more:
            if data is not None:
                session.receive_eof()
            return
        opened, self._counted_frames = session.opened_frames - self._counted_frames, session.opened_frames
        work = HANDSHAKE_FRAMES if session.state is SessionState.HANDSHAKE else opened
        await self._opening.take(work, len(data or b""))
        session.receive_data(data or b"", self._loop.time(), max_frames=FRAMES_AT_ONCE)
        self._reservation.release_unless(session.frame)

    def _on_late_frame(self) -> None:
        self.refused_bytes = self._reservation.long_bytes_due
        self._link.disconnect(DisconnectReason.PING_TIMEOUT, f"frame took longer than {FRAME_TIMEOUT_S:g} s")


def _may_grow(events: Sequence[Event]) -> bool:
    """Whether more frames may be opened before these events are acted on. Pings, say, are answered at once."""
    size = 0
    for event in events:
        if not isinstance(event, MessageReceived):
            return False
        size += len(event.payload)
    return len(events) < FRAMES_TOGETHER and size < BYTES_TOGETHER
