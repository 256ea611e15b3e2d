"""What goes wrong with an open store: it is remembered for health checks, and logged once instead of each time.

A full disk fails every group, a hundred times a second. What cannot be read stays unreadable, as far as anybody knows.
"""

import logging
import time
from collections.abc import Callable

log = logging.getLogger(__name__)

REMEMBERED_S = 15.0
"""How long a failure to store counts if nobody sends anything after it. (The test for its end writes less, and may pass
while the disk is still nearly full.)"""

WENT_BACK = (
    "the {} went back to an earlier moment, and may lack what was confirmed since: fetch it from others, "
    "waku-mailserver sync --since TIME"
)

LOG_INTERVAL_S = 60.0
"""Least time between two log lines about the same failure."""


class Failures:
    """The state of one store. Only the event loop's thread uses it. A cause is one line for the operator."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._writing = ""
        self._failed_at = 0.0
        self._logged_at = 0.0
        self._not_stored = 0
        self._indexing = ""
        self._reading = ""
        self._lost = ""
        self._went_back = ""
        self._on_change: Callable[[], None] = lambda: None

    def tell(self, on_change: Callable[[], None]) -> None:
        """Call this, on the event loop, whenever something begins or ceases to be wrong."""
        self._on_change = on_change

    @property
    def writing(self) -> str:
        """Why envelopes are not being stored; "" if they are."""
        return self._lost or (self._writing if self._clock() - self._failed_at < REMEMBERED_S else "")

    @property
    def is_lost(self) -> bool:
        """Whether the store was removed or replaced under us."""
        return bool(self._lost)

    @property
    def damage(self) -> str:
        """What else is wrong with the store, such as a place that could not be read; "" if nothing is."""
        return "; ".join(filter(None, (self._went_back, self._fault)))

    @property
    def _fault(self) -> str:
        return self._reading or self._indexing

    def failed_to_store(self, envelopes: int, cause: str) -> None:
        """A group was not committed."""
        now = self._clock()
        self._not_stored += envelopes
        if cause != self._writing or now - self._logged_at >= LOG_INTERVAL_S:
            self._logged_at = now
            log.error("store write failed envelopes=%d error=%r", self._not_stored, cause)
        before, self._writing, self._failed_at = self.writing, cause, now
        if before != self.writing:
            self._on_change()

    def lost(self, why: str) -> None:
        """The store was removed or replaced; this does not end before a restart."""
        if not self._lost:
            log.error("store lost, nothing is stored until a restart error=%r", why)
            self._lost = why
            self._on_change()

    def stored(self) -> None:
        """A group was committed."""
        if self._writing:
            log.info("store can be written again envelopes=%d", self._not_stored)
            self._writing, self._not_stored = "", 0
            self._on_change()

    def indexed_or(self, cause: str) -> None:
        """Rows got into the index of message ids, or, for this cause, could not."""
        if cause and cause != self._indexing:
            log.error("store indexing failed error=%r", cause)
        before, self._indexing = self._indexing, f"message ids cannot be indexed: {cause}" if cause else ""
        if before != self._indexing:
            self._on_change()

    def failed_to_read(self, cause: str) -> None:
        """Something is damaged and could not be read."""
        before, self._reading = self._reading, f"some of it cannot be read: {cause}"
        if before != self._reading:
            self._on_change()

    def went_back(self, what: str) -> None:
        """The store, or what it is in, lacks what it had; this is said until a restart."""
        self._went_back = WENT_BACK.format(what)
        self._on_change()

    def changed(self) -> None:
        """Something has begun or ceased to be wrong that an engine itself keeps."""
        self._on_change()
