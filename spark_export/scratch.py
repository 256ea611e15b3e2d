"""A folder of a run's own for all that Spark, the JVM and Python write on the way: `--scratch`.

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
    """Make a folder below `parent`, have everything written there, remove it at the end. None for none.

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
            # The JVM may be writing there when it is removed; then the next run does it.
            stack.callback(shutil.rmtree, folder, ignore_errors=True)
            try_lock(stack.enter_context(open_descriptor(folder / _LOCK_FILE, os.O_RDWR | os.O_CREAT)))
        except OSError as error:
            raise ExportError(f"cannot write to the scratch folder {parent}: {error.strerror or error}") from error
        _lead_to(folder)
        yield folder


def java_options(folder: Path, settings: Mapping[str, str]) -> str:
    """What a JVM is to be told for a scratch folder, before what the caller's settings have for it."""
    # java.io.tmpdir: the native libraries of zstd and snappy are unpacked there. user.home: of a user without an entry
    # in passwd it is "?", a folder beside the program.
    ours = f"-Djava.io.tmpdir={shlex.quote(str(folder))} -Duser.home={shlex.quote(str(folder))} -XX:-UsePerfData"
    return f"{ours} {settings.get('spark.driver.extraJavaOptions', '')}".strip()


def _lead_to(folder: Path) -> None:
    # Spark's own folders, whatever its configuration says; the temporary files of Python here and in its workers;
    # the font cache of `report`.
    for name in ("SPARK_LOCAL_DIRS", "TMPDIR", "MPLCONFIGDIR"):
        os.environ[name] = str(folder)
    tempfile.tempdir = None  # asked for anew


def _remove_leftovers(parent: Path) -> None:
    for folder in parent.glob(f"{_PREFIX}*"):
        try:
            if folder.lstat().st_uid != os.getuid():
                continue
            with open_descriptor(folder / _LOCK_FILE, os.O_RDWR) as descriptor:
                if try_lock(descriptor):
                    shutil.rmtree(folder, ignore_errors=True)  # which follows no link
        except (FileNotFoundError, NotADirectoryError):  # just being made, or removed, or none of ours
            continue
