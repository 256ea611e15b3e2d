"""Owner and members, each a torrent process, on loopback: everything that goes right."""

import asyncio
import os
from collections import Counter
from pathlib import Path

import pytest

from mailserver.errors import LocalProtocolError
from mailserver.torrents.client import FetchProgress, TorrentProcess
from mailserver.torrents.errors import TorrentDiskError, TorrentSuperseded
from mailserver.torrents.info import BLOCKS_PER_PIECE, PIECE_BYTES, TorrentInfo
from mailserver.torrents.magnet import MagnetLink
from mailserver.torrents.making import make_torrent
from tests.torrents.folders import NAME, content, grow, publish
from tests.torrents.processes import MEMBER, OWNER, SECOND, link_to, process_on, statistics_of, until_shown
from tests.waiting import DEADLINE_S

pytestmark = pytest.mark.integration


@pytest.fixture
def published(tmp_path: Path) -> Path:
    return tmp_path / "published"


@pytest.fixture
def fetched(tmp_path: Path) -> Path:
    folder = tmp_path / "fetched"
    folder.mkdir()
    return folder


def piece_of(folder: Path, piece: int) -> bytes:
    with (folder / "data").open("rb") as data:
        return os.pread(data.fileno(), PIECE_BYTES, piece * PIECE_BYTES)


async def sent_until(process: TorrentProcess, info: TorrentInfo, piece: int) -> dict[int, int]:
    """What was sent, once all of a piece was: libtorrent tells of it a moment later."""
    sent = Counter[int]()
    async with asyncio.timeout(DEADLINE_S):
        while sent[piece] < BLOCKS_PER_PIECE:
            sent.update(await process.sent(info.info_hash))
            await asyncio.sleep(0.01)
    return dict(sent)


async def test_member_has_metadata_then_index_then_chosen_pieces(published: Path, fetched: Path) -> None:
    info = publish(published)
    progress: list[FetchProgress] = []
    async with process_on(OWNER) as owner, process_on(MEMBER) as member:
        await owner.seed(info, published)
        link = MagnetLink.decode(link_to(info, (OWNER, owner)).encode())

        found = await member.metadata(link)
        assert found == info
        await member.fetch(found, fetched, [found.index_pieces], link=link)
        assert (fetched / "index").read_bytes() == (published / "index").read_bytes()
        assert not (fetched / "data").exists()
        await member.fetch(found, fetched, [range(2, 4), range(7, 8)], link=link, on_progress=progress.append)

        for piece in (2, 3, 7):
            assert piece_of(fetched, piece) == piece_of(published, piece)
        for piece in (0, 1, 4, 5, 6, 8, 9):
            assert piece_of(fetched, piece) == bytes(PIECE_BYTES)
        of_owner, of_member = await statistics_of(owner, info), await statistics_of(member, info)
        sent, again = await sent_until(owner, info, 7), await owner.sent(info.info_hash)
        of_nobody = await member.sent(info.info_hash)
    of_data = {piece: blocks for piece, blocks in sent.items() if piece in info.data_pieces}
    assert of_data == dict.fromkeys((2, 3, 7), BLOCKS_PER_PIECE)
    assert again == of_nobody == {}
    assert progress[0] == FetchProgress(3, 3, 0)
    assert (of_owner.complete, of_owner.held, of_member.complete, of_member.held) == (True, 14, False, 5)
    assert of_owner.uploaded_bytes == of_member.downloaded_bytes == info.index_bytes + 3 * PIECE_BYTES
    assert of_member.wrong_bytes == 0


async def test_second_member_has_it_from_the_first_while_the_owner_is_away(published: Path, tmp_path: Path) -> None:
    info = publish(published)
    first, second = tmp_path / "first", tmp_path / "second"
    first.mkdir()
    second.mkdir()
    async with process_on(MEMBER) as member:
        async with process_on(OWNER) as owner:
            await owner.seed(info, published)
            await member.fetch(info, first, [info.pieces], link=link_to(info, (OWNER, owner)))
            link = link_to(info, (OWNER, owner), (MEMBER, member))
        async with process_on(SECOND) as other:
            assert await other.metadata(link) == info
            await other.fetch(info, second, [info.index_pieces, range(1, 3)], link=link)

            assert piece_of(second, 2) == piece_of(published, 2)
            assert (await statistics_of(member, info)).uploaded_bytes == info.index_bytes + 2 * PIECE_BYTES


