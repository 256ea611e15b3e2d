"""One run that makes the history archives of communities, its tasks in this process: `DATA_DIR NOW` are its arguments.

`python -m tests.faults.kills.archiver`. What Spark does is to run the tasks; all that is written besides is the same.
"""

import sys
from collections.abc import Sequence
from pathlib import Path

from mailserver.community.folder import COMMUNITIES_FOLDER
from mailserver.store.sqlite.schema import STORE_FILE
from spark_export.communities import CommunitiesRun, RangeMade, RangeTask, make_archives_by, make_range


def main(data_dir: Path, now: float) -> None:
    """Make what is due."""

    def in_order(tasks: Sequence[RangeTask]) -> list[RangeMade]:
        return [make_range(task) for task in tasks]

    config = CommunitiesRun(data_dir / COMMUNITIES_FOLDER, (data_dir / STORE_FILE,))
    make_archives_by(in_order, config, None, now=now)


if __name__ == "__main__":
    main(Path(sys.argv[1]), float(sys.argv[2]))
