"""States, as opposed to events. `collector` gives them to Prometheus."""

from collections.abc import Mapping
from dataclasses import dataclass

from mailserver.metrics.labels import Check, ClientFamily, Direction


@dataclass(frozen=True, slots=True)
class CatchupFigures:
    """How far catching up from one source has come. `wrong`: dropped envelopes by reason."""

    source: str
    left_s: int
    pages: int
    fetched: int
    stored: int
    wrong: Mapping[str, int]
    is_set_aside: bool


@dataclass(frozen=True, slots=True)
class StoreFigures:
    """What the store holds. `bytes`: without free space; `file_bytes`, `wal_bytes`: the lengths of its file and log.

    `oldest`: when the oldest envelope was received, Unix seconds, None in an empty store.
    """

    envelopes: int
    bytes: int
    file_bytes: int
    wal_bytes: int
    oldest: int | None


@dataclass(frozen=True, slots=True)
class DatabaseFigures:
    """The PostgreSQL that the store is in, at one moment.

    `connections`, `max_connections`: those of all its users, and how many it takes. `lock_waits`: how many of ours and
    of other mailservers wait for a lock of the store's. `notification_queue`: how full the server's queue of
    notifications is, from 0 to 1. `partitions`: days that have a partition. `others_waiting`: envelopes of other
    mailservers that were heard of and not read yet.
    """

    connections: int
    max_connections: int
    lock_waits: int
    notification_queue: float
    partitions: int
    others_waiting: int


@dataclass(frozen=True, slots=True)
class DiskFigures:
    """The file system of the store, in bytes; `free` is what we may use."""

    free: int
    size: int


@dataclass(frozen=True, slots=True)
class CompactionFigures:
    """How the nightly compaction goes. Times are Unix seconds, None for never.

    `finished_at`, `exit_code`, `rows`, `seconds`: of the last run; the first two are unknown while it is at work, and
    after it was killed. `succeeded_at`: the end of the last run that ended well. `verified_at`: when a run last found
    the archive equal to the store. `archive_faults`, `lost_rows`, `quarantined_rows`, `miscounted_rows`: see
    `handoff.last_run.ArchiveFigures`.
    """

    finished_at: float | None
    exit_code: int | None
    rows: int
    seconds: float
    succeeded_at: float | None
    verified_at: float | None
    is_running: bool
    has_died: bool
    archive_faults: int = 0
    lost_rows: int = 0
    quarantined_rows: int = 0
    miscounted_rows: int = 0


@dataclass(frozen=True, slots=True)
class NodeFigures:
    """The running node, at one moment. Mappings have every member of their enum.

    `handshakes`: connections without a Hello yet. `writer_envelopes`, `writer_bytes`: what waits for the disk.
    `relay_envelopes`, `relay_bytes`: what is kept for peers. `requests_waiting`: history requests that wait for their
    turn. `refused`: refused connections, by reason; `exceeded`: packets and envelopes over a rate limit, by limit.
    """

    peers: Mapping[tuple[Direction, ClientFamily], int]
    max_peers: int
    handshakes: int
    network_bytes: Mapping[Direction, int]
    writer_envelopes: int
    writer_bytes: int
    relay_envelopes: int
    relay_bytes: int
    requests_waiting: int
    refused: Mapping[str, int]
    exceeded: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Figures:
    """The state at one moment, as far as it is known.

    `problems`: what is wrong; `is_ready`: whether the mailserver can do its work all the same. `memory_limit`: how many
    bytes the process may take, None if there is no limit.
    """

    node: NodeFigures
    store: StoreFigures | None = None
    database: DatabaseFigures | None = None
    disk: DiskFigures | None = None
    compaction: CompactionFigures | None = None
    memory_limit: int | None = None
    problems: frozenset[Check] = frozenset()
    is_ready: bool = True
    sync: tuple[CatchupFigures, ...] = ()
