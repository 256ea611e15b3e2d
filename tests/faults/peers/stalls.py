"""Stalls of the daemon's event loop: how long nobody got a turn, and how many such times are too many.

The daemon runs as `watched`, whose timer is due every BEAT_S. How late it comes is how long the loop was held up. Part
of that may be the loop's thread waiting for a processor that others had, which is the machine's doing; both are told,
and what is judged is the rest. Single long ones remain: the thread that had Python's lock waited for a processor, or
for the disk. What is done to each request or packet is not single, so some are allowed and no more.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.faults.report import Figure

BEAT_S = 0.005

NOTED_S = 0.005
"""Less is the timer's own: it goes by milliseconds."""

STALL_S = 0.06
"""What nothing that is done for a peer may take at a time, what happened to come at the same moment included. With 17
processes that want two processors, the third longest stall of each attack was of 42 ms at most."""

SINGLE_STALLS = 3
SINGLE_STALLS_PER_S = 0.1
"""So many are nobody's fault. One for each request of one honest client would be five a second."""


@dataclass(frozen=True, slots=True)
class Beat:
    """A beat that came late.

    Args:
        at: when, by `perf_counter`.
        late_s: how much; `waited_s` of it, the loop's thread waited for a processor.
    """

    at: float
    late_s: float
    waited_s: float

    @property
    def own_s(self) -> float:
        """How long the loop was held up otherwise."""
        return self.late_s - self.waited_s


def read_beats(file: Path) -> list[Beat]:
    """What a watched daemon has written when it ended.

    Raises:
        FileNotFoundError: it did not come so far.
    """
    return [Beat(**json.loads(line)) for line in file.read_text(encoding="ascii").splitlines()]


def stall_figures(beats: Sequence[Beat]) -> dict[str, Figure]:
    """For the report: the longest stall and how many were too long, as the clock says, and by the loop's own doing."""
    return {
        "longest_stall_ms": 1000 * max((beat.late_s for beat in beats), default=0.0),
        "longest_stall_own_ms": 1000 * max((beat.own_s for beat in beats), default=0.0),
        "stalls": sum(beat.late_s > STALL_S for beat in beats),
        "stalls_own": sum(beat.own_s > STALL_S for beat in beats),
    }


def stalled(beats: Sequence[Beat], seconds: float) -> Iterator[str]:
    """Say whether the loop was held up more often within `seconds` than by chance."""
    long = sorted((beat.own_s for beat in beats if beat.own_s > STALL_S), reverse=True)
    allowed = SINGLE_STALLS + SINGLE_STALLS_PER_S * seconds
    if len(long) > allowed:
        yield (
            f"the event loop was held up for more than {1000 * STALL_S:.0f} ms {len(long)} times in {seconds:.0f} s, "
            f"half of them for {1000 * long[len(long) // 2]:.0f} ms or longer"
        )
