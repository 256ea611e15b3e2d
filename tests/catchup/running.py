"""Catching up for the length of a `with`, and quickly: no test waits as long as the network would be waited for."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from mailserver.catchup import catchup as catchup_module
from mailserver.catchup import pace as pace_module
from mailserver.catchup import retry as retry_module
from mailserver.catchup import source as source_module
from mailserver.catchup.catchup import Catchup
from mailserver.catchup.progress import SourceProgress, SourceState
from mailserver.catchup.settings import CatchupSettings
from mailserver.codec.keys import Enode
from mailserver.net import connection as connection_module
from mailserver.store.sqlite.schema import STORE_FILE
from mailserver.store.sqlite.store import open_store
from mailserver.waku.envelope import Envelope
from tests.catchup.servers import DAY, raws, settings_for, stored_raws
from tests.mailservers import NOW, Clock, stored
from tests.store.samples import assert_counts_are_right
from tests.waiting import DEADLINE_S, until

WHOLE = (NOW - 3 * DAY, NOW)
"""What most tests ask for."""


def hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have a source that failed asked again at once, and one that does not answer our goodbye left at once."""
    monkeypatch.setattr(connection_module, "LINGER_S", 0.05)
    monkeypatch.setattr(retry_module, "MIN_BACKOFF_S", 0.001)
    monkeypatch.setattr(retry_module, "MAX_BACKOFF_S", 0.02)
    monkeypatch.setattr(source_module, "ASIDE_S", 0.02)
    monkeypatch.setattr(pace_module, "MIN_APART_S", 0.001)
    monkeypatch.setattr(pace_module, "MAX_APART_S", 0.02)
    monkeypatch.setattr(catchup_module, "SAVE_INTERVAL_S", 0.01)


@contextlib.asynccontextmanager
async def catching_up(
    folder: Path,
    *sources: Enode,
    settings: CatchupSettings | None = None,
    clock: Clock | None = None,
    held: list[Envelope] | None = None,
    wanted: tuple[int, int] | None = WHOLE,
) -> AsyncIterator[Catchup]:
    """Catch up into a store in `folder`.

    Args:
        held: what the store has before; received a day ago.
        wanted: the range that is added at the start.
    """
    settings = replace(settings or settings_for(), sources=sources)
    async with open_store(folder / STORE_FILE) as store:
        if held:
            await store.put([stored(envelope, NOW - DAY) for envelope in held])
        catchup = Catchup(store, folder, settings, clock or Clock())
        if wanted is not None:
            await catchup.add(*wanted)
        running = asyncio.create_task(catchup.run())
        try:
            yield catchup
        finally:
            catchup.stop()
            await asyncio.wait_for(running, DEADLINE_S)


async def settled(catchup: Catchup) -> tuple[SourceProgress, ...]:
    """Wait for the end; how it was."""
    await asyncio.wait_for(catchup.settled(), DEADLINE_S)
    return catchup.snapshot()


async def state_of(catchup: Catchup, state: SourceState, number: int = 0) -> SourceProgress:
    """Wait until a source is in this state."""
    await until(lambda: catchup.snapshot()[number].state is state)
    return catchup.snapshot()[number]


def assert_stored(folder: Path, envelopes: list[Envelope]) -> None:
    """The store has these envelopes, byte for byte and each once, and nothing else."""
    path = folder / STORE_FILE
    assert stored_raws(path) == raws(envelopes)
    assert_counts_are_right(path)
