"""A service that does nothing but fetch a whole torrent, to be killed: `python -m tests.torrents.fetching FOLDER LINK`.

It prints the id of its torrent process, then how many pieces are missing, whenever that has changed.
"""

import asyncio
import os
import sys
from pathlib import Path

from mailserver.torrents.magnet import MagnetLink
from tests.torrents.processes import MEMBER, process_on


def say(number: int | None) -> None:
    """Print a line, whole and at once."""
    os.write(1, f"{number}\n".encode())


async def fetch(folder: Path, link: MagnetLink) -> None:
    """Fetch all of it."""
    async with process_on(MEMBER) as process:
        info = await process.metadata(link)
        say(process.process_id)
        await process.fetch(info, folder, [info.pieces], link=link, on_progress=lambda each: say(each.missing))


if __name__ == "__main__":
    asyncio.run(fetch(Path(sys.argv[1]), MagnetLink.decode(sys.argv[2])))
