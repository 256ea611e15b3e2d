"""What was measured of answers to history requests."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class HistoryRun:
    """One run: of several clients the slowest's times, and together what they found on how many pages.

    `peak_bytes` is the highest since the daemon started, not of this run alone.
    """

    first_s: float
    done_s: float
    found: int
    pages: int
    daemon_cpu_s: float | None
    peak_bytes: int | None


@dataclass(frozen=True, slots=True)
class History:
    """Several runs of one question."""

    question: str
    clients: int
    runs: tuple[HistoryRun, ...]
