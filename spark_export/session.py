"""The one place that builds a SparkSession, and that knows what Spark needs on the machine."""

import contextlib
import os
import pwd
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from importlib.resources import as_file, files
from pathlib import Path

from py4j.protocol import Py4JError, Py4JJavaError
from pyspark import SparkConf, SparkContext
from pyspark.errors import PySparkException
from pyspark.java_gateway import launch_gateway
from pyspark.sql import SparkSession

from mailserver.app.logs import LogFormat
from mailserver.archive.errors import ArchiveError
from mailserver.errors import MailserverError
from spark_export.errors import CHECK_FAILED, ExportCheckFailed, ExportError
from spark_export.jvm_note import stderr_without_note
from spark_export.source import StoreSource

MIN_JAVA = 17
NO_JAVA = f"Java {MIN_JAVA} or newer is needed (Debian: openjdk-17-jre-headless; JAVA_HOME can name another one)"

_JAVA_TIMEOUT_S = 60.0
_JVM_END_S = 3.0
"""How long the JVM may take to end. With the time that Python takes to notice, this is less than a schedule gives a
run."""
_VERSION = re.compile(r'version "(\d+)')
_OUR_ERROR = re.compile(r"^(?:\w+\.)*(ArchiveError|ExportError|ExportCheckFailed): (.+)$", re.MULTILINE)
"""An error of ours, in the trace of a Python worker."""
_CAUSE = re.compile(r"^Caused by: (.+)$", re.MULTILINE)

DEFAULTS = {
    "spark.app.name": "waku-mailserver compaction",
    "spark.ui.enabled": "false",
    "spark.driver.memory": "2g",
    # Ciphertext does not compress.
    "spark.shuffle.compress": "false",
    "spark.shuffle.spill.compress": "false",
    # Write shuffled rows once: otherwise, few partitions each get a file, and all of these are copied into one.
    "spark.shuffle.sort.bypassMergeThreshold": "1",
    # Throughput on few cores is what counts: nobody notices a pause.
    "spark.driver.defaultJavaOptions": "-XX:+UseParallelGC",
    "spark.executor.defaultJavaOptions": "-XX:+UseParallelGC",
    # Python's tasks take and return whole pieces. pyarrow's own allocators return them to the kernel each time, and so
    # does glibc's, unless its heap has large blocks, too, and keeps what is free. New pages are up to a twelfth of the
    # work.
    "spark.executorEnv.ARROW_DEFAULT_MEMORY_POOL": "system",
    "spark.executorEnv.MALLOC_MMAP_MAX_": "0",
    "spark.executorEnv.MALLOC_TRIM_THRESHOLD_": str(256 * 1024 * 1024),
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "4000",
    # Partition values are names: `date=2026-11` is no date, and `topic_prefix=1` no number.
    "spark.sql.sources.partitionColumnTypeInference.enabled": "false",
    # No .crc file beside each file: Parquet has checksums of its own.
    "spark.hadoop.fs.file.impl": "org.apache.hadoop.fs.RawLocalFileSystem",
    "spark.hadoop.mapreduce.fileoutputcommitter.marksuccessfuljobs": "false",
}
"""Settings that hold if neither the caller nor spark-submit says otherwise."""


def check_java(environment: Mapping[str, str]) -> None:
    """Make sure that there is a Java, MIN_JAVA or newer.

    Raises:
        ExportError: there is none.
    """
    home = environment.get("JAVA_HOME")
    java = str(Path(home, "bin", "java")) if home else shutil.which("java", path=environment.get("PATH"))
    if java is None:
        raise ExportError(f"{NO_JAVA}: there is none on the PATH")
    try:
        command = [java, "-version"]
        shown = subprocess.run(command, capture_output=True, text=True, timeout=_JAVA_TIMEOUT_S, check=True).stderr  # noqa: S603
    except (OSError, subprocess.SubprocessError) as error:
        raise ExportError(f"{NO_JAVA}: {java} does not run") from error
    found = _VERSION.search(shown)
    if found is None or int(found[1]) < MIN_JAVA:
        raise ExportError(f"{NO_JAVA}: {java} is {found[1] if found else 'of an unknown version'}")


@contextlib.contextmanager
def spark_session(
    master: str | None, settings: Mapping[str, str], *, progress: bool, log_format: LogFormat = LogFormat.TEXT
) -> Iterator[SparkSession]:
    """Start Spark, or take what spark-submit has started; stop it at the end.

    Args:
        master: URL; None for what spark-submit was told, else all cores of this machine.
        settings: of Spark. They override those of spark-submit, which override DEFAULTS.
        log_format: of the errors that Spark logs, if it is started here.
        progress: show Spark's progress bars on stderr.
    Raises:
        ExportError: there is no Java for it, or it does not start.
    """
    check_java(os.environ)
    _check_user()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # else Spark runs whatever `python3` is
    # Without a network, as in some containers. Spark does not start without an address of its own.
    if not resolves(socket.gethostname()):
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    wanted = dict(settings)
    if master is not None:
        wanted["spark.master"] = master
    try:
        spark = _start(wanted, DEFAULTS | {"spark.ui.showConsoleProgress": str(progress).lower()}, log_format)
    except (PySparkException, Py4JError) as error:
        raise ExportError(f"Spark does not start: {root_cause(error)}") from error
    end: Callable[[SparkSession], None] = SparkSession.stop
    try:
        spark.dataSource.register(StoreSource)
        yield spark
    except KeyboardInterrupt:
        end = _end_jvm
        raise
    except (MailserverError, OSError, PySparkException, Py4JError) as error:
        if _was_interrupted(error):
            end = _end_jvm
            raise KeyboardInterrupt from error
        if not isinstance(error, MailserverError) and _jvm_has_died(spark):
            end = _nothing
            raise ExportError("Spark's JVM has died or was killed: is there enough memory?") from error
        raise
    finally:
        end(spark)


