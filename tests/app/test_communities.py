"""mailserver.app.communities: the process, beside a daemon in this one, with real torrents on loopback."""

import asyncio
import os
import signal
import time
from dataclasses import replace
from pathlib import Path

import pytest

from mailserver.app.communities import LOCK_FILE, owner_settings, run_communities, serve_communities
from mailserver.app.communities_config import CommunitiesConfig
from mailserver.communities.channels import special_channel
from mailserver.community.folder import COMMUNITIES_FOLDER
from mailserver.community.owner.announcing import read_announced
from mailserver.community.owner.service import OwnerSettings
from mailserver.data_dir.folder import DataDirInUse
from mailserver.errors import StartupError
from mailserver.files import open_descriptor, try_lock
from mailserver.store.interface import Query
from mailserver.store.postgres.store import open_store
from mailserver.torrents.info import PIECE_BYTES
from mailserver.waku.bloom import Interest
from tests.app.daemons import running
from tests.community.owner.samples import GARDEN, garden, made_in, sealed
from tests.community.owner.serving import make_week
from tests.mailservers import stored
from tests.store.postgres.server import new_schema, shared_server
from tests.waiting import DEADLINE_S, until

pytestmark = pytest.mark.integration


def config_of(data_dir: Path) -> CommunitiesConfig:
    return CommunitiesConfig(data_dir, torrent_listen="127.0.0.1:0")


async def test_what_the_job_has_made_is_announced(tmp_path: Path) -> None:
    folder = made_in(tmp_path / COMMUNITIES_FOLDER, garden())
    make_week(folder, 0)
    failed = asyncio.Event()
    async with (
        running(tmp_path, feed_socket=True),
        serve_communities(config_of(tmp_path), time.time, failed.set) as serving,
    ):
        await until(folder.announced.exists)

        (torrent,) = (await serving.torrents.statistics()).torrents
    announced = read_announced(folder.announced)
    assert announced is not None
    assert (announced.info_hash, announced.data_bytes) == (torrent.info_hash, PIECE_BYTES)
    assert folder.holdings.exists()
    assert not failed.is_set()


async def test_with_a_store_in_a_database_envelopes_of_all_its_mailservers_are_held_and_links_stored_there(
    tmp_path: Path,
) -> None:
    url = shared_server().url(new_schema(shared_server()))
    folder = made_in(tmp_path / COMMUNITIES_FOLDER, garden(GARDEN))
    make_week(folder, 0)
    config = replace(config_of(tmp_path), store=url)
    async with (
        running(tmp_path, feed_socket=True, store=url),
        open_store(url) as of_another,
        serve_communities(config, time.time, asyncio.Event().set) as serving,
    ):
        await of_another.put([stored(sealed(int(time.time()), number)) for number in range(3)])
        await until(folder.announced.exists)
        (owned,) = serving.owners.communities.values()
        holdings = owned.holdings
        assert holdings is not None
        await until(lambda: holdings.progress.arrival >= 4)  # these, and the link

        assert await holdings.count() == 3
        assert serving.owners.problems == []
        links = Query(0, 2**32 - 1, Interest(topics=frozenset({special_channel(folder.id).topic})))
        assert (await of_another.find(links, 10)).left == 1


async def test_process_runs_without_a_mailserver_until_it_is_told_to_stop(tmp_path: Path) -> None:
    folder = made_in(tmp_path / COMMUNITIES_FOLDER, garden())
    process = asyncio.create_task(run_communities(config_of(tmp_path)))
    await until(lambda: folder.holdings.exists() or process.done())

    os.kill(os.getpid(), signal.SIGTERM)

    await asyncio.wait_for(process, DEADLINE_S)


async def test_two_processes_do_not_serve_a_folder(tmp_path: Path) -> None:
    (tmp_path / COMMUNITIES_FOLDER).mkdir()
    with open_descriptor(tmp_path / COMMUNITIES_FOLDER / LOCK_FILE, os.O_RDWR | os.O_CREAT) as lock:
        assert try_lock(lock)

        with pytest.raises(DataDirInUse, match="another process"):
            await run_communities(config_of(tmp_path))


async def test_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / COMMUNITIES_FOLDER).write_text("")

    with pytest.raises(StartupError, match=r"cannot write .*communities"):
        await run_communities(config_of(tmp_path))


def test_owner_is_told_what_the_settings_say() -> None:
    trackers = ("udp://192.0.2.1:1337",)
    config = CommunitiesConfig(announce_hours=2.5, trackers=trackers, advertise=("192.0.2.1:6881",))

    assert owner_settings(config) == OwnerSettings(9000.0, trackers, (("192.0.2.1", 6881),))
    assert owner_settings(CommunitiesConfig()) == OwnerSettings()
