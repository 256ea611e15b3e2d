"""What was measured of communities. Times in seconds, sizes in bytes."""

from dataclasses import dataclass


class CommunitiesFailed(Exception):
    """Something else was made, fetched, imported or served than there is."""


@dataclass(frozen=True, slots=True)
class MakingRun:
    """One run that made all history archives in `local[2]`, `seconds` after `start_s`: Spark, and a small community to
    warm it up. `cpu_s` and `peak_bytes` are of JVM and Python workers together."""

    start_s: float
    seconds: float
    cpu_s: float
    peak_bytes: int


@dataclass(frozen=True, slots=True)
class FetchingRun:
    """A member that began with nothing: `fetch_s` until the pieces were on disk, then `import_s` until the messages
    were. `cpu_s`: of its own process, without the torrent process, while it imported. `twice_bytes`: what came a second
    time, also when all was asked for again."""

    fetch_s: float
    import_s: float
    cpu_s: float
    twice_bytes: int


@dataclass(frozen=True, slots=True)
class ServingMemory:
    """Resident memory of `community serve` and of its torrent process, with so many communities.

    `.._bytes`: once all were seeded and announced, `start_s` after the start. `.._peak_bytes`: the most, while each
    published one more week, until all of these were announced, too, `publish_s` later.
    """

    communities: int
    service_bytes: int
    torrents_bytes: int
    service_peak_bytes: int
    torrents_peak_bytes: int
    start_s: float
    publish_s: float


@dataclass(frozen=True, slots=True)
class Communities:
    """A community of so many `messages` in so many `weeks`, its archives `data_bytes` long.

    `index_s`: reading and checking an index of `index_entries`. Of the archives, `fetched_bytes` with
    `fetched_messages` were fetched between two torrent processes on loopback. `serving`: copies of it were served.
    """

    messages: int
    weeks: int
    data_bytes: int
    making: tuple[MakingRun, ...]
    index_entries: int
    index_s: tuple[float, ...]
    fetched_bytes: int
    fetched_messages: int
    fetching: tuple[FetchingRun, ...]
    serving: tuple[ServingMemory, ...] = ()
