"""How tests start Spark's JVMs and its Python workers quickly.

A run of a few rows ends before Java's slower compiler (C2) has paid off, so it is left out: the JVM then takes 3.7 s of
CPU instead of 15. The rest is mostly the loading of classes, which a class-data archive saves: `pytest` makes one, in
the background, from a run like those of the tests, and keeps it in its cache. Until it is there, and where it does not
fit, Java starts as always, without a word.

Spark has its workers import PySpark from a zip without compiled modules, so each of the five kinds that a run starts
compiles them: 0.7 s of CPU. From where PySpark is installed, which is the same, it takes 0.2 s.
"""

import hashlib
import importlib.util
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

OPTIONS = "SPARK_SUBMIT_OPTS"
"""What Spark hands to the driver's JVM, besides what settings say."""

WORKERS = "PYSPARK_PYTHON"
"""Names the program that Spark starts as its Python workers."""

COMPILER = "-XX:TieredStopAtLevel=1"
"""An option of Java: it compiles with its quick compiler only."""

_SILENCE = "-Xlog:disable -Xlog:all=error:stderr"  # warnings would go to stdout
_LIMIT_S = 300.0


class QuickJvm:
    """The options that make JVMs quick, and the archive of classes that they name."""

    def __init__(self, cache: Path) -> None:
        self._archive = cache / f"{_versions()}.jsa"
        self._making = threading.Thread(target=self._make, name="class-data archive")

    @property
    def options(self) -> str:
        """For a JVM that runs Spark, be it a driver or an executor."""
        return f"{COMPILER} -XX:SharedArchiveFile={self._archive} {_SILENCE}"

    def begin(self) -> None:
        """Make the archive in the background, unless it is there."""
        if not self._archive.exists():
            self._making.start()

    def end(self) -> None:
        """Wait until it is made."""
        if self._making.ident is not None:
            self._making.join()

    def _make(self) -> None:
        from tests.spark_export.samples import envelopes, put  # noqa: PLC0415 - it brings Spark, which takes a second

        with tempfile.TemporaryDirectory(dir=self._archive.parent) as name:
            folder = Path(name)
            store, unfinished = put(folder / "mailserver.db", envelopes(30)), folder / self._archive.name
            # The JVM ends after the command does, and writes the archive at its end. It keeps the pipe open until then.
            subprocess.run(
                [sys.executable, "-m", "spark_export", "compact", "--store", store, "--archive", folder / "archive"],
                env={**os.environ, OPTIONS: f"{COMPILER} -XX:ArchiveClassesAtExit={unfinished} {_SILENCE}"},
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=_LIMIT_S,
                check=True,
            )
            for old in self._archive.parent.glob("*.jsa"):  # of another Java or Spark: 150 MB each
                old.unlink()
            unfinished.rename(self._archive)


def quick_python(cache: Path) -> Path:
    """Make a program that is this Python, and imports PySpark from where it is installed.

    Args:
        cache: a folder from which programs may run, which several processes may share, of other Pythons, too.
    """
    name = f"python-{hashlib.sha256(sys.executable.encode()).hexdigest()[:16]}"
    program, unfinished = cache / name, cache / f"{name}.{os.getpid()}"
    zips = "*pyspark.zip:*-src.zip:"  # with py4j's, the first of the path that Spark makes
    script = f'#!/bin/sh\nPYTHONPATH=${{PYTHONPATH#{zips}}} exec {shlex.quote(sys.executable)} "$@"\n'
    unfinished.write_text(script, encoding="utf-8")
    unfinished.chmod(0o755)
    return unfinished.rename(program)


def _versions() -> str:
    """Names the Java and the Spark whose classes are archived."""
    home = os.environ.get("JAVA_HOME")
    java = shutil.which("java", path=None if home is None else str(Path(home, "bin")))
    spark = importlib.util.find_spec("pyspark")
    assert spark is not None
    assert spark.origin is not None
    files = [Path(spark.origin).with_name("jars"), *([] if java is None else [Path(java).resolve()])]
    text = repr([(str(file), file.stat().st_mtime_ns) for file in files])
    return hashlib.sha256(text.encode()).hexdigest()[:16]
