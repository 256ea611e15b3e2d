"""A nightly run that kills itself and its JVM: `python -m tests.spark_export.killed_run STORE ARCHIVE RUN POINT`.

To be started as the leader of a process group of its own. POINT: "writing", as soon as a task has a file in the staging
directory; else a method of the storage, before its second call. ARCHIVE: a folder, or a URL of S3.
"""

import itertools
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

from mailserver.archive.access.places import is_on_s3
from spark_export import compact as compact_module
from spark_export.s3_storage import S3Storage
from spark_export.session import spark_session
from spark_export.storage import LocalStorage
from tests.spark_export.conftest import SETTINGS
from tests.spark_export.samples import compact_into


def _die() -> None:
    os.killpg(0, signal.SIGKILL)


def _die_while_writing(archive: Path) -> None:
    write = compact_module.__dict__["write_pieces"]

    def watch() -> None:
        while not any(file.is_file() for file in archive.glob("_staging/**/*.parquet")):
            time.sleep(0.001)
        _die()

    def write_pieces(*args: Any) -> Any:
        threading.Thread(target=watch, daemon=True).start()
        return write(*args)

    vars(compact_module)["write_pieces"] = write_pieces


def _die_before_second(storage: type, method: str) -> None:
    calls = itertools.count(1)
    real = getattr(storage, method)

    def dying(*args: Any) -> Any:
        if next(calls) == 2:
            _die()
        return real(*args)

    setattr(storage, method, dying)


if __name__ == "__main__":
    store, archive, run, point = Path(sys.argv[1]), sys.argv[2], sys.argv[3], sys.argv[4]
    if point == "writing":
        _die_while_writing(Path(archive))
    else:
        _die_before_second(S3Storage if is_on_s3(archive) else LocalStorage, point)
    with spark_session("local[2]", SETTINGS, progress=False) as spark:
        compact_into(spark, archive, store, run=run)
