"""What keeps a store as it should be: the time that has passed for certain, pruning, and fetching what was missed.

Of several workers on a store, one does it.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import NamedTuple

from mailserver.app import policy
from mailserver.app.config import Config
from mailserver.app.process import background
from mailserver.catchup.catchup import Catchup
from mailserver.catchup.settings import CatchupSettings
from mailserver.live.intake import Clock
from mailserver.metrics.registry import Metrics
from mailserver.store.message_ids import StoreWithIds
from mailserver.upkeep.proven_time import ProvenTime
from mailserver.upkeep.pruning import Pruning


class UpkeepTasks(NamedTuple):
    """What does it."""

    proven_time: ProvenTime
    pruning: Pruning
    catchup: Catchup


@contextlib.asynccontextmanager
async def look_after(
    config: Config,
    settings: CatchupSettings,
    store: StoreWithIds,
    metrics: Metrics,
    clock: Clock,
    *,
    is_first: bool,
    failed: Callable[[], None],
) -> AsyncIterator[UpkeepTasks | None]:
    """Do the upkeep, if it is ours."""
    if not is_first:
        yield None
        return
    async with (
        _prove_time(store, metrics, clock, failed=failed) as proven_time,
        _prune(config, store, proven_time, metrics, clock) as pruning,
        _catch_up(config, settings, store, clock, failed=failed) as catchup,  # before anything is received
    ):
        yield UpkeepTasks(proven_time, pruning, catchup)


@contextlib.asynccontextmanager
async def _catch_up(
    config: Config, settings: CatchupSettings, store: StoreWithIds, clock: Clock, failed: Callable[[], None]
) -> AsyncIterator[Catchup]:
    """Fetch what was missed while this mailserver was away, and what commands ask for."""
    catchup = Catchup(store, config.data_dir, settings, clock)
    await catchup.add_missed(config.sync_days)
    async with background(catchup.run(), stop=catchup.stop, failed=failed):
        yield catchup


@contextlib.asynccontextmanager
async def _prove_time(
    store: StoreWithIds, metrics: Metrics, clock: Clock, failed: Callable[[], None]
) -> AsyncIterator[ProvenTime]:
    """Keep track of how much time has passed for certain."""
    proven_time = ProvenTime(store.time_record, clock, metrics=metrics)
    await proven_time.begin(store)
    async with background(proven_time.run(), failed=failed):
        yield proven_time


@contextlib.asynccontextmanager
async def _prune(
    config: Config, store: StoreWithIds, proven_time: ProvenTime, metrics: Metrics, clock: Clock
) -> AsyncIterator[Pruning]:
    """Keep the store within its limits."""
    settings = policy.pruning(config)
    pruning = Pruning(store, settings, proven_time.now, metrics=metrics, wall=clock)
    running = asyncio.create_task(pruning.run(), name="pruning")
    try:
        yield pruning
    finally:
        pruning.stop()
        await running