async def test_members_get_from_each_other_what_only_one_of_them_has(published: Path, tmp_path: Path) -> None:
    info = publish(published)
    folders = [tmp_path / "first", tmp_path / "second"]
    for folder in folders:
        folder.mkdir()
    async with process_on(MEMBER) as first, process_on(SECOND) as second:
        async with process_on(OWNER) as owner:
            await owner.seed(info, published)
            link = link_to(info, (OWNER, owner))
            await first.fetch(info, folders[0], [range(6)], link=link)
            await second.fetch(info, folders[1], [range(6, 14)], link=link)

        link = link_to(info, (MEMBER, first), (SECOND, second))
        await asyncio.gather(
            first.fetch(info, folders[0], [info.pieces], link=link),
            second.fetch(info, folders[1], [info.pieces], link=link),
        )

    for folder in folders:
        assert make_torrent(folder, NAME) == info


async def test_data_grows_while_the_torrent_before_is_seeded(published: Path, fetched: Path) -> None:
    before = publish(published)
    async with process_on(OWNER) as owner, process_on(MEMBER) as member:
        await owner.seed(before, published)
        link = link_to(before, (OWNER, owner))
        await member.fetch(before, fetched, [range(3)], link=link)
        grow(published, 4)

        await member.fetch(before, fetched, [range(5)], link=link)

        assert piece_of(fetched, 4) == piece_of(published, 4)
        assert (published / "data").stat().st_size == before.data_bytes + 4 * PIECE_BYTES


async def test_torrent_is_seeded_though_data_has_grown_before(published: Path, fetched: Path) -> None:
    before = publish(published)
    grow(published, 4)
    async with process_on(OWNER) as owner, process_on(MEMBER) as member:
        await owner.seed(before, published)

        await member.fetch(before, fetched, [before.pieces], link=link_to(before, (OWNER, owner)))

        assert (await statistics_of(owner, before)).complete
    assert make_torrent(fetched, NAME) == before
    assert (published / "data").stat().st_size == before.data_bytes + 4 * PIECE_BYTES


async def test_next_torrent_takes_the_place_and_nothing_is_fetched_twice(published: Path, fetched: Path) -> None:
    before = publish(published)
    async with process_on(OWNER) as owner, process_on(MEMBER) as member:
        await owner.seed(before, published)
        await member.fetch(before, fetched, [before.pieces], link=link_to(before, (OWNER, owner)))
        grow(published, 3)
        (published / "index.next").write_bytes(content(170_000))

        await owner.drop(before.info_hash)
        (published / "index.next").rename(published / "index")
        after = make_torrent(published, NAME, before)
        await owner.seed(after, published)
        await member.drop(before.info_hash)
        await member.fetch(after, fetched, [after.pieces], link=link_to(after, (OWNER, owner)))

        (of_owner,) = (await owner.statistics()).torrents
        (of_member,) = (await member.statistics()).torrents
    assert of_owner.info_hash == of_member.info_hash == after.info_hash
    assert of_owner.complete
    assert of_member.complete
    assert of_member.downloaded_bytes == of_owner.uploaded_bytes == 3 * PIECE_BYTES + after.index_bytes
    assert make_torrent(fetched, NAME) == after


async def test_torrent_with_a_shorter_index_takes_the_place(published: Path, fetched: Path) -> None:
    before = publish(published)
    async with process_on(OWNER) as owner, process_on(MEMBER) as member:
        await owner.seed(before, published)
        await member.fetch(before, fetched, [before.pieces], link=link_to(before, (OWNER, owner)))
        await owner.drop(before.info_hash)
        await member.drop(before.info_hash)

        after = publish(published, pieces=10, index_bytes=30_000, seed=5)
        await owner.seed(after, published)
        await member.fetch(after, fetched, [after.pieces], link=link_to(after, (OWNER, owner)))

        assert (fetched / "index").read_bytes() == (published / "index").read_bytes()
        assert (fetched / "data").read_bytes()[: after.data_bytes] == (published / "data").read_bytes()


