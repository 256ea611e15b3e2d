"""What to delete next: by age, by number, by size. Values and arithmetic alone: nothing is read or deleted here.

Age is by reception, our clock: nobody can make us keep or delete anything by what an envelope claims.
"""

import math
from dataclasses import dataclass
from typing import NamedTuple

from mailserver.units import SECONDS_PER_DAY

BATCH_ROWS = 250
"""Most envelopes that are deleted in one transaction. Commits wait for it: 6 ms in a store of a million, and twice
that when SQLite takes it for a checkpoint."""

BATCH_BYTES = 2 * 1024 * 1024
"""A batch ends with the envelope that reaches this: SQLite reads large ones to free their pages."""

END_OF_TIME = 2**62
"""After every `received`."""


class Usage(NamedTuple):
    """What a store holds. `bytes` is what its pages in use take on disk; free ones are left out."""

    envelopes: int
    bytes: int


class Surplus(NamedTuple):
    """What is too much: of the envelopes received before `before`, Unix seconds, the oldest, so many at most."""

    before: int
    envelopes: int


@dataclass(frozen=True, slots=True)
class TimeRetention:
    """Keeps what was received in the last `days` days."""

    days: float

    def surplus(self, usage: Usage, now: float) -> Surplus | None:
        """What is older; None if nothing can be. A second that is not over yet counts as kept."""
        before = math.floor(now - self.days * SECONDS_PER_DAY)
        return Surplus(before, usage.envelopes) if before > 0 and usage.envelopes else None


@dataclass(frozen=True, slots=True)
class CapacityRetention:
    """Keeps so many envelopes."""

    envelopes: int

    def surplus(self, usage: Usage, now: float) -> Surplus | None:
        """What is beyond that; None if nothing is."""
        return Surplus(END_OF_TIME, usage.envelopes - self.envelopes) if usage.envelopes > self.envelopes else None


@dataclass(frozen=True, slots=True)
class SizeRetention:
    """Keeps so many bytes on disk."""

    bytes: int

    def surplus(self, usage: Usage, now: float) -> Surplus | None:
        """About what is beyond that, and more than a batch: only what comes free says whether it was enough."""
        if usage.bytes <= self.bytes or not usage.envelopes:
            return None
        share = 1 - self.bytes / usage.bytes
        return Surplus(END_OF_TIME, max(BATCH_ROWS + 1, math.ceil(share * usage.envelopes)))


Retention = TimeRetention | CapacityRetention | SizeRetention
