"""What the torrent process makes of its requests: the worker with libtorrent's session, in the process of the test."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from mailserver.torrents import bans
from mailserver.torrents import worker as worker_module
from mailserver.torrents.errors import CannotListen
from mailserver.torrents.frames import Frame, encode_bytes, encode_pieces
from mailserver.torrents.info import BLOCKS_PER_PIECE, DATA_FILE, INDEX_FILE, PIECE_BYTES, TorrentInfo
from mailserver.torrents.making import make_torrent
from mailserver.torrents.session import TorrentSession
from mailserver.torrents.settings import TorrentSettings
from mailserver.torrents.worker import TorrentRequests
from tests.torrents.folders import NAME, publish
from tests.torrents.processes import MEMBER, OWNER
from tests.torrents.raw_seed import RawSeed
from tests.waiting import DEADLINE_S, turns

pytestmark = pytest.mark.integration

Ask = Callable[[Frame], None]


@contextlib.asynccontextmanager
async def working() -> AsyncIterator[tuple[Ask, asyncio.Queue[Frame]]]:
    """A worker: what asks it, and its answers."""
    answers: asyncio.Queue[Frame] = asyncio.Queue()
    ours, alerts = socket.socketpair()
    with ours, alerts:
        session = TorrentSession(TorrentSettings(listen=(MEMBER, 0)), alerts.fileno())
        async with asyncio.timeout(DEADLINE_S), asyncio.TaskGroup() as group:
            worker = TorrentRequests(group, session, answers.put_nowait)

            def on_alerts() -> None:
                ours.recv(4096)
                worker.on_events()

            asyncio.get_running_loop().add_reader(ours, on_alerts)
            worker.on_events()
            dialling = group.create_task(worker.dial())
            yield worker.on_request, answers
            worker.on_request({"id": 1000, "op": "stop"})
            dialling.cancel()
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


async def test_peer_that_libtorrent_has_banned_is_asked_again_when_nothing_comes_any_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bans.Bans, "add", lambda *_: None)  # as if it were not known who sent the wrong piece
    monkeypatch.setattr(worker_module, "DIAL_INTERVAL_S", 0.05)
    monkeypatch.setattr(worker_module, "LOOK_INTERVAL_S", 0.2)
    info = publish(tmp_path / "published")
    content = b"".join((tmp_path / "published" / name).read_bytes() for name in (DATA_FILE, INDEX_FILE))
    sent: set[int] = set()

    def damaged_at_first(piece: int, offset: int, size: int) -> bytes:
        """The first seven blocks, of which a piece has as many, have come to harm on the way."""
        sent.add(piece * PIECE_BYTES + offset)
        if len(sent) <= BLOCKS_PER_PIECE:
            return bytes(size)
        return content[piece * PIECE_BYTES + offset :][:size]

    seed = RawSeed(info.info_hash, len(info.pieces), damaged_at_first)
    async with seed.listening(OWNER) as port, working() as (ask, answers):
        (tmp_path / "fetched").mkdir()
        ask({**adding(info, tmp_path / "fetched"), "peers": [(OWNER, port)]})
        assert await answers.get() == {"id": 1, "result": {}}

        ask({"id": 2, "op": "fetch", "info_hash": info.info_hash.hex(), "pieces": encode_pieces([info.pieces])})
        wrong = 0
        while "event" in (answer := await answers.get()):
            wrong = answer["wrong"]

        assert answer == {"id": 2, "result": {}}
        assert wrong > 0
    assert make_torrent(tmp_path / "fetched", NAME) == info


def test_session_that_does_not_say_where_it_listens_is_not_waited_for() -> None:
    ours, alerts = socket.socketpair()
    with ours, alerts:
        session = TorrentSession(TorrentSettings(listen=(MEMBER, 0)), alerts.fileno())
        assert session.port() > 0

        with pytest.raises(CannotListen, match="no answer of the system"):  # it has said so once
            session.port(timeout_s=0.1)

        del session  # before its descriptor is closed
