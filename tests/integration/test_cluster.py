"""The same job on a standalone cluster of one master and two workers, from what pyspark ships."""

import contextlib
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pyspark
import pytest

from spark_export import __file__ as package
from tests.quick_spark import OPTIONS
from tests.spark_export.samples import DAY, archived, envelopes, periods, put, rows_of

pytestmark = [pytest.mark.spark, pytest.mark.integration]

SPARK_HOME = Path(pyspark.__file__).parent
DEADLINE_S = 180.0
DAEMON = "org.apache.spark.deploy"
SMALL = ("--conf", "spark.executor.memory=512m", "--conf", "spark.default.parallelism=2")


def environment() -> dict[str, str]:
    return {
        **os.environ,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_HOME": str(SPARK_HOME),
        "PYTHONPATH": os.pathsep.join(sys.path),
        "SPARK_DAEMON_MEMORY": "256m",
        "SPARK_DAEMON_JAVA_OPTS": os.environ[OPTIONS],
    }


class Daemon:
    """A master or worker process; what it logs is waited for."""

    def __init__(self, *arguments: str) -> None:
        self._lines: list[str] = []
        self._ended = False
        self._logged = threading.Condition()
        command = [str(SPARK_HOME / "bin" / "spark-class"), *arguments]
        self._process = subprocess.Popen(
            command,
            env=environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def wait_for(self, pattern: str) -> str:
        """Wait for a line that matches; return its first group."""
        with self._logged:
            self._logged.wait_for(lambda: self._ended or self._found(pattern) is not None, DEADLINE_S)
            found = self._found(pattern)
        assert found is not None, f"no {pattern!r} in:\n" + "\n".join(self._lines)
        return found

    def end(self) -> None:
        self._process.terminate()
        try:
            self._process.wait(DEADLINE_S)
        finally:
            self._process.kill()
            self._reader.join(DEADLINE_S)

    def _found(self, pattern: str) -> str | None:
        return next((match[1] for line in self._lines if (match := re.search(pattern, line))), None)

    def _read(self) -> None:
        assert self._process.stderr is not None
        with self._process.stderr as log:
            for line in log:
                with self._logged:
                    self._lines.append(line.rstrip("\n"))
                    self._logged.notify_all()
        with self._logged:
            self._ended = True
            self._logged.notify_all()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of a master that has two workers."""
    work = tmp_path_factory.mktemp("cluster")
    local = ("--host", "127.0.0.1", "--port", "0", "--webui-port", "0")
    with contextlib.ExitStack() as stack:
        master = Daemon(f"{DAEMON}.master.Master", *local)
        stack.callback(master.end)
        url = master.wait_for(r"Starting Spark master at (spark://\S+)")
        workers = []
        for number in range(2):
            room = ("--cores", "1", "--memory", "1g", "--work-dir", str(work / str(number)))
            workers.append(Daemon(f"{DAEMON}.worker.Worker", *local, *room, url))
            stack.callback(workers[-1].end)
        for worker in workers:
            worker.wait_for(r"(Successfully registered with master)")
        yield url


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("store")
    return put(folder / "mailserver.db", envelopes(60), envelopes(40, day=DAY + 1, first=100))


def compacted(program: list[str], master: str, store: Path, archive: Path) -> None:
    quick = ("--conf", f"spark.executor.extraJavaOptions={os.environ[OPTIONS]}")
    options = ("--store", str(store), "--archive", str(archive), "--partition-by", "topic-prefix")
    done = subprocess.run(
        [*program, "compact", "--master", master, *options, *SMALL, *quick],
        env=environment(),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_cluster_writes_what_one_process_writes(cluster: str, store: Path, tmp_path: Path) -> None:
    program = [sys.executable, "-m", "spark_export"]

    compacted(program, "local[1]", store, tmp_path / "local")
    compacted(program, cluster, store, tmp_path / "cluster")

    assert archived(tmp_path / "cluster") == archived(tmp_path / "local")
    assert archived(tmp_path / "local") == rows_of([*envelopes(60), *envelopes(40, day=DAY + 1, first=100)])
    assert periods(tmp_path / "cluster") == periods(tmp_path / "local")


def test_spark_submit_runs_it_on_the_cluster(cluster: str, store: Path, tmp_path: Path) -> None:
    submit = str(SPARK_HOME / "bin" / "spark-submit")
    entry = str(Path(package).with_name("__main__.py"))

    compacted([submit, "--master", cluster, "--driver-memory", "512m", entry], cluster, store, tmp_path / "archive")

    assert archived(tmp_path / "archive") == rows_of([*envelopes(60), *envelopes(40, day=DAY + 1, first=100)])
