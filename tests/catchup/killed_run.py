"""Catches up once in a process of its own, which a test kills: FOLDER ENODE SINCE UNTIL are its arguments.

It saves its progress all the time, so that every state of the file is met.
"""

import sys
from pathlib import Path

import uvloop

from mailserver.catchup import catchup
from mailserver.catchup.command import run_once
from mailserver.codec.keys import Enode
from mailserver.store.sqlite.schema import STORE_FILE
from mailserver.store.sqlite.store import open_store
from tests.catchup.servers import settings_for
from tests.mailservers import Clock


async def main(folder: Path, source: Enode, since: int, until: int) -> None:
    """Catch up, and say so."""
    catchup.SAVE_INTERVAL_S = 0.001
    async with open_store(folder / STORE_FILE) as store:
        ended = await run_once(store, folder, settings_for(source), since, until, clock=Clock())
    sys.stdout.write(f"{ended[0].state.value}\n")


if __name__ == "__main__":
    uvloop.run(main(Path(sys.argv[1]), Enode.parse(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])))
