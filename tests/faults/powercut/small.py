"""The mailserver with limits that a short run reaches: `python -m tests.faults.powercut.small run ...`.

Only limits are others. Connections are the mailserver's own: what SQLite is told to sync is what is tested here.
"""

import sys

from mailserver.commands.cli import main
from mailserver.store.sqlite import connections, deletion, log_bound
from mailserver.store.sqlite.schema import PAGE_BYTES
from mailserver.upkeep import pruning

CHECKPOINT_BYTES = 48 * PAGE_BYTES
"""SQLite begins a checkpoint when its WAL has 768 kB; 64 MB in the mailserver."""

MAX_WAL_BYTES = 1024 * 1024
WAL_LIMIT_BYTES = 512 * 1024
WAL_STEP_BYTES = 256 * 1024
RESERVE_PAGES = 16
VACUUM_PAGES = 4
PRUNING_S = 0.3


def shrink() -> None:
    """Make all limits small."""
    vars(log_bound).update(MAX_WAL_BYTES=MAX_WAL_BYTES, WAL_STEP_BYTES=WAL_STEP_BYTES)
    vars(connections).update(WAL_LIMIT_BYTES=WAL_LIMIT_BYTES, CHECKPOINT_BYTES=CHECKPOINT_BYTES)
    vars(deletion).update(RESERVE_PAGES=RESERVE_PAGES, VACUUM_PAGES=VACUUM_PAGES)
    vars(pruning).update(FIRST_ROUND_S=PRUNING_S, ROUND_INTERVAL_S=PRUNING_S)


if __name__ == "__main__":
    shrink()
    sys.exit(main())
