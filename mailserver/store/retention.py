"""What to delete next: by age, by number, by size. This is arithmetic: nothing is read or deleted here.

Age counts from reception, by our clock: nobody can make us keep or delete anything by what an envelope claims.
"""

import math
from dataclasses import dataclass
from typing import NamedTuple

from mailserver.units import SECONDS_PER_DAY

BATCH_ROWS = 250
"""Most envelopes that are deleted in one transaction. Commits wait for it: 6 ms in a store of a million envelopes, and
twice that when SQLite adds a checkpoint."""

BATCH_BYTES = 2 * 1024 * 1024
"""A batch ends with the envelope that reaches this: SQLite reads large envelopes to free their pages."""

END_OF_TIME = 2**62
"""After every `received`."""


class Usage(NamedTuple):
    """What a store holds. `bytes` is what it takes on disk, without free space that it will use again."""

    envelopes: int
    bytes: int


class Surplus(NamedTuple):
    """What is beyond a limit: the oldest envelopes received before `before` (Unix seconds), at most so many.

    `of`: how many there were in all, if that decides how many are too many. If other mailservers have deleted some by
    then, as many fewer may go.
    """

    before: int
    envelopes: int
    of: int = 0


@dataclass(frozen=True, slots=True)
class TimeRetention:
    """Keeps envelopes that were received in the last `days` days."""

    days: float

    def surplus(self, usage: Usage, now: float) -> Surplus | None:
        """The older envelopes; None if there can be none. A second that is not over yet is kept."""
        before = math.floor(now - self.days * SECONDS_PER_DAY)
        return Surplus(before, usage.envelopes) if before > 0 and usage.envelopes else None


@dataclass(frozen=True, slots=True)
class CapacityRetention:
    """Keeps so many envelopes at most."""

    envelopes: int

    def surplus(self, usage: Usage, now: float) -> Surplus | None:
        """The envelopes beyond that number; None if there are none."""
        if usage.envelopes <= self.envelopes:
            return None
        return Surplus(END_OF_TIME, usage.envelopes - self.envelopes, usage.envelopes)


@dataclass(frozen=True, slots=True)
class SizeRetention:
    """Keeps so many bytes on disk at most."""

    bytes: int

    def surplus(self, usage: Usage, now: float) -> Surplus | None:
        """An estimate of the envelopes beyond that size, more than a batch: only deleting shows what they free."""
        if usage.bytes <= self.bytes or not usage.envelopes:
            return None
        share = 1 - self.bytes / usage.bytes
        surplus = max(BATCH_ROWS + 1, math.ceil(share * usage.envelopes))
        return Surplus(END_OF_TIME, surplus, usage.envelopes)


Retention = TimeRetention | CapacityRetention | SizeRetention
