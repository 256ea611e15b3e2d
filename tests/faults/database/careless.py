"""The mailserver with a fault built in, for tests that must find it: `python -m tests.faults.database.careless run ..`.

It leaves it to the server whether a commit is on disk before it is confirmed.
"""

import sys

import tests.faults.watchful  # noqa: F401 - it sets how often store and disk are looked at
from mailserver.commands.cli import main
from mailserver.store.postgres import connections

if __name__ == "__main__":
    assert "SET synchronous_commit = on;" in connections.SESSION
    connections.SESSION = connections.SESSION.replace("SET synchronous_commit = on;", "")
    sys.exit(main())
