"""A member's fetcher and a control node, each with a libtorrent of its own, on loopback."""

import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from mailserver.communities.choosing import All, Choice
from mailserver.community.member.fetching import Fetched, Fetcher
from mailserver.community.member.history import History, open_history, read_overview
from mailserver.community.member.records import State
from mailserver.community.member.schema import HISTORY_FILE
from mailserver.torrents.client import TorrentProcess
from mailserver.torrents.info import TorrentInfo
from mailserver.torrents.magnet import MagnetLink
from mailserver.torrents.settings import TorrentSettings
from tests.community.member.publishing import NETWORK_TOPIC, Published, published, sealed
from tests.community.member.worlds import NOW, WEEK_S, messages_of, week

pytestmark = pytest.mark.integration

LOOPBACK = TorrentSettings(listen=("127.0.0.1", 0), metadata_timeout_s=10.0, stall_timeout_s=10.0)


@pytest.fixture
async def owner() -> AsyncIterator[TorrentProcess]:
    async with TorrentProcess(LOOPBACK) as process:
        yield process


@pytest.fixture
async def torrents() -> AsyncIterator[TorrentProcess]:
    async with TorrentProcess(LOOPBACK) as process:
        yield process


@dataclass
class Seeded:
    """What a control node has published, and seeds."""

    process: TorrentProcess
    folder: Path
    info: TorrentInfo | None = field(default=None)

    async def publish(self, made: Published) -> str:
        """Seed these files, in place of those before; return the magnet link."""
        if self.info is not None:
            await self.process.drop(self.info.info_hash)
        self.info = made.write(self.folder)
        await self.process.seed(self.info, self.folder)
        return MagnetLink(self.info.info_hash, peers=(("127.0.0.1", self.process.port),)).encode()


@contextlib.asynccontextmanager
async def fetcher(
    folder: Path, torrents: TorrentProcess, choice: Choice = All()
) -> AsyncIterator[tuple[Fetcher, History]]:
    folder.mkdir(exist_ok=True)
    async with open_history(folder / HISTORY_FILE) as history:
        made = Fetcher("community", folder, history, torrents, choice, NETWORK_TOPIC, lambda: NOW)
        try:
            yield made, history
        finally:
            await made.leave()


def quiet(step: str, done: int, total: int | None) -> None:
    """Nobody looks at the progress."""


def weeks(*numbers: int, per_week: int = 3) -> Published:
    return published(
        {week(number): [sealed(number * WEEK_S + second) for second in range(per_week)] for number in numbers}
    )


async def test_whole_history_is_fetched_and_imported(
    tmp_path: Path, owner: TorrentProcess, torrents: TorrentProcess
) -> None:
    uri = await Seeded(owner, tmp_path / "owner").publish(weeks(4, 5, 6))

    async with fetcher(tmp_path / "member", torrents) as (member, _):
        fetched = await member.fetch(uri, quiet)

    assert fetched == Fetched(downloaded=3, imported=3, messages=9)
    assert len(messages_of(tmp_path / "member" / HISTORY_FILE)) == 9
    overview = read_overview(tmp_path / "member" / HISTORY_FILE)
    assert [archive.state for archive in overview.archives] == [State.IMPORTED] * 3
    assert overview.attempt is not None
    assert overview.attempt.problem is None
    assert not [*(tmp_path / "member" / "downloads").iterdir()]
