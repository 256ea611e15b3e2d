"""Whether the peer of an open session is still there: when to ping it, and when to give it up. Monotonic seconds."""

from enum import Enum, auto

PING_INTERVAL_S = 15.0
IDLE_TIMEOUT_S = 30.0
"""A peer that says nothing for this long, not even Pong, is gone."""

PROBE_TIMEOUT_S = 3.0
"""How long a peer has to answer when there is reason to think that it is gone. Shorter than the handshake: who waits
for the answer, because it is the same peer on a new line, is let in by then."""

SEEN_S = 3.0
"""So long after it has opened a session, or answered a probe, a peer is there without another one: of two nodes that
dial each other at once, neither would answer while it waits for the other."""


class Due(Enum):
    """What it is time for."""

    NOTHING = auto()
    PING = auto()
    GIVE_UP = auto()


class Liveness:
    """Of one session, from the moment when it opened. `patience_s` is how much silence is borne at present."""

    def __init__(self, now: float, *, is_reading: bool) -> None:
        self.patience_s = IDLE_TIMEOUT_S
        self._deadline = now + IDLE_TIMEOUT_S
        self._next_ping = now + PING_INTERVAL_S
        self._seen_at = now  # when it was there for certain: it has opened the session, or answered a probe
        self._is_probed = False  # and has not answered yet
        self._is_reading = is_reading

    def heard(self, now: float) -> None:
        """Something has come."""
        if self._is_probed:
            self._is_probed, self._seen_at = False, now
        self.patience_s = IDLE_TIMEOUT_S
        self._deadline = now + IDLE_TIMEOUT_S

    def pause_reading(self) -> None:
        """Nothing is read: the silence is ours."""
        self._is_reading = False

    def resume_reading(self, now: float) -> None:
        """From now on, silence counts again."""
        self._is_reading = True
        self._deadline = now + self.patience_s

    def next_timer(self) -> float:
        """When something is due, if nothing comes."""
        return min(self._deadline, self._next_ping) if self._is_reading else self._next_ping

    def due(self, now: float) -> Due:
        """What it is time for; that a ping goes out is taken for granted."""
        if self._is_reading and now >= self._deadline:
            return Due.GIVE_UP
        if now >= self._next_ping:
            self._next_ping = now + PING_INTERVAL_S
            return Due.PING
        return Due.NOTHING

    def is_seen(self, now: float) -> bool:
        """Whether the peer has opened the session, or answered a probe, within the last SEEN_S."""
        return not self._is_probed and now < self._seen_at + SEEN_S

    def probe(self, now: float) -> Due:
        """Give it PROBE_TIMEOUT_S to say anything; a ping is due, unless one is on its way for that.

        While nothing is read, that time does not begin.
        """
        if self._is_probed:
            return Due.NOTHING
        self._is_probed = True
        self._next_ping = now + PING_INTERVAL_S
        self.patience_s = PROBE_TIMEOUT_S
        self._deadline = min(self._deadline, now + PROBE_TIMEOUT_S)
        return Due.PING
