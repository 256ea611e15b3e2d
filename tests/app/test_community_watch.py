"""What `community serve` tells of itself: over HTTP, and in the record for the daemon. Torrents and daemon are real."""

import asyncio
import contextlib
import json
import logging
import urllib.error
import urllib.request
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from mailserver.app import community_members, community_watch
from mailserver.app.communities import run_communities
from mailserver.app.communities_config import CommunitiesConfig
from mailserver.app.community_watch import CommunityWatch
from mailserver.communities import links
from mailserver.communities.channels import id_text
from mailserver.communities.progress import CommunityProgress, CommunityRole, Week
from mailserver.community.folder import COMMUNITIES_FOLDER
from mailserver.community.member.joined import Joined, membership
from mailserver.community.owner.announcing import read_announced
from mailserver.handoff.communities import SERVED_FILE, read_served
from mailserver.torrents.client import TorrentProcess
from mailserver.torrents.magnet import MagnetLink
from tests.app.daemons import Daemon, running
from tests.community.member.test_following import COMMUNITY, announcement, now_ms, post, weeks
from tests.community.member.torrents import LOOPBACK, Seeded
from tests.community.owner.samples import OTHER_OWNER, garden, made_in
from tests.community.owner.serving import make_week
from tests.waiting import until

pytestmark = pytest.mark.integration


@pytest.fixture(autouse=True)
def no_long_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(links, "WAIT_S", 0.2)
    monkeypatch.setattr(community_members, "LOOK_INTERVAL_S", 0.1)
    monkeypatch.setattr(community_members, "PAUSE_S", 0.1)
    monkeypatch.setattr(community_watch, "FIRST_LOOK_S", 0.1)
    monkeypatch.setattr(community_watch, "LOOK_INTERVAL_S", 0.1)


NO_WEEK = Week(0, 1, 0, is_distributed=False, is_seeding=False, is_fetched=False)


@contextlib.asynccontextmanager
async def serving(data_dir: Path, caplog: pytest.LogCaptureFixture) -> AsyncIterator[str]:
    """`community serve` in this process; yield where its metrics are."""
    caplog.set_level(logging.INFO)
    config = CommunitiesConfig(data_dir, torrent_listen="127.0.0.1:0", metrics="127.0.0.1:0")
    task = asyncio.create_task(run_communities(config))

    def ports() -> list[str]:
        return [text.partition("port=")[2] for text in caplog.messages if text.startswith("serving metrics port=")]

    try:
        before = len(ports())
        await until(lambda: len(ports()) > before or task.done())
        yield f"http://127.0.0.1:{ports()[-1]}"
    finally:
        task.cancel()
        await asyncio.wait([task])
    if not task.cancelled():
        task.result()


@contextlib.asynccontextmanager
async def running_beside(data_dir: Path) -> AsyncIterator[Daemon]:
    """A daemon. What serves communities in the same process has taken its signals: it is not told by one to stop."""
    async with running(data_dir, feed_socket=True) as daemon:
        try:
            yield daemon
        finally:
            daemon.task.cancel()


def of_role(data_dir: Path, role: CommunityRole) -> CommunityProgress | None:
    """What the record says of the community of a role."""
    served = read_served(data_dir / COMMUNITIES_FOLDER)
    found = [] if served is None else [each for each in served.communities if each.role is role]
    return found[0] if found else None


