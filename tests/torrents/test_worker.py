"""What the torrent process makes of its requests: the worker with libtorrent's session, in the process of the test."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from mailserver.torrents.errors import CannotListen
from mailserver.torrents.frames import Frame, encode_bytes
from mailserver.torrents.info import TorrentInfo
from mailserver.torrents.session import Session
from mailserver.torrents.settings import TorrentSettings
from mailserver.torrents.worker import Worker
from tests.torrents.folders import publish
from tests.torrents.processes import MEMBER
from tests.waiting import DEADLINE_S, turns

pytestmark = pytest.mark.integration

Ask = Callable[[Frame], None]


@contextlib.asynccontextmanager
async def working() -> AsyncIterator[tuple[Ask, asyncio.Queue[Frame]]]:
    """A worker: what asks it, and its answers."""
    answers: asyncio.Queue[Frame] = asyncio.Queue()
    ours, alerts = socket.socketpair()
    with ours, alerts:
        session = Session(TorrentSettings(listen=(MEMBER, 0)), alerts.fileno())
        async with asyncio.timeout(DEADLINE_S), asyncio.TaskGroup() as group:
            worker = Worker(group, session, answers.put_nowait)

            def on_alerts() -> None:
                ours.recv(4096)
                worker.on_events()

            asyncio.get_running_loop().add_reader(ours, on_alerts)
            worker.on_events()
            yield worker.on_request, answers
            worker.on_request({"id": 1000, "op": "stop"})
        asyncio.get_running_loop().remove_reader(ours)


def adding(info: TorrentInfo, folder: Path) -> Frame:
    """A request to have a torrent."""
    info_text = encode_bytes(info.info)
    return {"id": 1, "op": "add", "info": info_text, "folder": str(folder), "seed": False, "trackers": [], "peers": []}


async def added(ask: Ask, answers: asyncio.Queue[Frame], tmp_path: Path) -> TorrentInfo:
    """Have a torrent that is published in one folder added in another."""
    info, folder = publish(tmp_path / "published"), tmp_path / "fetched"
    folder.mkdir()
    ask(adding(info, folder))
    assert await answers.get() == {"id": 1, "result": {}}
    return info


async def test_drop_that_nobody_waits_for_is_done_all_the_same(tmp_path: Path) -> None:
    async with working() as (ask, answers):
        info = await added(ask, answers, tmp_path)

        ask({"id": 2, "op": "drop", "info_hash": info.info_hash.hex()})
        await turns(2)  # it waits until all is on disk
        assert answers.empty()
        ask({"id": 3, "op": "forget", "request": 2})

        assert await answers.get() == {"id": 2, "result": {}}
        ask({"id": 4, "op": "statistics"})
        assert (await answers.get())["result"]["torrents"] == []


async def test_request_that_comes_twice_is_begun_once(tmp_path: Path) -> None:
    async with working() as (ask, answers):
        ask({"id": 1, "op": "ping"})
        ask({"id": 1, "op": "ping"})
        ask({"id": 2, "op": "ping"})

        assert [await answers.get(), await answers.get()] == [{"id": 1, "result": {}}, {"id": 2, "result": {}}]


async def test_drop_that_is_forgotten_before_it_begins_is_done(tmp_path: Path) -> None:
    async with working() as (ask, answers):
        info = await added(ask, answers, tmp_path)

        ask({"id": 2, "op": "drop", "info_hash": info.info_hash.hex()})
        ask({"id": 3, "op": "forget", "request": 2})

        assert await answers.get() == {"id": 2, "result": {}}


def test_session_that_does_not_say_where_it_listens_is_not_waited_for() -> None:
    ours, alerts = socket.socketpair()
    with ours, alerts:
        session = Session(TorrentSettings(listen=(MEMBER, 0)), alerts.fileno())
        assert session.port() > 0

        with pytest.raises(CannotListen, match="no answer of the system"):  # it has said so once
            session.port(timeout_s=0.1)

        del session  # before its descriptor is closed
