"""How fast an empty mailserver fetches all that another has: by comparing ids, and page by page; and how fast a client
lists all ids."""

import asyncio
import tempfile
import time
from collections.abc import Coroutine, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import uvloop

from bench.daemon import Daemon, cpu_s
from bench.results import FetchRun
from bench.store import FilledStore
from mailserver.catchup.catchup import Catchup
from mailserver.catchup.progress import SourceState
from mailserver.catchup.settings import CatchupSettings
from mailserver.client.id_client import IdClient
from mailserver.client.mail_client import connect
from mailserver.codec.keys import Enode
from mailserver.ids.muid import Muid
from mailserver.rlpx.capabilities import Capability
from mailserver.store.sqlite.schema import STORE_FILE
from mailserver.store.sqlite.store import open_store
from mailserver.waku.acceptance import Acceptance, Requirements
from mailserver.waku.bloom import FULL_INTEREST
from mailserver.waku.payload import key_from_password
from mailserver.wakuid.questions import Query

_DAY_S = 86_400
_NO_PRUNING = ("--retention-days", "0")
_UNKNOWN = Capability("nothing", 1)
_CLIENT_ID = "bench/1"


class FetchFailed(Exception):
    """Not everything was fetched, or listed."""


def measure_fetching(store: FilledStore, envelopes: int, password: str) -> dict[str, FetchRun]:
    """Have an empty store beside a daemon fetch everything from it, over loopback, each time into a new one; then have
    a client list the ids of everything."""
    measured = {}
    with Daemon(store.data_dir, password, _NO_PRUNING) as daemon:

        def catch_up() -> FetchRun:
            with tempfile.TemporaryDirectory(dir=store.data_dir.parent) as folder:
                return _measured(daemon, envelopes, _catch_up(Path(folder), daemon.enode, store, password))

        measured["by comparing ids"] = catch_up()
        with mock.patch("mailserver.catchup.comparing.WAKUID", _UNKNOWN):  # as from a Go mailserver
            measured["page by page"] = catch_up()
        measured["the ids alone, listed"] = _measured(daemon, envelopes, _list(daemon.enode, store, password))
    return measured


def _measured(daemon: Daemon, envelopes: int, fetching: Coroutine[Any, Any, int]) -> FetchRun:
    """Run what fetches, and returns how many it has got."""
    asked_cpu_s, own_cpu_s, began = cpu_s(daemon.pid), time.process_time(), time.perf_counter()
    fetched = uvloop.run(fetching)
    if fetched != envelopes:
        raise FetchFailed(f"{fetched} of {envelopes} envelopes were fetched")
    return FetchRun(
        fetched,
        time.perf_counter() - began,
        time.process_time() - own_cpu_s,
        cpu_s(daemon.pid) - asked_cpu_s,
    )


async def _list(enode: Enode, store: FilledStore, password: str) -> int:
    """List the ids of everything, page by page; return how many there are."""
    found = set[Muid]()
    query = Query(0, "", store.end - (store.days + 1) * _DAY_S, store.end)

    def take(muids: Sequence[Muid]) -> None:
        found.update(muids)

    async with connect(enode, _CLIENT_ID) as client:
        ids = IdClient(client)
        await ids.open(key_from_password(password))
        while not (end := await ids.list_ids(query, take)).is_all:
            query = replace(query, cursor=end.cursor)
    return len(found)


async def _catch_up(folder: Path, enode: Enode, store: FilledStore, password: str) -> int:
    """Fetch everything; return how many envelopes there are."""
    acceptance = Acceptance(Requirements(0.0, FULL_INTEREST))
    settings = CatchupSettings((enode,), key_from_password(password), _CLIENT_ID, acceptance)
    async with open_store(folder / STORE_FILE) as own:
        catchup = Catchup(own, folder, settings)
        await catchup.add(store.end - (store.days + 1) * _DAY_S, store.end)
        running = asyncio.create_task(catchup.run())
        await catchup.settled()
        (progress,) = catchup.snapshot()
        catchup.stop()
        await running
        if progress.state is not SourceState.DONE:
            raise FetchFailed(f"{progress.state.value}: {progress.problem}")
        return (await own.stats()).envelopes
