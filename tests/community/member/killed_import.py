"""Imports in a process of its own, which ends itself amidst the transaction: FOLDER is its argument.

It kills itself when it is asked for the second archive, so the first one has been put already.
"""

import asyncio
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from mailserver.community.member.choice import downloaded_ranges
from mailserver.community.member.downloads import Downloads
from mailserver.community.member.history import open_history
from mailserver.community.member.importing import Loader
from mailserver.community.member.records import Content, HistoryMessage
from mailserver.community.member.schema import HISTORY_FILE
from tests.community.member.publishing import NETWORK_TOPIC
from tests.community.member.worlds import NOW


async def main(folder: Path) -> None:
    async with open_history(folder / HISTORY_FILE) as history:
        known = {archive.content: archive for archive in (await history.known()).archives}
        loader = Loader(Downloads(folder / "downloads"), known, NETWORK_TOPIC)
        loaded: list[Content] = []

        def load(content: Content) -> Sequence[HistoryMessage]:
            if loaded:
                os.kill(os.getpid(), signal.SIGKILL)
            loaded.append(content)
            return loader.load(content)

        for time_range, archives in downloaded_ranges([*known.values()]).items():
            await history.replace(time_range, [archive.content for archive in archives], load, NOW)


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))
