"""Torrent processes on loopback: nothing is sent anywhere else."""

import asyncio
import os
import signal
from collections.abc import Callable

from mailserver.torrents.client import TorrentProcess
from mailserver.torrents.info import TorrentInfo
from mailserver.torrents.magnet import MagnetLink
from mailserver.torrents.settings import TorrentSettings
from mailserver.torrents.statistics import TorrentStatistics
from tests.waiting import DEADLINE_S, until

OWNER, MEMBER, SECOND, LIAR = "127.0.0.1", "127.0.0.2", "127.0.0.3", "127.0.0.4"


def process_on(host: str, *, port: int = 0, upload_bytes_s: int = 0, trackers: tuple[str, ...] = ()) -> TorrentProcess:
    """A process that listens on an address of loopback."""
    return TorrentProcess(
        TorrentSettings(
            listen=(host, port),
            upload_bytes_s=upload_bytes_s,
            trackers=trackers,
            metadata_timeout_s=30,
            stall_timeout_s=30,
        )
    )


def link_to(info: TorrentInfo, *peers: tuple[str, TorrentProcess]) -> MagnetLink:
    """A link with these processes as peers."""
    return MagnetLink(info.info_hash, info.name, (), tuple((host, process.port) for host, process in peers))


async def statistics_of(process: TorrentProcess, info: TorrentInfo) -> TorrentStatistics:
    """What a process says of one torrent."""
    return (await _found(process, info))[0]


async def until_shown(process: TorrentProcess, info: TorrentInfo, shown: Callable[[TorrentStatistics], bool]) -> None:
    """Wait until the statistics of a torrent show something."""
    async with asyncio.timeout(DEADLINE_S):
        while True:
            if any(map(shown, await _found(process, info))):
                return
            await asyncio.sleep(0.02)


async def _found(process: TorrentProcess, info: TorrentInfo) -> list[TorrentStatistics]:
    return [each for each in (await process.statistics()).torrents if each.info_hash == info.info_hash]


async def kill_child(process: TorrentProcess) -> None:
    """Kill the process behind the client, and wait until that has noticed."""
    restarts, process_id = process.restarts, process.process_id
    assert process_id is not None
    os.kill(process_id, signal.SIGKILL)
    await until(lambda: process.restarts > restarts)
