"""The member's half of `community serve`: who is followed, with a real mailserver and real torrents."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from mailserver.app import community_members
from mailserver.app.communities_config import CommunitiesConfig
from mailserver.app.community_members import Followed, run_members
from mailserver.communities import links
from mailserver.communities.choosing import All, Latest
from mailserver.community.member.history import read_overview
from mailserver.community.member.joined import Joined, membership
from mailserver.torrents.client import TorrentProcess
from tests.app.daemons import running
from tests.community.member.test_following import COMMUNITY, announcement, imported, now_ms, post, weeks
from tests.community.member.torrents import LOOPBACK, Seeded
from tests.waiting import until

pytestmark = pytest.mark.integration


@pytest.fixture(autouse=True)
def no_long_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(links, "WAIT_S", 0.2)
    monkeypatch.setattr(community_members, "LOOK_INTERVAL_S", 0.1)
    monkeypatch.setattr(community_members, "PAUSE_S", 0.1)


@contextlib.asynccontextmanager
async def serving(data_dir: Path, torrents: TorrentProcess) -> AsyncIterator[None]:
    task = asyncio.create_task(run_members(CommunitiesConfig(data_dir=data_dir), torrents, Followed()))
    try:
        yield
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
