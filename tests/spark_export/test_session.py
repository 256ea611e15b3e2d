"""What is said of a Java that is missing or old, and of an error that comes out of Spark."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.errors import PySparkException

from mailserver.archive.errors import ArchiveError
from spark_export.errors import ExportCheckFailed, ExportError
from spark_export.session import check_java, resolves, root_cause, spark_session, tasks_failures_told
from tests.spark_export.compaction.test_commands import DEADLINE_S

OLD = 'openjdk version "11.0.2" 2019-01-15'
NEW = 'openjdk version "17.0.15" 2025-04-15'


def java(folder: Path, *lines: str, code: int = 0) -> Path:
    """A `java` that prints this to stderr, as the true one does."""
    program = folder / "bin" / "java"
    program.parent.mkdir(parents=True)
    echoes = "".join(f"echo '{line}' >&2\n" for line in lines)
    program.write_text(f"#!/bin/sh\n{echoes}exit {code}\n")
    program.chmod(0o755)
    return folder


def refused(environment: dict[str, str]) -> str:
    with pytest.raises(ExportError) as caught:
        check_java(environment)
    assert "\n" not in str(caught.value)
    assert str(caught.value).startswith("Java 17 or newer is needed (Debian: openjdk-17-jre-headless;")
    return str(caught.value)


def test_java_that_is_not_on_the_path_is_missed(tmp_path: Path) -> None:
    assert refused({"PATH": str(tmp_path)}).endswith("there is none on the PATH")


def test_java_home_without_java_is_named(tmp_path: Path) -> None:
    assert refused({"JAVA_HOME": str(tmp_path)}).endswith(f"{tmp_path}/bin/java does not run")


def test_java_home_counts_before_the_path(tmp_path: Path) -> None:
    old, new = java(tmp_path / "old", OLD), java(tmp_path / "new", NEW)

    check_java({"JAVA_HOME": str(new), "PATH": str(old / "bin")})
    message = refused({"JAVA_HOME": str(old), "PATH": str(new / "bin")})

    assert message.endswith(f"{old}/bin/java is 11")


@pytest.mark.parametrize(
    ("line", "is_what"),
    [
        (OLD, "11"),
        ('java version "1.8.0_392"', "1"),
        ("something else", "of an unknown version"),
        ("", "of an unknown"),
    ],
)
def test_java_that_is_too_old_or_none_is_refused(tmp_path: Path, line: str, is_what: str) -> None:
    assert f"/bin/java is {is_what}" in refused({"PATH": str(java(tmp_path, line) / "bin")})


def test_java_that_fails_is_refused(tmp_path: Path) -> None:
    assert refused({"PATH": str(java(tmp_path, NEW, code=1) / "bin")}).endswith("does not run")


@pytest.mark.parametrize(
    "lines", [[NEW], ["Picked up _JAVA_OPTIONS: -Xmx1g", 'java version "21"'], ['openjdk version "25-ea" 2025-09']]
)
def test_java_that_is_new_enough_will_do(tmp_path: Path, lines: list[str]) -> None:
    check_java({"PATH": str(java(tmp_path, *lines) / "bin")})


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("one line", "one line"),
        ("\n  first \nsecond", "first"),
        ("", "RuntimeError"),
        (
            "a\nCaused by: x.Y: middle\n\tat z\nCaused by: java.io.IOException: No space left\n\tat z",
            "java.io.IOException: No space left",
        ),
        (
            "a\nCaused by: x.Y: z\nspark_export.errors.ExportError: cannot read the store s: broken\n",
            "cannot read the store s: broken",
        ),
    ],
)
def test_cause_is_one_line(text: str, cause: str) -> None:
    assert root_cause(RuntimeError(text)) == cause


def test_user_without_a_name_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "getuid", lambda: 4_000_000_000)

    with (
        pytest.raises(ExportError, match=r"^Spark needs a user with a name: 4000000000 has none in /etc/passwd$"),
        spark_session("local[1]", {}, progress=False),
    ):
        pass


INTERRUPTED = """
from spark_export.commands import explain
from spark_export.session import spark_session

try:
    with spark_session("local[1]", {"spark.driver.memory": "512m"}, progress=False) as spark:
        try:
            raise KeyboardInterrupt
        finally:
            spark.sparkContext._gateway.proc.kill()
            spark.range(1).count()
except BaseException as error:
    print(explain(error))
"""
"""A run whose clean-up fails, as when the interrupt has cut an answer of the JVM."""


@pytest.mark.spark
def test_run_that_is_interrupted_says_so_though_its_end_fails() -> None:
    command = [sys.executable, "-c", INTERRUPTED]

    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=DEADLINE_S)

    assert done.stdout == "(130, 'interrupted')\n", done.stderr


@pytest.mark.parametrize(("host", "address"), [("localhost", True), ("a..b", False), ("x" * 64, False)])
def test_host_without_an_address_is_told(host: str, address: bool) -> None:
    assert resolves(host) is address


TRACE = (
    "An error occurred while calling z:org.apache.spark.api.python.PythonRDD.collectAndServe.\n"
    ": org.apache.spark.SparkException: Job aborted due to stage failure: PythonException: Traceback (most recent..\n"
    "OSError: [Errno 28] Error writing bytes to file. Detail: [errno 28] No space left on device\n"
    "{}\n\n\tat org.apache.spark.api.python.BasePythonRunner$ReaderIterator.handlePythonException\n"
)


@pytest.mark.parametrize(
    ("line", "raised"),
    [
        ("mailserver.archive.errors.ArchiveError: cannot write a: b: c", ArchiveError("cannot write a: b: c")),
        ("spark_export.errors.ExportError: cannot read the store s", ExportError("cannot read the store s")),
        (
            "spark_export.errors.ExportCheckFailed: check failed for 2024-10: is: bad",
            ExportCheckFailed("2024-10", "is: bad"),
        ),
    ],
)
def test_what_a_task_has_raised_is_raised(line: str, raised: Exception) -> None:
    with pytest.raises(type(raised)) as caught, tasks_failures_told():
        raise PySparkException(TRACE.format(line))

    assert (type(caught.value), caught.value.args) == (type(raised), raised.args)


def test_error_of_spark_itself_stays_as_it_is() -> None:
    error = PySparkException(TRACE.format("MemoryError"))

    with pytest.raises(PySparkException) as caught, tasks_failures_told():
        raise error

    assert caught.value is error
