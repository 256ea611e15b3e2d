"""A node's figures, and what looks after them, without a node."""

import math
import random
from array import array
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

from prometheus_client.registry import CollectorRegistry

from mailserver.codec.keys import Enode
from mailserver.metrics.collector import FiguresCollector
from mailserver.metrics.communities import ServiceFigures, communities_registry
from mailserver.metrics.figures import (
    CatchupFigures,
    CompactionFigures,
    DatabaseFigures,
    DiskFigures,
    Figures,
    NodeFigures,
    StoreFigures,
)
from mailserver.metrics.gateway import ClientProtocol, GatewayCollector, GatewayFigures, GatewayMetrics
from mailserver.metrics.labels import Check, ClientFamily, Direction
from mailserver.metrics.registry import Metrics
from mailserver.monitoring.health import Health
from mailserver.monitoring.last_day import MAX_MINUTES, MINUTE_S, NAMES, LastDay, Minutes
from mailserver.monitoring.last_day_file import LastDayFile
from mailserver.monitoring.state import Monitoring
from mailserver.monitoring.status import LoggedError
from mailserver.monitoring.watch import Watch
from mailserver.store.sqlite.store import SqliteStore
from tests.communities.progress import JOINED, OWNED
from tests.mailservers import NOW, Clock
from tests.pairs import private_key

ENODE = Enode(private_key("status page").public_key, "192.0.2.7", 30303)

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
SYNC = CatchupFigures("abcd1234@192.0.2.1:30303", 86_400, 3, 250, 200, {"low_pow": 7, "oversize": 1}, False)

FIGURES = Figures(
    node=NODE,
    store=StoreFigures(envelopes=1000, bytes=600_000, file_bytes=700_000, wal_bytes=80_000, oldest=1_795_000_000),
    database=DatabaseFigures(31, 97, 2, 0.01, 45, others_waiting=12),
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


GATEWAY_FIGURES = GatewayFigures(
    clients={"tcp": 2, "websocket": 3},
    handshakes=1,
    subscribers=4,
    criteria=40,
    unread_bytes=5000,
    unindexed=6,
    unindexed_periods=0,
    damaged=12,
    is_connected=True,
    feed_missed=7,
    refused_connections={"too_fast": 8, "address_full": 0},
)


def of_gateway(figures: GatewayFigures) -> GatewayMetrics:
    """All metrics of a gateway that was asked once by each protocol, those of `figures`, too."""
    metrics = GatewayMetrics()
    metrics.registry.register(GatewayCollector(lambda: figures))
    for asked in ClientProtocol:
        metrics.requests.labels(asked.value, "200").inc()
    return metrics


def of_communities() -> CollectorRegistry:
    """All metrics of `community serve` with a community that it owns and one that was joined."""
    figures = ServiceFigures((OWNED, replace(JOINED, announced_at=1_790_000_000.0)), True, 28_800.0, 0, 50_000_000)
    return communities_registry(lambda: figures)


def minutes(count: int, first_at: float = NOW, **columns: float) -> Minutes:
    """So many minutes that are all the same: 0 in every column but those given."""
    return Minutes(first_at, {name: array("d", [columns.get(name, 0.0)] * count) for name in NAMES})


def day_of_minutes(now: int, *, envelopes: int = 500, peers: int = 200) -> Minutes:
    """A day until now, busier at times, of a mailserver that was down for forty minutes of it.

    Args:
        envelopes: how many are accepted in an average minute, and `peers`: how many are connected at least.
    """
    day = minutes(MAX_MINUTES, now - (MAX_MINUTES - 1) * MINUTE_S)
    chance = random.Random(5)
    for at in range(MAX_MINUTES):
        tide = 1.0 + 0.7 * math.sin(at / 200)
        taken = round(envelopes * tide) + chance.randrange(envelopes // 12 + 3)
        values = {
            "received": taken * 1.2 // 1,
            "taken": taken,
            "refused": chance.randrange(envelopes // 50 + 2),
            "stored": taken,
            "delivered": 40 * tide // 1,
            "rejected": chance.choice([0, 0, 0, 2]),
            "connected": 30 * tide // 1,
            "bytes_in": 300_000 * tide // 1,
            "bytes_out": 2_000_000 * tide // 1,
            "peers_in": peers + peers * 0.15 * tide // 1,
            "peers_out": 2,
            "queued": chance.randrange(30),
            "lag_s": 0.002 + 0.01 * chance.random() ** 4,
            "answers_le_0.005": 20,
            "answers_le_0.01": chance.randrange(15),
            "answers_le_0.025": chance.randrange(6),
        }
        for name, column in day.columns.items():
            assert isinstance(column, array)
            column[at] = math.nan if 600 <= at < 640 else values.get(name, 0.0)
    return day


def monitoring(
    store: SqliteStore,
    folder: Path,
    *,
    metrics: Metrics | None = None,
    peers: Callable[[], int] = lambda: 1,
    sync: Iterable[CatchupFigures] = (),
    errors: Iterable[LoggedError] = (),
    clock: Clock | None = None,
    expects_compaction: bool = False,
) -> Monitoring:
    """What looks after a store in `folder`, and a node with so many peers."""
    metrics, clock = metrics or Metrics(), clock or Clock()
    history = LastDay(metrics, clock)
    return Monitoring(
        metrics,
        Watch(store, folder, metrics.loop_lag),
        Health(metrics, peers, expects_compaction=expects_compaction, clock=clock),
        history,
        LastDayFile(folder, history),
        enode=ENODE,
        node=lambda: NODE,
        sync=lambda: sync,
        errors=lambda: errors,
        clock=clock,
    )
