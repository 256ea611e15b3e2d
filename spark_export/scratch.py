"""A folder of the run's own for the temporary files of Spark, the JVM and Python: `--scratch`.

For machines where /tmp is small, and containers where nothing else can be written: no home, a read-only root. A run
that is killed leaves its folder behind; the next one finds it unlocked, and removes it.
"""

import contextlib
import os
import shlex
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from mailserver.files import open_descriptor, try_lock
from spark_export.errors import ExportError

_PREFIX = "spark-export-"
_LOCK_FILE = "lock"


@contextlib.contextmanager
def scratch_folder(parent: Path | None) -> Iterator[Path | None]:
    """Make a folder below `parent`, have temporary files written there, and remove it at the end. If `parent` is None,
    do nothing.

    Raises:
        ExportError: it cannot be made.
    """
    if parent is None:
        yield None
        return
    with contextlib.ExitStack() as stack:
        try:
            _remove_leftovers(parent)
            folder = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=parent.absolute()))
            # The JVM may be writing there when it is removed; then the next run removes the rest.
            stack.callback(shutil.rmtree, folder, ignore_errors=True)
            try_lock(stack.enter_context(open_descriptor(folder / _LOCK_FILE, os.O_RDWR | os.O_CREAT)))
        except OSError as error:
            raise ExportError(f"cannot write to the scratch folder {parent}: {error.strerror or error}") from error
        _lead_to(folder)
        yield folder


def java_options(folder: Path, settings: Mapping[str, str]) -> str:
    """The Java options for a scratch folder, followed by those of the caller's settings."""
    # java.io.tmpdir: the native libraries of zstd and snappy are unpacked there. user.home: for a user without an entry
    # in passwd, it would be "?", a folder in the working directory.
    ours = f"-Djava.io.tmpdir={shlex.quote(str(folder))} -Duser.home={shlex.quote(str(folder))} -XX:-UsePerfData"
    return f"{ours} {settings.get('spark.driver.extraJavaOptions', '')}".strip()


def _lead_to(folder: Path) -> None:
    # Spark's own folders, whatever its configuration says; the temporary files of Python, here and in its workers.
    for name in ("SPARK_LOCAL_DIRS", "TMPDIR"):
        os.environ[name] = str(folder)
    tempfile.tempdir = None  # Python looks it up again


def _remove_leftovers(parent: Path) -> None:
    for folder in parent.glob(f"{_PREFIX}*"):
        try:
            if folder.lstat().st_uid != os.getuid():
                continue
            with open_descriptor(folder / _LOCK_FILE, os.O_RDWR) as descriptor:
                if try_lock(descriptor):
                    shutil.rmtree(folder, ignore_errors=True)  # it follows no link
        except (FileNotFoundError, NotADirectoryError):  # being made or removed just now, or not one of ours
            continue
