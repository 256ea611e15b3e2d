"""Peers are found by a tracker, if there is one; nothing else is asked."""

import socket
from pathlib import Path

import pytest

from mailserver.torrents.client import TorrentProcess
from mailserver.torrents.errors import StaleLink
from mailserver.torrents.magnet import MagnetLink
from mailserver.torrents.making import make_torrent
from mailserver.torrents.settings import TorrentSettings
from tests.torrents.folders import NAME, publish
from tests.torrents.processes import MEMBER, OWNER, process_on
from tests.torrents.tracker import Tracker
from tests.waiting import until

pytestmark = pytest.mark.integration


@pytest.fixture
def published(tmp_path: Path) -> Path:
    return tmp_path / "published"


@pytest.fixture
def fetched(tmp_path: Path) -> Path:
    folder = tmp_path / "fetched"
    folder.mkdir()
    return folder


async def test_member_finds_the_owner_by_the_tracker_of_the_link(published: Path, fetched: Path) -> None:
    info = publish(published)
    async with Tracker().running("127.0.0.1") as tracker:
        async with process_on(OWNER, trackers=(tracker.url,)) as owner, process_on(MEMBER) as member:
            await owner.seed(info, published)
            await until(lambda: bool(tracker.requests))

            link = MagnetLink.decode(MagnetLink(info.info_hash, NAME, (tracker.url,)).encode())
            assert await member.metadata(link) == info
            await member.fetch(info, fetched, [info.pieces], link=link)

        assert "stopped" in tracker.events
    assert make_torrent(fetched, NAME) == info
    for request in tracker.requests:
        assert b"waku" not in request.lower()
        assert b"User-Agent: curl/" in request  # what libtorrent says in anonymous mode


async def test_trackers_of_links_are_left_alone_if_the_settings_say_so() -> None:
    async with Tracker().running("127.0.0.1") as tracker:
        settings = TorrentSettings(listen=(MEMBER, 0), link_trackers=False, metadata_timeout_s=1.0)
        async with TorrentProcess(settings) as member:
            with pytest.raises(StaleLink):
                await member.metadata(MagnetLink(bytes(range(20)), "", (tracker.url,)))

    assert tracker.requests == []


async def test_process_opens_no_port_but_its_own(published: Path) -> None:
    info = publish(published)
    async with process_on(OWNER) as owner:
        await owner.seed(info, published)

        assert owner.process_id is not None
        ports = _ports(owner.process_id)

    assert ports == {("tcp", OWNER, owner.port), ("udp", OWNER, owner.port)}


def _ports(process_id: int) -> set[tuple[str, str, int]]:
    """Where the sockets of a process are that listen, or take datagrams."""
    inodes = {
        target.removeprefix("socket:[").removesuffix("]")
        for each in Path(f"/proc/{process_id}/fd").iterdir()
        if (target := str(each.readlink())).startswith("socket:[")
    }
    found = set()
    for protocol in ("tcp", "udp", "tcp6", "udp6"):
        for line in Path(f"/proc/net/{protocol}").read_text("ascii").splitlines()[1:]:
            fields = line.split()
            if fields[9] in inodes and fields[3] in {"0A", "07"}:  # LISTEN, and what UDP has
                address, port = fields[1].split(":")
                found.add((protocol, socket.inet_ntoa(bytes.fromhex(address)[::-1]), int(port, 16)))
    return found
