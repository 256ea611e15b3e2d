"""How fast an empty mailserver fetches all that another has: by comparing ids, and page by page."""

import asyncio
import tempfile
import time
from pathlib import Path
from unittest import mock

import uvloop

from bench.daemon import Daemon, cpu_s
from bench.results import FetchRun
from bench.store import FilledStore
from mailserver.catchup.catchup import Catchup
from mailserver.catchup.progress import State
from mailserver.catchup.source import CatchupSettings
from mailserver.codec.keys import Enode
from mailserver.rlpx.capabilities import Capability
from mailserver.store.sqlite.schema import STORE_FILE
from mailserver.store.sqlite.store import open_store
from mailserver.waku.acceptance import Acceptance, Requirements
from mailserver.waku.bloom import FULL_INTEREST
from mailserver.waku.payload import key_from_password

_DAY_S = 86_400
_NO_PRUNING = ("--retention-days", "0")
_UNKNOWN = Capability("nothing", 1)


class FetchFailed(Exception):
    """Not everything was fetched."""


def measure_fetching(store: FilledStore, envelopes: int, password: str) -> dict[str, FetchRun]:
    """Have an empty store beside a daemon fetch everything from it, over loopback, each time into a new one."""
    measured = {}
    with Daemon(store.data_dir, password, _NO_PRUNING) as daemon:
        measured["by comparing ids"] = _fetch(daemon, store, envelopes, password)
        with mock.patch("mailserver.catchup.comparing.WAKUID", _UNKNOWN):  # as from a Go mailserver
            measured["page by page"] = _fetch(daemon, store, envelopes, password)
    return measured


def _fetch(daemon: Daemon, store: FilledStore, envelopes: int, password: str) -> FetchRun:
    asked_cpu_s, own_cpu_s, began = cpu_s(daemon.pid), time.process_time(), time.perf_counter()
    with tempfile.TemporaryDirectory(dir=store.data_dir.parent) as folder:
        fetched = uvloop.run(_catch_up(Path(folder), daemon.enode, store, password))
    if fetched != envelopes:
        raise FetchFailed(f"{fetched} of {envelopes} envelopes were fetched")
    return FetchRun(
        fetched,
        time.perf_counter() - began,
        time.process_time() - own_cpu_s,
        cpu_s(daemon.pid) - asked_cpu_s,
    )


async def _catch_up(folder: Path, enode: Enode, store: FilledStore, password: str) -> int:
    """Fetch everything; return how many envelopes there are."""
    acceptance = Acceptance(Requirements(0.0, FULL_INTEREST))
    settings = CatchupSettings((enode,), key_from_password(password), "bench/1", acceptance)
    async with open_store(folder / STORE_FILE) as own:
        catchup = Catchup(own, folder, settings)
        await catchup.add(store.end - (store.days + 1) * _DAY_S, store.end)
        running = asyncio.create_task(catchup.run())
        await catchup.settled()
        (progress,) = catchup.snapshot()
        catchup.stop()
        await running
        if progress.state is not State.DONE:
            raise FetchFailed(f"{progress.state.value}: {progress.problem}")
        return (await own.stats()).envelopes
