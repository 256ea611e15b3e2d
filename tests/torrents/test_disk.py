"""Disks that do not take what comes."""

import resource
from pathlib import Path

import pytest

from mailserver.torrents.client import TorrentProcess
from mailserver.torrents.errors import TorrentDiskError
from mailserver.torrents.info import PIECE_BYTES
from mailserver.torrents.making import make_torrent
from tests.torrents.folders import NAME, publish
from tests.torrents.processes import MEMBER, OWNER, link_to, process_on, statistics_of

pytestmark = pytest.mark.integration

_, HARD = resource.getrlimit(resource.RLIMIT_FSIZE)


def bound_files(process: TorrentProcess, limit: int) -> None:
    """No file may be longer from now on: what a full disk is like."""
    assert process.process_id is not None
    resource.prlimit(process.process_id, resource.RLIMIT_FSIZE, (limit, HARD))


async def test_full_disk_ends_a_fetch_and_the_next_goes_on(tmp_path: Path) -> None:
    info = publish(tmp_path / "published")
    folder = tmp_path / "fetched"
    folder.mkdir()
    async with process_on(OWNER) as owner, process_on(MEMBER) as member:
        await owner.seed(info, tmp_path / "published")
        link = link_to(info, (OWNER, owner))
        await member.fetch(info, folder, [info.index_pieces], link=link)
        bound_files(member, 3 * PIECE_BYTES)

        with pytest.raises(TorrentDiskError, match="File too large"):
            await member.fetch(info, folder, [info.pieces], link=link)

        bound_files(member, HARD)
        await member.fetch(info, folder, [info.pieces], link=link)
        assert (await statistics_of(member, info)).complete
    assert make_torrent(folder, NAME) == info


async def test_folder_that_is_not_there_is_said(tmp_path: Path) -> None:
    info = publish(tmp_path / "published")
    (tmp_path / "fetched").write_bytes(b"a file")
    async with process_on(MEMBER) as member:
        with pytest.raises(TorrentDiskError, match="Not a directory"):
            await member.fetch(info, tmp_path / "fetched", [info.pieces])

        assert (await member.statistics()).torrents == ()
