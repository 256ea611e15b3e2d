"""Nights of one store: `python -m tests.faults.powercut.archiving STORE ARCHIVE`. The store has the rows of FIRST.

What is archived is pruned, late rows come, days are replaced, and merged into a month. What goes into the store is told
on standard output, when it is there.
"""

import sys
from pathlib import Path

from mailserver.store.sqlite.handoff import read_archived
from spark_export.merge import merge
from spark_export.session import spark_session
from tests.spark_export.conftest import SETTINGS
from tests.spark_export.samples import DAY, DAY_S, compact_into, envelopes, prune, put

FIRST = [*envelopes(40, day=DAY), *envelopes(40, day=DAY + 1, first=100)]
LATE = [*envelopes(20, day=DAY, first=200), *envelopes(40, day=DAY + 2, first=300)]
TOLD = "late rows are stored"

LONG_AFTER = (DAY + 60) * DAY_S


def main(store: Path, archive: Path) -> None:
    """All nights, in one Spark."""
    with spark_session("local[2]", SETTINGS, progress=False) as spark:
        compact_into(spark, archive, store, run="first")
        _prune(store)
        put(store, LATE)
        sys.stdout.write(f"{TOLD}\n")
        sys.stdout.flush()
        compact_into(spark, archive, store, run="second")
        _prune(store)
        merge(spark, str(archive), now=LONG_AFTER, run="merge")


def _prune(store: Path) -> None:
    handover = read_archived(store)
    assert handover is not None
    assert prune(store, before=LONG_AFTER, archived=handover.days) > 0


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
