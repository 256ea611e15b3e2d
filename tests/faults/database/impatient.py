"""`python -m tests.faults.database.impatient FACTOR ..`: `waku-mailserver ..` with a FACTOR of its patience.

A short form of a test cannot wait for a database for ten seconds again and again. At the factor 1, only what is done
once a minute is done more often, as in `tests.faults.watchful`.
"""

import re
import sys

import tests.faults.watchful  # noqa: F401 - it sets how often store and disk are looked at
from mailserver.commands import cli
from mailserver.history import delivery
from mailserver.store.postgres import connections, writer

if __name__ == "__main__":
    factor = float(sys.argv.pop(1))
    connections.CONNECT_TIMEOUT_S *= factor
    connections.STATEMENT_TIMEOUT_S *= factor
    connections.SESSION = re.sub(
        r"'(\d+)s'", lambda found: f"'{int(1000 * factor * int(found[1]))}ms'", connections.SESSION
    )
    writer.GROUP_TIMEOUT_S *= factor
    delivery.FIND_TIMEOUT_S *= factor
    sys.exit(cli.main())
