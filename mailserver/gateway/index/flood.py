"""When the index may wait: while so much arrives in the store that indexing it would delay its pushes.

The thread that indexes needs Python's lock for most of its work, as everything else here does. What was put off is
indexed once less arrives, or as soon as somebody asks for messages; that query waits for it.
"""

from mailserver.store.message_ids import Arrival

FLOOD_PER_S = 2000.0
"""So many envelopes a second are a flood. To index fewer takes a thirtieth of a processor at most."""

LOOK_S = 0.5
"""Between two looks at the store that are compared, at least: they tell how many arrive in a second."""

MAX_PUT_OFF = 50_000
"""How many envelopes may wait. The first query after a long time waits until they are indexed, at 10 to 15 us each. It
is half of what makes a query be refused (`follower.MAX_BEHIND`), so none is refused for what was put off."""

WANTED_S = 120.0
"""After somebody has asked for messages, nothing is put off for so long: more will ask."""


class Flood:
    """Tells whether the index may wait. Times are monotonic seconds."""

    def __init__(self) -> None:
        self._last: Arrival | None = None  # where the store ended at the look before
        self._looked_at = 0.0
        self._wanted_until = 0.0
        self._is_on = False

    def look(self, last: Arrival, now: float) -> None:
        """The store ends here now. The first look tells nothing: what is there may be old."""
        passed_s = now - self._looked_at
        if self._last is None:
            self._last, self._looked_at = last, now
        elif passed_s >= LOOK_S:
            self._is_on = last - self._last >= FLOOD_PER_S * passed_s
            self._last, self._looked_at = last, now

    def wanted(self, now: float) -> None:
        """Somebody asks for messages."""
        self._wanted_until = now + WANTED_S

    def may_put_off(self, behind: int, now: float) -> bool:
        """Whether so many envelopes may stay out of the index for now."""
        return self._is_on and behind <= MAX_PUT_OFF and now >= self._wanted_until
