"""What was measured. Times in seconds, sizes in bytes; None where the mailserver's process is not ours to look at."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from statistics import median

from bench.communities_results import Communities
from bench.gateway_results import GatewayResults
from bench.history_results import History
from bench.postgres_results import PostgresComparison


def percentile(values: Iterable[float], share: float) -> float | None:
    """The least value that such a share of them does not exceed; None if there are none."""
    ordered = sorted(values)
    return ordered[max(math.ceil(len(ordered) * share), 1) - 1] if ordered else None


def median_of(values: Iterable[float | None]) -> float | None:
    """The median of what is known."""
    known = [value for value in values if value is not None]
    return median(known) if known else None


@dataclass(frozen=True, slots=True)
class IngestRun:
    """One run: `seconds` from the first packet sent to the last one confirmed."""

    seconds: float
    client_cpu_s: float
    daemon_cpu_s: float | None
    peak_bytes: int | None


@dataclass(frozen=True, slots=True)
class Ingest:
    """Several runs of one kind, each of `envelopes`."""

    connections: int
    per_packet: int
    envelopes: int
    runs: tuple[IngestRun, ...]

    def rates(self) -> list[float]:
        """Envelopes per second of each run, slowest first."""
        return sorted(self.envelopes / run.seconds for run in self.runs)


@dataclass(frozen=True, slots=True)
class BusyRun:
    """One run: `confirmed` envelopes were taken in within `seconds`, and beside that so many answers given.

    `first_s` and `done_s`: of each answer, until its first packet and its completion. `found`: by all of them together.
    """

    seconds: float
    confirmed: int
    first_s: tuple[float, ...]
    done_s: tuple[float, ...]
    found: int
    daemon_cpu_s: float | None
    peak_bytes: int | None


@dataclass(frozen=True, slots=True)
class Busy:
    """Several runs of one question, each on a store that began with so many `envelopes`, None if it is not ours, while
    `rate` more were offered in a second."""

    question: str
    envelopes: int | None
    rate: float
    runs: tuple[BusyRun, ...]


@dataclass(frozen=True, slots=True)
class RelayRun:
    """One run: `seconds` from the first packet sent until the last peer had the last envelope.

    `confirmed_s`: until the last packet was confirmed. CPU and the highest memory are of that time; what it takes to
    judge and store is part of it. `median_s` and `last_s`: of single envelopes, until half of the peers that want it
    had it, and all.
    """

    deliveries: int
    seconds: float
    confirmed_s: float
    receivers_cpu_s: float
    daemon_cpu_s: float | None
    peak_bytes: int | None
    median_s: tuple[float, ...]
    last_s: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Relay:
    """Several runs of one kind, each of `envelopes` to `peers` that want everything, or `interest` topics each."""

    interest: int | None
    peers: int
    envelopes: int
    runs: tuple[RelayRun, ...]

    def rates(self) -> list[float]:
        """Deliveries per second of each run, slowest first."""
        return sorted(run.deliveries / run.seconds for run in self.runs)


@dataclass(frozen=True, slots=True)
class HandshakesRun:
    """One run: `seconds` from the first peer that dials until the last has the mailserver's Status."""

    seconds: float
    dialers_cpu_s: float
    daemon_cpu_s: float | None
    peak_bytes: int | None


@dataclass(frozen=True, slots=True)
class Handshakes:
    """Several runs, each of so many `handshakes`, as many at a time as there are `dialers`, in so many processes."""

    handshakes: int
    dialers: int
    processes: int
    runs: tuple[HandshakesRun, ...]

    def rates(self) -> list[float]:
        """Handshakes per second of each run, slowest first."""
        return sorted(self.handshakes / run.seconds for run in self.runs)


@dataclass(frozen=True, slots=True)
class IdleRun:
    """One run: `seconds` and `daemon_cpu_s` until all were connected, then `idle_s` and `idle_cpu_s`.

    `before_bytes` and `after_bytes`: the daemon's memory with nobody connected, and after they have been idle.
    """

    seconds: float
    daemon_cpu_s: float
    idle_s: float
    idle_cpu_s: float
    before_bytes: int
    after_bytes: int


@dataclass(frozen=True, slots=True)
class Idle:
    """Several runs, each of so many idle connections."""

    connections: int
    runs: tuple[IdleRun, ...]

    def bytes_each(self) -> list[float]:
        """What one connection takes, by each run, least first."""
        return sorted((run.after_bytes - run.before_bytes) / self.connections for run in self.runs)


@dataclass(frozen=True, slots=True)
class FloodPhase:
    """Some time of one daemon. Times of answers and confirmations are all those of the honest client.

    `flood`: envelopes of the flooders that were confirmed; `disconnects`: how often a flooder lost its connection.
    """

    name: str
    seconds: float
    flood: int
    disconnects: int
    daemon_cpu_s: float
    peak_bytes: int
    answers_s: tuple[float, ...]
    confirmations_s: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Flood:
    """What one kind of flood did. `offered` and `allowed`: envelopes a second of all flooders together. They are slowed
    for `tolerance_s`, None: for ever, and then disconnected."""

    peers: int
    per_packet: int
    offered: float
    allowed: float
    tolerance_s: float | None
    phases: tuple[FloodPhase, ...]


