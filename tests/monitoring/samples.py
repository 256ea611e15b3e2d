"""A node's figures, and what looks after them, without a node."""

from collections.abc import Callable, Iterable
from pathlib import Path

from mailserver.metrics import ClientFamily, Direction, Metrics, NodeFigures, SyncFigures
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
