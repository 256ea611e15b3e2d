"""Torrent processes on loopback, and what a control node seeds with one."""

from dataclasses import dataclass, field
from pathlib import Path

from mailserver.torrents.client import TorrentProcess
from mailserver.torrents.info import TorrentInfo
from mailserver.torrents.magnet import MagnetLink
from mailserver.torrents.settings import TorrentSettings
from tests.community.member.publishing import Published

HASTY = TorrentSettings(listen=("127.0.0.1", 0), metadata_timeout_s=0.5, stall_timeout_s=0.5)
LOOPBACK = TorrentSettings(listen=("127.0.0.1", 0), metadata_timeout_s=10.0, stall_timeout_s=10.0)


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


def quiet(step: str, done: int, total: int | None) -> None:
    """Nobody looks at the progress."""