async def test_owner_that_comes_late_is_found(published: Path, fetched: Path) -> None:
    info = publish(published)
    async with process_on(MEMBER) as member:
        async with process_on(OWNER) as owner:
            link = link_to(info, (OWNER, owner))
            port = owner.port
        begun = asyncio.Event()
        fetching = asyncio.create_task(
            member.fetch(info, fetched, [range(2)], link=link, on_progress=lambda _: begun.set())
        )
        await begun.wait()
        async with process_on(OWNER, port=port) as owner:
            await owner.seed(info, published)
            await fetching

    assert piece_of(fetched, 1) == piece_of(published, 1)


async def test_upload_bound_is_kept(published: Path, fetched: Path) -> None:
    info = publish(published, pieces=20)
    bound = 1_000_000
    async with process_on(OWNER, upload_bytes_s=bound) as owner, process_on(MEMBER) as member:
        await owner.seed(info, published)
        began = asyncio.get_running_loop().time()

        await member.fetch(info, fetched, [info.data_pieces], link=link_to(info, (OWNER, owner)))

        took_s = asyncio.get_running_loop().time() - began
    assert info.data_bytes / took_s < bound * 1.2


async def test_files_that_are_not_the_torrents_are_not_seeded(published: Path) -> None:
    info = publish(published)
    async with process_on(OWNER) as owner:
        for name, change in (("data", -1), ("index", -1), ("index", 1)):
            size = (published / name).stat().st_size
            os.truncate(published / name, size + change)
            with pytest.raises(TorrentDiskError, match=f"{name} has {size + change} bytes, and the torrent {size}"):
                await owner.seed(info, published)
            os.truncate(published / name, size)
        (published / "index").unlink()
        with pytest.raises(TorrentDiskError, match="No such file"):
            await owner.seed(info, published)

        assert (await owner.statistics()).torrents == ()


async def test_damage_of_what_is_seeded_is_not_sent_and_is_noticed(published: Path, fetched: Path) -> None:
    info = publish(published)
    with (published / "data").open("r+b") as data:
        data.write(b"damaged")
    damaged = (published / "data").read_bytes()
    async with process_on(OWNER) as owner, process_on(MEMBER) as member:
        await owner.seed(info, published)
        fetching = asyncio.create_task(member.fetch(info, fetched, [range(1)], link=link_to(info, (OWNER, owner))))
        await until_shown(owner, info, lambda shown: not shown.complete)
        await member.drop(info.info_hash)
        with pytest.raises(TorrentSuperseded):
            await fetching

    assert (published / "data").read_bytes() == damaged


async def test_folder_has_one_torrent_and_torrent_one_folder(published: Path, fetched: Path, tmp_path: Path) -> None:
    info, other = publish(published), publish(tmp_path / "other", seed=9)
    async with process_on(OWNER) as owner:
        await owner.seed(info, published)
        await owner.seed(info, published)

        with pytest.raises(LocalProtocolError, match="has to be dropped first"):
            await owner.seed(other, published)
        with pytest.raises(LocalProtocolError, match="has to be dropped first"):
            await owner.seed(info, tmp_path / "other")
        with pytest.raises(LocalProtocolError, match="has to be dropped first"):
            await owner.fetch(info, published, [info.pieces])
        await owner.drop(info.info_hash)
        await owner.drop(info.info_hash)
        await owner.fetch(info, published, [info.pieces])


async def test_metadata_of_what_is_here_is_known(published: Path) -> None:
    info = publish(published)
    async with process_on(OWNER) as owner:
        await owner.seed(info, published)

        assert await owner.metadata(MagnetLink(info.info_hash), timeout_s=0.001) == info
