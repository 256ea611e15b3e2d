"""The timers that run against one peer: those of its session, that of its Status, and that of a probe.

While we read nothing for a reason of our own, no time counts against the peer.
"""

import asyncio
from asyncio import TimerHandle

from mailserver.errors import RemoteProtocolError
from mailserver.net.due import call_when_due
from mailserver.net.link import Link
from mailserver.rlpx.liveness import PROBE_TIMEOUT_S
from mailserver.waku.peer import PeerState, WakuPeer


class PeerTimers:
    """Runs the timers of a session and of a `WakuPeer` on the event loop."""

    def __init__(self, link: Link, peer: WakuPeer) -> None:
        """Start nothing yet: `start` does."""
        self._link = link
        self._peer = peer
        self._loop = asyncio.get_running_loop()
        self._timer: TimerHandle | None = None
        self._stuck_timer: TimerHandle | None = None

    def start(self) -> None:
        """Set the timer for whatever is due first; again after anything that may bring that forward."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        due = self._link.session.next_timer()
        if due is None:
            return
        status_due = self._peer.next_timer()
        self._timer = call_when_due(due if status_due is None else min(due, status_due), self._on_timer)

    def stop(self) -> None:
        """Cancel everything. The handles go, too: with them, this would stay in memory until cycles are collected."""
        for timer in (self._timer, self._stuck_timer):
            if timer is not None:
                timer.cancel()
        self._timer = self._stuck_timer = None

    def pause(self) -> None:
        """We stop reading for a reason of our own: neither silence nor a missing Status counts against the peer."""
        self._link.session.pause_reading()
        self._peer.pause_reading(self._loop.time())

    def resume(self) -> None:
        """We read again."""
        now = self._loop.time()
        self._link.session.resume_reading(now)
        if self._peer.state is PeerState.AWAIT_STATUS:
            self._peer.resume_reading(now)
            self.start()

    def pause_idle_timer(self) -> None:
        """We stop reading because of what the peer does: its silence does not count, but Status is due as before."""
        self._link.session.pause_reading()

    def resume_idle_timer(self) -> None:
        """We read again after `pause_idle_timer`."""
        self._link.session.resume_reading(self._loop.time())

    def probe(self) -> bool:
        """Whether the peer has just shown that it is there. If not, it does within PROBE_TIMEOUT_S, or is dropped."""
        link = self._link
        is_there = link.session.probe(self._loop.time())
        link.flush()
        self.start()
        if not is_there and link.pipe.is_full and self._stuck_timer is None:
            # We do not read from a peer that does not read, so its silence says nothing.
            self._stuck_timer = self._loop.call_later(PROBE_TIMEOUT_S, self._end_if_stuck, link.pipe.written_bytes)
        return is_there

    def _end_if_stuck(self, written_bytes: int) -> None:
        self._stuck_timer = None
        if self._link.pipe.written_bytes == written_bytes:
            self._link.abort(f"peer read nothing for {PROBE_TIMEOUT_S:g} s")

    def _on_timer(self) -> None:
        # The session's deadline moves with every read. The loop's timer is set anew only when it fires.
        link, now = self._link, self._loop.time()
        self._timer = None
        link.session.handle_timer(now)
        try:
            self._peer.handle_timer(now)
        except RemoteProtocolError as error:
            link.session.disconnect(error.reason, error.cause)
        link.settle()
        if link.closed is not None:
            link.pipe.wake()
        self.start()
