"""A node's figures, and what looks after them, without a node."""

from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

from mailserver.metrics import (
    Check,
    ClientFamily,
    CompactionFigures,
    Direction,
    DiskFigures,
    Figures,
    FiguresCollector,
    Metrics,
    NodeFigures,
    StoreFigures,
    SyncFigures,
)
from mailserver.monitoring.health import Health
from mailserver.monitoring.state import Monitoring
from mailserver.monitoring.watch import Watch
from mailserver.store.envelopes import EnvelopeStore
from mailserver.store.schema import STORE_FILE
from tests.mailservers import Clock

NODE = NodeFigures(
    peers={(direction, family): 0 for direction in Direction for family in ClientFamily}
    | {(Direction.IN, ClientFamily.STATUS_GO): 7, (Direction.OUT, ClientFamily.OURS): 1},
    max_peers=500,
    handshakes=2,
    network_bytes={Direction.IN: 1000, Direction.OUT: 2000},
    writer_envelopes=3,
    writer_bytes=300,
    relay_envelopes=4,
    relay_bytes=400,
    requests_waiting=5,
    refused={"too_fast": 6, "address_full": 0},
    exceeded={"topic": 8},
)
SYNC = SyncFigures("abcd1234@192.0.2.1:30303", 86_400, 3, 250, 200, {"low_pow": 7, "oversize": 1}, False)

FIGURES = Figures(
    node=NODE,
    store=StoreFigures(envelopes=1000, bytes=600_000, file_bytes=700_000, wal_bytes=80_000, oldest=1_795_000_000),
    disk=DiskFigures(free=10**9, size=10**11),
    compaction=CompactionFigures(
        finished_at=1_795_200_000.5,
        exit_code=1,
        rows=12,
        seconds=34.5,
        succeeded_at=1_795_100_000.0,
        verified_at=1_795_099_999,
        is_running=False,
        has_died=True,
    ),
    memory_limit=2**30,
    problems=frozenset({Check.DISK}),
    is_ready=False,
    sync=(SYNC, replace(SYNC, source="other", is_set_aside=True)),
)


def with_figures(figures: Figures) -> Metrics:
    """All metrics, those of `figures`, too."""
    metrics = Metrics()
    metrics.registry.register(FiguresCollector(lambda: figures))
    return metrics


def monitoring(
    store: EnvelopeStore,
    folder: Path,
    *,
    metrics: Metrics | None = None,
    peers: Callable[[], int] = lambda: 1,
    sync: Iterable[SyncFigures] = (),
    clock: Clock | None = None,
    expects_compaction: bool = False,
) -> Monitoring:
    """What looks after a store in `folder`, and a node with so many peers."""
    metrics = metrics or Metrics()
    return Monitoring(
        metrics,
        Watch(store, folder / STORE_FILE, metrics.loop_lag),
        Health(metrics, peers, expects_compaction=expects_compaction, clock=clock or Clock()),
        node=lambda: NODE,
        sync=lambda: sync,
    )