@dataclass(frozen=True, slots=True)
class StoreFacts:
    """The store that was asked, with what was created on so many days. `fill_s` is None if it was there; `start_s` is
    until listening, each time, and `start_cpu_s` the CPU that the daemon used for that."""

    envelopes: int
    days: int
    disk_bytes: int
    fill_s: float | None
    start_s: tuple[float, ...]
    start_cpu_s: tuple[float, ...]

    def disk_bytes_per_million(self) -> int:
        """What a million envelopes take on disk."""
        return self.disk_bytes * 1_000_000 // self.envelopes


@dataclass(frozen=True, slots=True)
class StoreHistory:
    """What was asked of one store. `store` is None if it is not ours to look at."""

    store: StoreFacts | None
    questions: tuple[History, ...]


@dataclass(frozen=True, slots=True)
class ArchiveHistory:
    """What was asked of an archive, which takes `file_bytes`, by way of a daemon whose store has nothing of it.

    `warm`: of one daemon; `cold`: of a new one for each run. `alone_s` and `beside_s`: answers for what is in the
    store, while nobody and while so many `readers` ask the archive. `peak_bytes` is the warm daemon's highest memory,
    `without_bytes` that of one that does not read the archive and had the same in its store.
    """

    envelopes: int
    days: int
    file_bytes: int
    warm: tuple[History, ...]
    cold: tuple[History, ...]
    readers: int
    alone_s: tuple[float, ...]
    beside_s: tuple[float, ...]
    peak_bytes: int
    without_bytes: int


@dataclass(frozen=True, slots=True)
class SyncRun:
    """One comparison of two stores: how many messages went each way, the bytes of all, and how long both sides took;
    `responding_s`: the one that was asked."""

    trips: int
    sent_bytes: int
    seconds: float
    responding_s: float


@dataclass(frozen=True, slots=True)
class FetchRun:
    """How long an empty mailserver took to fetch so many envelopes from another, and the CPU of both."""

    envelopes: int
    seconds: float
    own_cpu_s: float
    asked_cpu_s: float


@dataclass(frozen=True, slots=True)
class Sync:
    """Comparisons of two stores with so many envelopes of so many days, by what differs; and how long it takes to fetch
    all of one, by how that is done."""

    envelopes: int
    days: int
    cases: dict[str, tuple[SyncRun, ...]]
    fetches: dict[str, FetchRun]


@dataclass(frozen=True, slots=True)
class CompactionRun:
    """One compaction in `local[2]`. `start_s`: Spark, and a store of few rows to warm it up; `seconds`: after that.

    `cpu_s` and `peak_bytes` are of JVM and Python workers together; the peaks of each, which may not coincide.
    `topic_rows` of one topic were read back in `spark_read_s` and `duckdb_read_s`. `night_rows` of the last UTC day
    were archived in `night_s`, as on each night but the first: into an archive that had all days before.
    """

    start_s: float
    seconds: float
    cpu_s: float
    peak_bytes: int
    files: int
    file_bytes: int
    envelope_bytes: int
    topic_rows: int
    spark_read_s: float
    duckdb_read_s: float
    night_rows: int
    night_s: float


class CompactionFailed(Exception):
    """The process that compacts has ended otherwise than it should."""


@dataclass(frozen=True, slots=True)
class Compaction:
    """The compaction of a store with envelopes of so many days."""

    days: int
    partition_by: str
    envelopes: int
    runs: tuple[CompactionRun, ...]


@dataclass(frozen=True, slots=True)
class PlainExport:
    """The same rows written by one process with pyarrow, for comparison."""

    days: int
    envelopes: int
    seconds: float
    file_bytes: int
    store_bytes: int


@dataclass(frozen=True, slots=True)
class Environment:
    """Where and how it was measured. `load` is the 1-minute load average before and after; `mailserver` "ours", or the
    enode of another."""

    measured_at: str
    python: str
    sqlite: str
    cpus: int
    load: tuple[float, float]
    arguments: tuple[str, ...]
    mailserver: str = "ours"


@dataclass(frozen=True, slots=True)
class Results:
    """Everything."""

    environment: Environment
    ingest: tuple[Ingest, ...]
    histories: tuple[StoreHistory, ...] = ()
    compactions: tuple[Compaction, ...] = ()
    plain_exports: tuple[PlainExport, ...] = ()
    relays: tuple[Relay, ...] = ()
    floods: tuple[Flood, ...] = ()
    handshakes: tuple[Handshakes, ...] = ()
    idle: tuple[Idle, ...] = ()
    busy: tuple[Busy, ...] = ()
    archives: tuple[ArchiveHistory, ...] = ()
    syncs: tuple[Sync, ...] = ()
    gateways: tuple[GatewayResults, ...] = ()
    communities: tuple[Communities, ...] = ()
    postgres: PostgresComparison | None = None
