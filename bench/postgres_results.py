"""What was measured of a store in PostgreSQL, beside one in a file, in the same run."""

from dataclasses import dataclass

from bench.history_results import History


@dataclass(frozen=True, slots=True)
class BothIngestRun:
    """One run: `seconds` from the first packet sent to the last one confirmed. CPU of all mailservers, and of
    PostgreSQL; 0 where there is none."""

    seconds: float
    daemons_cpu_s: float
    server_cpu_s: float
    peak_bytes: int


@dataclass(frozen=True, slots=True)
class BothIngest:
    """Several runs of one kind, each of `envelopes` in packets of `per_packet` on so many connections in all."""

    name: str
    connections: int
    per_packet: int
    envelopes: int
    runs: tuple[BothIngestRun, ...]

    def rates(self) -> list[float]:
        """Envelopes per second of each run, slowest first."""
        return sorted(self.envelopes / run.seconds for run in self.runs)


@dataclass(frozen=True, slots=True)
class DayRetention:
    """How long it took to delete each of some days of about so many envelopes, and the longest batch of all."""

    name: str
    envelopes: int
    seconds: tuple[float, ...]
    longest_s: float


@dataclass(frozen=True, slots=True)
class StoreSide:
    """One engine: what `envelopes` of so many days take on disk, what was asked, and the CPU that PostgreSQL has used
    for all questions; 0 if there is none. `server_bytes`: the memory of its processes, PSS, after that."""

    name: str
    envelopes: int
    days: int
    disk_bytes: int
    questions: tuple[History, ...]
    server_cpu_s: float
    server_bytes: int


@dataclass(frozen=True, slots=True)
class PostgresComparison:
    """Everything: the file comes first in each pair."""

    server: str
    sides: tuple[StoreSide, ...]
    ingests: tuple[BothIngest, ...]
    retentions: tuple[DayRetention, ...]
