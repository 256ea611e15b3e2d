"""The member's half of `community serve`: who is followed, with a real mailserver and real torrents."""

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from mailserver.app import community_members
from mailserver.app.communities_config import CommunitiesConfig
from mailserver.app.community_members import Members
from mailserver.communities import links
from mailserver.communities.channels import community_id, special_channel
from mailserver.communities.choosing import All, Latest
from mailserver.community.member.history import read_overview
from mailserver.community.member.joined import Joined, membership
from mailserver.community.member.leaving import join, leave
from mailserver.torrents.client import TorrentProcess
from tests.app.daemons import running
from tests.community.member.publishing import FOREIGNER, sealed
from tests.community.member.test_following import COMMUNITY, announcement, imported, now_ms, post, weeks
from tests.community.member.torrents import LOOPBACK, Seeded
from tests.community.member.worlds import week
from tests.waiting import until

pytestmark = pytest.mark.integration


@pytest.fixture(autouse=True)
def no_long_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(links, "WAIT_S", 0.2)
    monkeypatch.setattr(community_members, "LOOK_INTERVAL_S", 0.1)
    monkeypatch.setattr(community_members, "PAUSE_S", 0.1)


@contextlib.asynccontextmanager
async def serving(data_dir: Path, torrents: TorrentProcess) -> AsyncIterator[Members]:
    members = Members(CommunitiesConfig(data_dir=data_dir), torrents, time.time)
    task = asyncio.create_task(members.run())
    try:
        yield members
    finally:
        task.cancel()
        await asyncio.wait([task])
    if not task.cancelled():
        task.result()


async def test_community_is_followed_from_when_it_is_joined_and_anew_when_more_is_wanted(tmp_path: Path) -> None:
    folder = membership(tmp_path, COMMUNITY)
    async with (
        running(tmp_path) as daemon,
        TorrentProcess(LOOPBACK) as owner,
        TorrentProcess(LOOPBACK) as torrents,
        serving(tmp_path, torrents),
    ):
        uri = await Seeded(owner, tmp_path / "owner").publish(weeks(4, 5))
        await post(daemon.enode, [await announcement(uri, now_ms())])

        folder.write(Joined(COMMUNITY, choice=Latest()))  # its mailserver is the one of the data directory
        await until(lambda: folder.history.exists() and imported(folder) == 1, 60)
        folder.write(Joined(COMMUNITY, choice=All()))
        await until(lambda: imported(folder) == 2, 60)


@pytest.mark.parametrize("delete", [False, True], ids=["kept", "deleted"])
async def test_community_that_is_left_is_not_seeded_any_more_and_its_history_stays_unless_deleted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, delete: bool
) -> None:
    caplog.set_level(logging.INFO)
    folder = membership(tmp_path, COMMUNITY)

    def fetched() -> list[str]:
        return [text for text in caplog.messages if text.startswith("history fetched")]

    async with (
        running(tmp_path) as daemon,
        TorrentProcess(LOOPBACK) as owner,
        TorrentProcess(LOOPBACK) as torrents,
        serving(tmp_path, torrents) as members,
    ):
        uri = await Seeded(owner, tmp_path / "owner").publish(weeks(4, 5))
        await post(daemon.enode, [await announcement(uri, now_ms())])
        join(folder, Joined(COMMUNITY))
        await until(lambda: len(fetched()) == 1, 60)
        assert imported(folder) == 2

        leave(folder, delete=delete)
        await until(lambda: not (folder.path / "torrent").exists(), 60)

        assert (await torrents.statistics()).torrents == ()
        if delete:
            await until(lambda: not folder.path.parent.exists(), 60)
        else:
            assert imported(folder) == 2
            join(folder, Joined(COMMUNITY))
            await until(lambda: len(fetched()) == 2, 60)
            assert ["downloaded=2" in text for text in fetched()] == [True, False]  # nothing twice
            (again,) = (await torrents.statistics()).torrents
            assert again.held < again.pieces  # no more than the index
            (member,) = members.members.values()
            assert member.offered() == set()


async def test_community_that_announces_the_torrent_of_another_is_refused_and_harms_nobody(tmp_path: Path) -> None:
    other = community_id(FOREIGNER.public_key)
    folder, of_other = membership(tmp_path, COMMUNITY), membership(tmp_path, other)

    def refused() -> str | None:
        return read_overview(of_other.history).refused_link if of_other.history.exists() else None

    async with (
        running(tmp_path) as daemon,
        TorrentProcess(LOOPBACK) as owner,
        TorrentProcess(LOOPBACK) as torrents,
        serving(tmp_path, torrents),
    ):
        seeded, made = Seeded(owner, tmp_path / "owner"), weeks(4)
        uri = await seeded.publish(made)
        await post(daemon.enode, [await announcement(uri, now_ms())])
        folder.write(Joined(COMMUNITY))
        await until(lambda: folder.history.exists() and imported(folder) == 1, 60)

        await post(daemon.enode, [await announcement(uri, now_ms(), FOREIGNER, special_channel(other))])
        of_other.write(Joined(other))
        await until(lambda: refused() is not None, 60)
        made.add(week(5), [sealed(week(5).lower)])
        await post(daemon.enode, [await announcement(await seeded.publish(made), now_ms())])
        await until(lambda: imported(folder) == 2, 60)

    assert refused() == "its name is not the id of the community"


async def test_folder_that_is_of_no_community_is_reported_once_and_the_others_go_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = membership(tmp_path, COMMUNITY)
    folder.write(Joined(COMMUNITY))

    def reports() -> list[str]:
        return [record.getMessage() for record in caplog.records if "cannot be read" in record.getMessage()]

    def followed() -> int:
        return sum("following community" in record.getMessage() for record in caplog.records)

    caplog.set_level(logging.INFO)
    async with TorrentProcess(LOOPBACK) as torrents, serving(tmp_path, torrents):
        await until(lambda: followed() == 1)
        stray = tmp_path / "communities" / "0x01" / "member" / "member.json"
        stray.parent.mkdir(parents=True)
        stray.write_text("{}")
        await until(lambda: len(reports()) == 1)
        folder.write(Joined(COMMUNITY, choice=Latest()))
        stray.unlink()
        await until(lambda: followed() == 2)

    assert len(reports()) == 1
    assert "community id" in reports()[0]


async def test_community_that_cannot_be_read_is_reported_once_and_taken_up_later(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = membership(tmp_path, COMMUNITY)
    folder.write(Joined(COMMUNITY))
    folder.history.write_text("no database " * 1000)

    def reports() -> list[str]:
        return [record.getMessage() for record in caplog.records if "not followed" in record.getMessage()]

    async with TorrentProcess(LOOPBACK) as torrents, serving(tmp_path, torrents):
        await until(lambda: len(reports()) == 1)
        folder.history.unlink()
        await until(lambda: folder.history.exists() and read_overview(folder.history).messages == 0)

    assert len(reports()) == 1
    assert "not a database" in reports()[0]
