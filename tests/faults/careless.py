"""The mailserver with a fault built in, for tests that must find it: `python -m tests.faults.careless run ..`.

It commits with `synchronous = OFF`: nothing is on disk when it confirms.
"""

import sys
from pathlib import Path

import aiosqlite

from mailserver.cli import main
from mailserver.store import connections

_prepare = vars(connections)["_prepare"]


async def _prepare_carelessly(connection: aiosqlite.Connection, path: Path) -> None:
    await _prepare(connection, path)
    await connection.execute_fetchall("PRAGMA synchronous = OFF")


if __name__ == "__main__":
    vars(connections)["_prepare"] = _prepare_carelessly
    sys.exit(main())
