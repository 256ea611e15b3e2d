"""Runs of the compaction one after another in one JVM, as they are told: `python -m tests.faults.kills.compactor`.

Each line on stdin is `STORE ARCHIVE RUN`, each on stdout how it went: `done ROWS`, or `failed WHY`. To be started as
the leader of a process group of its own: whoever kills it kills the JVM, too.
"""

import sys
import time
from pathlib import Path

from mailserver.errors import MailserverError
from spark_export.session import spark_session
from tests.spark_export.conftest import SETTINGS
from tests.spark_export.samples import compact_into


def main() -> None:
    """Work until stdin ends."""
    with spark_session("local[2]", SETTINGS, progress=False) as spark:
        _say("ready")
        for line in sys.stdin:
            store, archive, run = line.split()
            try:
                report = compact_into(spark, Path(archive), Path(store), now=time.time(), run=run, keep_open_day=True)
                _say(f"done {report.rows}")
            except MailserverError as error:
                _say(f"failed {error}")


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
