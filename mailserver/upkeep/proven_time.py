"""How much time has certainly passed. Pruning by age uses this, so that a wrong clock cannot make envelopes old.

It counts from a moment at which our clock was right, by a clock that nobody sets and that goes on while the machine
sleeps. If our clock is further ahead, either it was stepped, or we were not running for a while. Peers decide which:
once most of what they send agrees with our clock, the clock is believed, and time counts from there. Without peers, old
envelopes are deleted all the same, but later, by as much as the clock has leapt.

The proven moment is kept with the store (`store.interface.TimeRecord`), and so outlives a restart.
"""

import asyncio
import logging
import time
from collections.abc import Callable

from mailserver.errors import StoreError
from mailserver.metrics.registry import Metrics, count_of
from mailserver.store.interface import Store, TimeRecord
from mailserver.waku.acceptance import Verdict

log = logging.getLogger(__name__)

LOOK_INTERVAL_S = 15.0
"""How often to compare our clock with what peers send."""

SAVE_INTERVAL_S = 60.0
"""How much of the time that has passed a kill may lose: envelopes then age that much later."""

MIN_ENVELOPES = 20
"""Fewer envelopes say nothing about our clock: some peers' own clocks are wrong."""

MAX_DRIFT_S = 60.0
"""A clock that moves by more between two looks was stepped: earlier envelopes say nothing about it."""

NOTABLE_S = 3600.0
"""If our clock is further ahead than this, it is logged: the store keeps old envelopes for so much longer."""


class ProvenTime:
    """The time that has certainly passed. Times are Unix seconds, except those of `steady`, which have any origin."""

    def __init__(
        self,
        record: TimeRecord,
        clock: Callable[[], float],
        *,
        metrics: Metrics,
        steady: Callable[[], float] = lambda: time.clock_gettime(time.CLOCK_BOOTTIME),
    ) -> None:
        """Believe our clock until `begin` knows better; `record` is the store's."""
        self._record = record
        self._clock = clock
        self._steady = steady
        self._metrics = metrics
        self._problem: str | None = None
        self._is_told = False
        self._counted = self._counts()
        self._looked_offset = self._proven_offset = self._offset()

    def now(self) -> float:
        """Our clock, or the time that has certainly passed, whichever is earlier."""
        return min(self._clock(), self._proven())

    @property
    def ahead_s(self) -> float:
        """How far our clock is ahead of the time that has certainly passed; below zero if it is behind."""
        return self._offset() - self._proven_offset

    async def begin(self, store: Store) -> None:
        """Continue from the moment in the record; without one, from the last reception that is not in the future.

        Raises:
            StoreError: the store cannot be read.
        """
        proven: int | None = None
        try:
            proven = await self._record.read()
        except StoreError as error:
            log.warning("record of the time started anew cause=%r", str(error))
        if proven is None:
            proven = await store.last_reception(int(self._clock()))
        if proven is not None:  # else the store is empty, and nothing in it is old
            self._proven_offset = proven - self._steady()
        self._tell()

    async def run(self) -> None:
        """Look and save at intervals until cancelled; then save once more."""
        save_at = 0.0
        try:
            while True:
                self.look()
                if self._steady() >= save_at:
                    await self.save()
                    save_at = self._steady() + SAVE_INTERVAL_S
                await asyncio.sleep(LOOK_INTERVAL_S)
        finally:
            self.look()
            await self.save()

    def look(self) -> None:
        """Believe our clock if most of what peers have sent since it was last set agrees with it."""
        agree, contradict = counts = self._counts()  # read first: the next look sees a step that comes after this
        if abs(self._offset() - self._looked_offset) > MAX_DRIFT_S:
            self._counted = counts
        self._looked_offset = self._offset()
        agreeing, contradicting = agree - self._counted[0], contradict - self._counted[1]
        if agreeing + contradicting >= MIN_ENVELOPES:
            self._counted = counts
            if agreeing >= MIN_ENVELOPES and agreeing > contradicting:
                self._proven_offset = self._looked_offset
        self._tell()

    async def save(self) -> None:
        """Write the record. If that fails, it is logged once, until it succeeds."""
        try:
            await self._record.write(max(int(self._proven()), 0))
            self._problem = None
        except StoreError as error:
            if str(error) != self._problem:
                self._problem = str(error)
                log.warning("record of the time not written error=%r", self._problem)

    def _proven(self) -> float:
        return self._proven_offset + self._steady()

    def _offset(self) -> float:
        return self._clock() - self._steady()

    def _counts(self) -> tuple[float, float]:
        """How many envelopes from peers agree with our clock, and how many contradict it."""
        rejected = self._metrics.rejected
        contradict = count_of(rejected[Verdict.VERY_OLD]) + count_of(rejected[Verdict.FROM_THE_FUTURE])
        return count_of(self._metrics.timely), contradict

    def _tell(self) -> None:
        is_ahead = self.ahead_s > NOTABLE_S
        if is_ahead and not self._is_told:
            log.warning(
                "clock is ahead of the time that has passed, pruning goes by the latter seconds=%.0f", self.ahead_s
            )
        elif self._is_told and not is_ahead:
            log.info("clock is believed, pruning goes by it")
        self._is_told = is_ahead
