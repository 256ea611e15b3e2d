"""The mailserver with a fault built in, for tests that must find it: `python -m tests.faults.careless run ..`.

It commits with `synchronous = OFF`: nothing is on disk when it confirms.
"""

import sqlite3
import sys
from pathlib import Path

from mailserver.commands.cli import main
from mailserver.store.sqlite import connections

_prepare = vars(connections)["_prepare"]


def _prepare_carelessly(connection: sqlite3.Connection, path: Path) -> None:
    _prepare(connection, path)
    connection.execute("PRAGMA synchronous = OFF")


if __name__ == "__main__":
    vars(connections)["_prepare"] = _prepare_carelessly
    sys.exit(main())