def get(url: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(url, timeout=10) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


async def test_weeks_of_owned_and_joined_communities_are_told_to_prometheus_and_to_the_daemon(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = made_in(tmp_path / COMMUNITIES_FOLDER, garden(), OTHER_OWNER)
    make_week(folder, 0)
    async with (
        running_beside(tmp_path) as daemon,
        TorrentProcess(LOOPBACK) as owner,
        serving(tmp_path, caplog) as url,
    ):
        uri = await Seeded(owner, tmp_path / "owner").publish(weeks(4, 5))
        await post(daemon.enode, [await announcement(uri, now_ms())])
        membership(tmp_path, COMMUNITY).write(Joined(COMMUNITY))

        def is_told() -> bool:
            owned, joined = of_role(tmp_path, CommunityRole.OWNER), of_role(tmp_path, CommunityRole.MEMBER)
            return (
                owned is not None
                and [week.is_distributed for week in owned.weeks] == [True]
                and joined is not None
                and [week.is_fetched for week in joined.weeks] == [True, True]
                and joined.downloaded > 0
            )

        await until(is_told, 60)
        status, metrics = await asyncio.to_thread(get, f"{url}/metrics")
        ready, _ = await asyncio.to_thread(get, f"{url}/ready")

    owned, joined = of_role(tmp_path, CommunityRole.OWNER), of_role(tmp_path, CommunityRole.MEMBER)
    assert owned is not None
    assert joined is not None
    assert (owned.id, owned.is_seeding, owned.problem) == (folder.path.name, True, "")
    assert owned.late_weeks is not None
    assert [week.is_seeding for week in owned.weeks] == [True]
    assert (joined.id, joined.is_seeding, joined.problem) == (id_text(COMMUNITY), True, "")
    assert joined.archives == {"missing": 0, "downloaded": 0, "imported": 2, "refused": 0}
    assert (status, ready) == (200, 200)
    lines = metrics.splitlines()
    assert f'community_ranges{{community="{owned.id}",role="owner",state="distributed"}} 1.0' in lines
    assert f'community_ranges{{community="{joined.id}",role="member",state="fetched"}} 2.0' in lines
    assert "community_connected 1.0" in lines


async def test_week_that_a_member_has_fetched_is_told_and_still_after_a_restart(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = made_in(tmp_path / COMMUNITIES_FOLDER, garden(), OTHER_OWNER)
    make_week(folder, 0)

    def fetched() -> tuple[int | None, int | None]:
        (week,) = of_owned.weeks if (of_owned := of_role(tmp_path, CommunityRole.OWNER)) is not None else (NO_WEEK,)
        return week.fetched_times, week.fetched_at

    async with running_beside(tmp_path):
        async with serving(tmp_path, caplog), TorrentProcess(LOOPBACK) as member:
            await until(lambda: folder.announced.exists() and fetched() == (0, None), 60)
            announced = read_announced(folder.announced)
            assert announced is not None
            (port,) = [int(text.partition("port=")[2]) for text in caplog.messages if text.startswith("torrents list")]
            link = MagnetLink(announced.info_hash, peers=(("127.0.0.1", port),))
            info = await member.metadata(link)
            (tmp_path / "fetched").mkdir()
            await member.fetch(info, tmp_path / "fetched", [info.pieces], link=link)
            await until(lambda: fetched()[0] == 1, 60)
            before = fetched()
        (tmp_path / COMMUNITIES_FOLDER / SERVED_FILE).unlink()
        async with serving(tmp_path, caplog) as url:
            await until(lambda: fetched()[0] is not None, 60)
            assert fetched() == before
            _, metrics = await asyncio.to_thread(get, f"{url}/metrics")

    assert f'community_ranges{{community="{folder.path.name}",role="owner",state="fetched"}} 1.0' in metrics
    assert "community_fetched_timestamp_seconds{" in metrics


async def test_service_without_a_daemon_is_alive_and_says_what_it_cannot_do(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with running(tmp_path):
        pass  # there is a store now, and nobody at the feed socket
    folder = membership(tmp_path, COMMUNITY)
    folder.write(Joined(COMMUNITY))
    folder.history.write_text("no database " * 1000)
    async with serving(tmp_path, caplog) as url:
        await until(lambda: any("community not followed" in text for text in caplog.messages))
        status, text = await asyncio.to_thread(get, f"{url}/ready")
        health, _ = await asyncio.to_thread(get, f"{url}/health")

    said: dict[str, Any] = json.loads(text)
    not_connected, not_followed = said["problems"]
    assert (health, status) == (200, 503)
    assert "the mailserver is not connected" in not_connected
    assert not_followed.startswith(id_text(COMMUNITY))
    assert "not a database" in not_followed


async def test_record_that_cannot_be_written_is_reported_once_and_is_a_problem(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = 0
    look = CommunityWatch.look

    async def count(watch: CommunityWatch) -> None:
        nonlocal looks
        await look(watch)
        looks += 1

    monkeypatch.setattr(CommunityWatch, "look", count)
    async with running(tmp_path):
        pass
    (tmp_path / COMMUNITIES_FOLDER / SERVED_FILE).mkdir(parents=True)
    async with serving(tmp_path, caplog) as url:
        await until(lambda: looks >= 3)
        _, said = await asyncio.to_thread(get, f"{url}/health")

    assert "cannot write" in said
    assert len([text for text in caplog.messages if "state of communities not written" in text]) == 1


async def test_what_cannot_be_read_now_is_a_problem_and_nobody_waits_for_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(community_watch, "ANSWER_S", 0.0)  # the torrent process is never as fast
    async with running(tmp_path):
        pass
    folder = membership(tmp_path, COMMUNITY)
    folder.write(Joined(COMMUNITY))
    async with serving(tmp_path, caplog) as url:
        await until(lambda: of_role(tmp_path, CommunityRole.MEMBER) is not None)
        folder.history.unlink()

        def problem() -> str:
            joined = of_role(tmp_path, CommunityRole.MEMBER)
            return "" if joined is None else joined.problem

        await until(lambda: "unable to open" in problem())
        _, metrics = await asyncio.to_thread(get, f"{url}/metrics")

    lines = metrics.splitlines()
    assert "community_torrent_memory_bytes 0.0" in lines
    assert f'community_problem{{community="{id_text(COMMUNITY)}",role="member"}} 1.0' in lines
