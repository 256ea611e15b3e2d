"""Whether the peer of an open session is still there: when to ping it, and when to give it up.

Times are monotonic seconds.
"""

from enum import Enum, auto

PING_INTERVAL_S = 15.0
IDLE_TIMEOUT_S = 30.0
"""A peer that sends nothing for this long, not even Pong, is gone."""

PROBE_TIMEOUT_S = 3.0
"""How long a peer has to answer a probe, which is sent when there is reason to think that it is gone. The handshake may
take longer: so a peer that comes back on a new connection can wait in it until its old connection is given up."""

SEEN_RECENTLY_S = 3.0
"""For this long after a peer has opened the session or answered a probe, it counts as there without another probe. If
two nodes that dial each other at once both probed, each would wait for the other, and neither would answer."""


class Action(Enum):
    """What the session has to do."""

    NOTHING = auto()
    PING = auto()
    GIVE_UP = auto()


class Liveness:
    """The timers of one open session. `timeout_s`: how long the peer may be silent at present."""

    def __init__(self, now: float, *, is_reading: bool) -> None:
        """Start when the session opens."""
        self.timeout_s = IDLE_TIMEOUT_S
        self._deadline = now + IDLE_TIMEOUT_S
        self._next_ping = now + PING_INTERVAL_S
        self._seen_at = now  # when the peer last opened a session or answered a probe
        self._is_probed = False  # and has not answered yet
        self._is_reading = is_reading

    def on_data(self, now: float) -> None:
        """Bytes have come from the peer."""
        if self._is_probed:
            self._is_probed, self._seen_at = False, now
        self.timeout_s = IDLE_TIMEOUT_S
        self._deadline = now + IDLE_TIMEOUT_S

    def pause_reading(self) -> None:
        """We stop reading: from now on, silence does not count."""
        self._is_reading = False

    def resume_reading(self, now: float) -> None:
        """We read again: from now on, silence counts."""
        self._is_reading = True
        self._deadline = now + self.timeout_s

    def next_timer(self) -> float:
        """When to call `handle_timer` if nothing comes before."""
        return min(self._deadline, self._next_ping) if self._is_reading else self._next_ping

    def handle_timer(self, now: float) -> Action:
        """Return what it is time for. A caller that is told to ping must do so."""
        if self._is_reading and now >= self._deadline:
            return Action.GIVE_UP
        if now >= self._next_ping:
            self._next_ping = now + PING_INTERVAL_S
            return Action.PING
        return Action.NOTHING

    def was_seen_recently(self, now: float) -> bool:
        """Whether the peer has opened the session or answered a probe within the last SEEN_RECENTLY_S."""
        return not self._is_probed and now < self._seen_at + SEEN_RECENTLY_S

    def probe(self, now: float) -> Action:
        """Give the peer PROBE_TIMEOUT_S to send anything. Ping it, unless the ping of an earlier probe is unanswered.

        While nothing is read, that time does not begin.
        """
        if self._is_probed:
            return Action.NOTHING
        self._is_probed = True
        self._next_ping = now + PING_INTERVAL_S
        self.timeout_s = PROBE_TIMEOUT_S
        self._deadline = min(self._deadline, now + PROBE_TIMEOUT_S)
        return Action.PING