def root_cause(error: BaseException) -> str:
    """What went wrong first, in one line, without the traces of JVM and Python workers that come with it."""
    text = str(error.java_exception) + "\n" + str(error) if isinstance(error, Py4JJavaError) else str(error)
    for pattern in (_OUR_ERROR, _CAUSE):
        found = list(pattern.finditer(text))
        if found:
            return found[-1].groups()[-1].strip()
    return next((line.strip() for line in text.splitlines() if line.strip()), type(error).__name__)


@contextlib.contextmanager
def tasks_failures_told() -> Iterator[None]:
    """If a task has raised an error of ours, raise that in place of Spark's error with its traces.

    Raises:
        ArchiveError, ExportError: what the task raised; ExportCheckFailed, too.
        PySparkException, Py4JError: anything else.
    """
    try:
        yield
    except (PySparkException, Py4JError) as error:
        found = _OUR_ERROR.findall(str(error))
        if not found:
            raise
        name, cause = found[-1]
        if name == ExportCheckFailed.__name__:
            raise ExportCheckFailed(*cause.removeprefix(CHECK_FAILED).split(": ", 1)) from error
        raise (ArchiveError if name == ArchiveError.__name__ else ExportError)(cause) from error


def _was_interrupted(error: BaseException | None) -> bool:
    """Whether an error came up only in what is done at the end of an interrupted run: the interrupt may have cut an
    answer of the JVM, and then the next call, which gives back what was kept in its memory, fails."""
    while error is not None and not isinstance(error, KeyboardInterrupt):
        error = error.__context__
    return error is not None


def _jvm_has_died(spark: SparkSession) -> bool:
    process = getattr(spark.sparkContext._gateway, "proc", None)  # noqa: SLF001 - nothing else leads to it
    if process is None:
        return False
    try:
        process.wait(1.0)  # its connections end a moment before it does
    except subprocess.TimeoutExpired:
        return False
    return True


def _nothing(spark: SparkSession) -> None:
    del spark  # it has ended


def _end_jvm(spark: SparkSession) -> None:
    # An orderly stop of Spark takes longer than a service has, and would call a JVM that may be in the middle of an
    # answer.
    context = spark.sparkContext
    process = getattr(context._gateway, "proc", None)  # noqa: SLF001 - nothing else leads to it
    if process is None:  # spark-submit's, which ends with us
        return
    context._accumulatorServer.shutdown()  # noqa: SLF001 - it prints a trace when the JVM goes first
    process.terminate()  # it removes its temporary files
    try:
        process.wait(_JVM_END_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _check_user() -> None:
    try:
        pwd.getpwuid(os.getuid())
    except KeyError as error:
        raise ExportError(f"Spark needs a user with a name: {os.getuid()} has none in /etc/passwd") from error


def resolves(host: str) -> bool:
    """Whether a host has an address."""
    try:
        socket.getaddrinfo(host, None)
    except (OSError, UnicodeError):  # not a host name
        return False
    return True


def _start(wanted: Mapping[str, str], defaults: Mapping[str, str], log_format: LogFormat) -> SparkSession:
    # Memory and Java options must be set before the JVM starts. What spark-submit was told is known only afterwards.
    with as_file(files("spark_export") / "log4j2.properties") as logging:
        java = (
            f"{defaults['spark.driver.defaultJavaOptions']} -Dlog4j2.configurationFile={logging.as_uri()}"
            f" -Dlog.format={log_format.value}"
        )
        launch = SparkConf(loadDefaults=False)
        for name, value in {**defaults, "spark.driver.defaultJavaOptions": java, **wanted}.items():
            launch.set(name, value)
        if defaults["spark.ui.showConsoleProgress"] == "true":  # a progress bar is not a line
            gateway = launch_gateway(conf=launch)  # type: ignore[no-untyped-call]
        else:
            with stderr_without_note() as stderr:
                gateway = launch_gateway(conf=launch, popen_kwargs={"stderr": stderr})  # type: ignore[no-untyped-call]
    conf = SparkConf(_jvm=gateway.jvm)
    for name, value in wanted.items():
        conf.set(name, value)
    for name, value in defaults.items():
        conf.setIfMissing(name, value)
    conf.setIfMissing("spark.master", "local[*]")
    if (conf.get("spark.master") or "").startswith("local"):
        conf.setIfMissing("spark.driver.host", "127.0.0.1")  # no other machine needs it
        conf.setIfMissing("spark.driver.bindAddress", "127.0.0.1")
    SparkContext(conf=conf, gateway=gateway)
    return SparkSession.builder.getOrCreate()
