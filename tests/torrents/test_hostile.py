"""Links, peers and torrents that are not what they should be: typed errors, and nothing is believed."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Coroutine
from pathlib import Path
from typing import Any

import pytest

from mailserver.torrents import bencode
from mailserver.torrents.errors import (
    FetchStalled,
    StaleLink,
    TorrentError,
    TorrentRefusal,
    TorrentRefused,
    WrongPieces,
)
from mailserver.torrents.info import HASH_BYTES, MAX_INFO_BYTES, PIECE_BYTES, TorrentInfo
from mailserver.torrents.magnet import MagnetLink
from mailserver.torrents.making import make_torrent
from tests.torrents.folders import NAME, publish
from tests.torrents.processes import LIAR, MEMBER, OWNER, link_to, process_on, statistics_of, until_shown
from tests.torrents.raw_seed import RawSeed, liar, silent
from tests.waiting import until

pytestmark = pytest.mark.integration

SHORT_S = 1.0


@pytest.fixture
def published(tmp_path: Path) -> Path:
    return tmp_path / "published"


@pytest.fixture
def fetched(tmp_path: Path) -> Path:
    folder = tmp_path / "fetched"
    folder.mkdir()
    return folder


@contextlib.asynccontextmanager
async def under_way(request: Coroutine[Any, Any, object]) -> AsyncIterator[None]:
    """Have a request wait while another one like it, with a short time, is made; that has nothing to wait for."""
    waiting = asyncio.create_task(request)
    try:
        yield
        assert not waiting.done()
    finally:
        waiting.cancel()
        await asyncio.wait([waiting])


def with_files(**changes: bencode.Value) -> bytes:
    """An info dictionary that differs in some keys from that of a community."""
    files: list[bencode.Value] = [
        {b"length": PIECE_BYTES, b"path": [b"data"]},
        {b"length": 10, b"path": [b"index"]},
    ]
    info: dict[bytes, bencode.Value] = {
        b"files": files,
        b"name": NAME.encode(),
        b"piece length": PIECE_BYTES,
        b"pieces": bytes(40),
    }
    return bencode.encode(info | {key.replace("_", " ").encode(): value for key, value in changes.items()})


async def test_link_that_nobody_has_is_stale(published: Path) -> None:
    info = publish(published)
    async with process_on(OWNER) as owner, process_on(MEMBER) as member:
        link = link_to(info, (OWNER, owner))

        with pytest.raises(StaleLink, match=f"no metadata of torrent {info.info_hash.hex()} in 1 s") as stale:
            await member.metadata(link, SHORT_S)

        assert (stale.value.info_hash, stale.value.waited_s) == (info.info_hash, SHORT_S)
        assert (await member.statistics()).torrents == ()
        await owner.seed(info, published)
        assert await member.metadata(link) == info


async def test_peer_that_sends_nothing_is_a_dead_seed(published: Path, fetched: Path) -> None:
    info = publish(published)
    dead = RawSeed(info.info_hash, len(info.pieces), silent, info.info)
    async with process_on(MEMBER) as member, dead.dialling(member.port, MEMBER, LIAR):
        assert await member.metadata(MagnetLink(info.info_hash)) == info

        async with under_way(member.fetch(info, fetched, [range(3)])):
            await until(lambda: bool(dead.requested))
            with pytest.raises(FetchStalled, match="came for 1 s, 3 are missing") as stalled:
                await member.fetch(info, fetched, [range(3)], stall_s=SHORT_S)

        assert type(stalled.value) is FetchStalled
        assert (stalled.value.info_hash, stalled.value.missing) == (info.info_hash, 3)
        assert set(dead.requested) <= {0, 1, 2}


async def test_owner_wins_over_a_dead_seed(published: Path, fetched: Path) -> None:
    info = publish(published)
    dead = RawSeed(info.info_hash, len(info.pieces), silent)
    async with (
        process_on(OWNER) as owner,
        process_on(MEMBER) as member,
        dead.dialling(member.port, MEMBER, LIAR),
    ):
        with pytest.raises(FetchStalled):
            await member.fetch(info, fetched, [info.pieces], stall_s=SHORT_S)
        await owner.seed(info, published)

        await member.fetch(info, fetched, [info.pieces], link=link_to(info, (OWNER, owner)))

    assert make_torrent(fetched, NAME) == info


async def test_wrong_pieces_are_not_taken(published: Path, fetched: Path) -> None:
    info = publish(published)
    false = liar(info)
    async with (
        process_on(OWNER) as owner,
        process_on(MEMBER) as member,
        false.dialling(member.port, MEMBER, LIAR),
    ):
        async with under_way(member.fetch(info, fetched, [range(2)])):
            await until_shown(member, info, lambda shown: shown.wrong_bytes >= PIECE_BYTES)
            with pytest.raises(WrongPieces, match="2 are missing, and wrong ones came"):
                await member.fetch(info, fetched, [range(2)], stall_s=SHORT_S)

        found = await statistics_of(member, info)
        await owner.seed(info, published)
        await member.fetch(info, fetched, [range(2)], link=link_to(info, (OWNER, owner)))
    assert found.held == 0
    assert len(false.requested) < 100  # it is banned, and dials for nothing


async def test_owner_wins_over_a_liar(published: Path, fetched: Path) -> None:
    info = publish(published)
    false = liar(info)
    async with (
        process_on(OWNER, upload_bytes_s=1_000_000) as owner,
        process_on(MEMBER) as member,
        false.dialling(member.port, MEMBER, LIAR),
    ):
        await owner.seed(info, published)
        await member.fetch(info, fetched, [info.pieces], link=link_to(info, (OWNER, owner)))

    assert make_torrent(fetched, NAME) == info
    assert false.requested


@pytest.mark.parametrize(
    ("info", "refusal"),
    [
        (with_files(files=[{b"length": 9, b"path": [b"..", b"..", b"data"]}], pieces=bytes(20)), TorrentRefusal.FILES),
        (
            with_files(files=[{b"length": 0, b"path": [b"empty"]}, {b"length": 9, b"path": [b"x"]}], pieces=bytes(20)),
            TorrentRefusal.FILES,
        ),
        (with_files(piece_length=16_384, pieces=bytes(140)), TorrentRefusal.PIECE_LENGTH),
        (with_files(name=b"../../escaped"), TorrentRefusal.NAME),
        (with_files(pieces=bytes(20)), TorrentRefusal.MALFORMED),
        (with_files(private=1, **{"root hash": bytes(20)}), TorrentRefusal.MALFORMED),
    ],
    ids=["paths", "empty file", "piece length", "name", "pieces", "key"],
)
async def test_other_torrents_are_refused_and_nothing_is_written(
    info: bytes, refusal: TorrentRefusal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    info_hash = _info_hash(info)
    seed = RawSeed(info_hash, 2, silent, info)
    async with process_on(MEMBER) as member, seed.dialling(member.port, MEMBER, LIAR):
        with pytest.raises(TorrentRefused) as refused:
            await member.metadata(MagnetLink(info_hash))

        assert (await member.statistics()).torrents == ()
    assert refused.value.refusal is refusal
    assert _files(tmp_path) == []


def history_of(pieces: int) -> bytes:
    """The info dictionary of a history with so many pieces."""
    files: list[bencode.Value] = [
        {b"length": (pieces - 1) * PIECE_BYTES, b"path": [b"data"]},
        {b"length": 10, b"path": [b"index"]},
    ]
    return with_files(files=files, pieces=bytes(pieces * HASH_BYTES))


async def test_metadata_that_has_outgrown_the_bound_is_refused() -> None:
    info = history_of(MAX_INFO_BYTES // HASH_BYTES)
    seed = RawSeed(_info_hash(info), 2, silent, info)
    async with process_on(MEMBER) as member, seed.dialling(member.port, MEMBER, LIAR):
        with pytest.raises(TorrentRefused) as refused:
            await member.metadata(MagnetLink(_info_hash(info)))

    assert refused.value.refusal is TorrentRefusal.TOO_LARGE


async def test_giant_metadata_is_not_taken() -> None:
    info = history_of(4 * MAX_INFO_BYTES // HASH_BYTES)
    seed = RawSeed(_info_hash(info), 2, silent, info)
    async with process_on(MEMBER) as member, seed.dialling(member.port, MEMBER, LIAR):
        with pytest.raises(StaleLink):
            await member.metadata(MagnetLink(_info_hash(info)), 2 * SHORT_S)

    assert set(seed.metadata_parts) <= {0}


async def test_metadata_with_another_hash_is_not_believed(published: Path) -> None:
    info = publish(published)
    seed = RawSeed(info.info_hash, len(info.pieces), silent, with_files())
    async with (
        process_on(MEMBER) as member,
        seed.dialling(member.port, MEMBER, LIAR),
        under_way(member.metadata(link_to(info))),
    ):
        await until(lambda: bool(seed.metadata_parts))
        with pytest.raises(StaleLink):
            await member.metadata(link_to(info), SHORT_S)


async def test_peers_learn_the_name_of_the_library_only(published: Path) -> None:
    info = publish(published)
    seed = RawSeed(info.info_hash, len(info.pieces), silent, info.info)
    async with process_on(MEMBER) as member, seed.dialling(member.port, MEMBER, LIAR):
        await member.metadata(link_to(info))

    assert seed.hello[48:51] == b"-LT"
    assert isinstance(seed.extensions, dict)
    assert b"v" not in seed.extensions
    assert b"waku" not in bencode.encode(seed.extensions).lower()


async def test_fetch_that_is_cancelled_wants_nothing_more(published: Path, fetched: Path) -> None:
    info = publish(published)
    async with process_on(OWNER) as owner, process_on(MEMBER) as member:
        fetching = asyncio.create_task(member.fetch(info, fetched, [info.pieces]))
        await member.statistics()
        fetching.cancel()
        with pytest.raises(asyncio.CancelledError):
            await fetching
        await owner.seed(info, published)

        await member.fetch(info, fetched, [range(1)], link=link_to(info, (OWNER, owner)))

        assert (await statistics_of(member, info)).held == 1


async def test_request_that_libtorrent_cannot_take_ends_nothing(published: Path, fetched: Path) -> None:
    info = publish(published)
    impossible = MagnetLink(info.info_hash, info.name, (), ((OWNER, 1 << 20),))
    async with process_on(OWNER) as owner, process_on(MEMBER) as member:
        await owner.seed(info, published)

        with pytest.raises(TorrentError, match="the torrent process failed: OverflowError"):
            await member.metadata(impossible)
        with pytest.raises(TorrentError, match="the torrent process failed: OverflowError"):
            await member.fetch(info, fetched, [range(1)], link=impossible)
        await member.fetch(info, fetched, [range(1)], link=link_to(info, (OWNER, owner)))
        with pytest.raises(TorrentError, match="the torrent process failed: OverflowError"):
            await member.fetch(info, fetched, [range(2)], link=impossible)
        await member.fetch(info, fetched, [range(2)], link=link_to(info, (OWNER, owner)))

        assert (await statistics_of(member, info)).held == 2
        assert member.restarts == 0


def _files(folder: Path) -> list[Path]:
    return list(folder.iterdir())


def _info_hash(info: bytes) -> bytes:
    return TorrentInfo(info, "", 0, 0, b"").info_hash
