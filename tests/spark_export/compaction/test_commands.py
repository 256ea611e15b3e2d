"""`spark-export` as people start it: arguments, exit codes, and one line on stderr for whatever goes wrong."""

import contextlib
import errno
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from mailserver.app.logs import LogFormat
from mailserver.handoff.last_run import CompactionState
from mailserver.handoff.last_upkeep import LastUpkeep, Task
from mailserver.store.sqlite.handoff import last_run, read_archived, write_upkeep
from mailserver.units import size_text
from spark_export import commands
from spark_export.cli import main
from tests.faults.faulty_io import Calls, faulty_io
from tests.quick_spark import COMPILER, OPTIONS
from tests.s3 import fake_s3
from tests.spark_export.samples import DAY, DAY_S, archived, compact_into, envelopes, prune, put, rows_of

pytestmark = pytest.mark.spark

DEADLINE_S = 600.0
"""Alone, a run takes ten seconds; on a machine that does ten other things, minutes."""
FAST = ["--master", "local[1]", "--driver-memory", "512m", "--conf", "spark.default.parallelism=1"]
BLOCKED = "import sys; sys.modules[{!r}] = None; from spark_export.cli import main; sys.exit(main({!r}))"

ENDED = "exit code "
IN_TURN = f"""
import contextlib, sys
from spark_export import commands
from spark_export.cli import main
from spark_export.session import spark_session
with spark_session("local[1]", {{"spark.driver.memory": "512m"}}, progress=False) as spark:
    commands.spark_session = lambda *_, **__: contextlib.nullcontext(spark)
    for line in sys.stdin:
        print("{ENDED}", main(line.split()), sep="", flush=True)
"""
JVM_ERRORS = """
import sys
from mailserver.app.logs import LogFormat
from spark_export.session import spark_session
with spark_session("local[1]", {}, progress=False, log_format=LogFormat(sys.argv[1])) as spark:
    java = spark._jvm.java
    log = spark._jvm.org.apache.logging.log4j.LogManager.getLogger("org.example.Thing")
    log.error("two\\nlines \\x1b[2J")
    log.error("caught", java.lang.IllegalStateException("it broke"))
"""


def run(*arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run `spark-export` to its end, as a process of its own."""
    return start([sys.executable, "-m", "spark_export", *map(str, arguments)], environment)


def start(command: list[str], environment: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **(environment or {})},
        check=False,
    )
    assert "Traceback" not in done.stderr, done.stderr
    return done


Command = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def here(spark: SparkSession, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    """Runs `spark-export` in this process, with the Spark of all tests: ten seconds less than `run`.

    Commands that start a JVM are for `run`, where a process, its environment or its JVM is what matters.
    """

    def shared(*_: object, **__: object) -> contextlib.AbstractContextManager[SparkSession]:
        return contextlib.nullcontext(spark)

    def command(*arguments: object) -> subprocess.CompletedProcess[str]:
        capsys.readouterr()
        line = list(map(str, arguments))
        done = subprocess.CompletedProcess(line, main(line), *capsys.readouterr())
        assert "Traceback" not in done.stderr, done.stderr
        return done

    monkeypatch.setattr(commands, "spark_session", shared)
    return command


@contextlib.contextmanager
def in_turn(stderr: Path, environment: Mapping[str, str]) -> Iterator[Callable[..., int | None]]:
    """A process with this environment that runs one `spark-export` after another, with one Spark for all. Yields what
    runs one, and returns its exit code; None if the process has died."""
    with (
        stderr.open("w") as lines,
        subprocess.Popen(
            [sys.executable, "-c", IN_TURN],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=lines,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **environment},
        ) as process,
    ):
        asked, told = process.stdin, process.stdout
        assert asked is not None
        assert told is not None

        def exit_code_of(*arguments: object) -> int | None:
            print(*arguments, file=asked, flush=True)
            return next((int(line.removeprefix(ENDED)) for line in told if line.startswith(ENDED)), None)

        yield exit_code_of


def said(done: subprocess.CompletedProcess[str], exit_code: int = 1) -> str:
    """The one line with which a command failed."""
    assert done.returncode == exit_code, done.stderr
    lines = [line for line in done.stderr.splitlines() if line.startswith("spark-export: ")]
    assert lines == done.stderr.splitlines()[-1:], done.stderr
    return lines[0].removeprefix("spark-export: ")


@contextlib.contextmanager
def small_disk(folder: Path, size: str) -> Iterator[Path]:
    """A file system that is soon full."""
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)],
        capture_output=True,
        text=True,
        check=False,
    )
    if mounted.returncode:
        pytest.skip(f"needs the right to mount a tmpfs: {mounted.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["moon"],
        ["compact"],
        ["compact", "--archive", "a"],
        ["compact", "--store", "s"],
        ["compact", "--store", "s", "--archive", "a", "--until", "yesterday"],
        ["compact", "--store", "s", "--archive", "a", "--until", "2024-02-30"],
        ["compact", "--store", "s", "--archive", "a", "--partition-by", "moon"],
        ["compact", "--store", "s", "--archive", "a", "--prefix-digits", "9"],
        ["merge", "--archive", "a", "--conf", "novalue"],
        ["report", "--archive", "a", "--html"],
        ["verify"],
        ["schedule", "--store", "s", "--archive", "a", "--schedule", "at noon"],
        ["now", "--store", "s"],
        ["last"],
    ],
    ids=" ".join,
)
def test_wrong_usage_exits_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(arguments)

    assert caught.value.code == 2
    assert "error: " in capsys.readouterr().err


def test_help_and_version_exit_0(capsys: pytest.CaptureFixture[str]) -> None:
    for argument in ("--help", "--version"):
        with pytest.raises(SystemExit) as caught:
            main([argument])
        assert caught.value.code == 0
    assert "compact" in capsys.readouterr().out


def test_missing_java_is_one_line(tmp_path: Path) -> None:
    done = run("verify", "--archive", tmp_path, JAVA_HOME=str(tmp_path))

    assert done.stderr.count("\n") == 1
    assert said(done).startswith("Java 17 or newer is needed")


@pytest.mark.parametrize(
    ("module", "command"),
    [("pyspark", "verify"), ("pyarrow", "verify"), ("py4j", "verify"), ("cronsim", "verify")],
)
def test_missing_package_is_one_line(module: str, command: str) -> None:
    done = start([sys.executable, "-c", BLOCKED.format(module, [command, "--archive", "a"])])

    assert done.stderr.count("\n") == 1
    assert said(done).endswith("is not installed: pip install -r requirements-export.lock")


def test_bucket_that_denies_is_one_line(here: Command, store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(store, envelopes(3))

    with fake_s3(monkeypatch) as s3, s3.denying():
        for arguments in (["verify"], ["compact", "--store", store], ["report"]):
            done = here(*arguments, "--archive", s3.url)

            assert done.stderr.count("\n") == 1
            assert said(done).startswith(f"cannot read {s3.url}/")
            assert "ACCESS_DENIED" in said(done)


def test_fault_of_our_own_is_no_missing_package() -> None:
    code = BLOCKED.format("spark_export.compact", ["verify", "--archive", "a"])

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=Path.cwd())

    assert "ModuleNotFoundError" in done.stderr


def test_nightly_line_then_every_other_command(here: Command, tmp_path: Path) -> None:
    put_in = envelopes(9)
    store, archive = put(tmp_path / "mailserver.db", put_in), tmp_path / "archive"

    compacted = here("compact", "--store", store, "--archive", archive, "--json")
    merged = here("merge", "--archive", archive, "--json")
    verified = here("verify", "--archive", archive, "--json")
    reported = here("report", "--archive", archive, "--html", tmp_path / "page.html", "--json")

    assert [done.returncode for done in (compacted, merged, verified, reported)] == [0] * 4
    assert archived(archive) == rows_of(put_in)
    assert json.loads(compacted.stdout)["rows"] == 9
    assert json.loads(merged.stdout)["days"][0]["period"] == "2024-10"
    assert json.loads(verified.stdout) == {"periods": 1, "rows": 9, "faults": [], "lost": []}
    assert json.loads(reported.stdout)["envelopes"] == 9
    assert (tmp_path / "page.html").read_text().startswith("<!doctype html>")
    assert len(list((archive / "_runs").iterdir())) == 2


def test_good_night_leaves_cron_nothing_on_stderr_but_our_own_lines(tmp_path: Path) -> None:
    """The line of the crontab, with the environment that cron gives it: no terminal, no PATH to speak of.

    Of what makes Spark quick in tests there is only the compiler, which says nothing.
    """
    store, archive = put(tmp_path / "mailserver.db", envelopes(9)), tmp_path / "archive"
    cron = {"HOME": str(tmp_path), "LOGNAME": "waku", "SHELL": "/bin/sh", "PATH": "/usr/bin:/bin", "LANG": "C.UTF-8"}
    cron[OPTIONS] = COMPILER
    program = f"{sys.executable} -m spark_export compact --store {store} --archive {archive} {' '.join(FAST)}"

    done = subprocess.run(
        ["/bin/sh", "-c", program],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        cwd=tmp_path,
        env=cron,
        check=True,
    )

    size = sum(len(one.raw) for one in envelopes(9))
    time = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z"
    assert re.fullmatch(rf"{time} INFO    compacting days=1 rows=9 bytes={size}\n", done.stderr), done.stderr
    first, second = done.stdout.splitlines()
    assert re.fullmatch(r"compact done periods=1 rows=9 files=\d+ bytes=\d+ seconds=[\d.]+", first)
    assert re.fullmatch(r"2024-10-04 new_rows=9 rows=9 files=\d+ bytes=\d+", second)


def test_missing_store_is_one_line(here: Command, tmp_path: Path) -> None:
    done = here("compact", "--store", tmp_path / "none.db", "--archive", tmp_path / "archive")

    assert said(done) == f"cannot open the store {tmp_path}/none.db: there is none"


def test_foreign_archive_is_one_line(here: Command, tmp_path: Path) -> None:
    (tmp_path / "archive" / "date=2024-10-04").mkdir(parents=True)
    store = put(tmp_path / "mailserver.db", envelopes(3))

    done = here("compact", "--store", store, "--archive", tmp_path / "archive")

    assert "is not an archive of ours" in said(done)
    state, record = last_run(store)
    assert state is CompactionState.FAILED
    assert record is not None
    assert (record.exit_code, record.error) == (1, said(done))


def test_damage_is_exit_code_3_until_it_is_mended_and_what_is_lost_acknowledged(
    spark: SparkSession, here: Command, tmp_path: Path
) -> None:
    store, archive = put(tmp_path / "mailserver.db", envelopes(3)), tmp_path / "archive"
    compact = ["compact", "--store", store, "--archive", archive, "--json"]
    compact_into(spark, archive, store)
    prune(store, before=(DAY + 1) * DAY_S, archived={DAY: 3})
    shutil.rmtree(archive / "_snapshots")
    shutil.rmtree(archive / "date=2024-10-04")

    verified = here("verify", "--archive", archive, "--store", store)
    compacted = here(*compact)
    last = run("last", "--store", store, "--json")
    acknowledged = here("acknowledge", "--archive", archive, "--json")
    again = here(*compact)

    pattern = r"files? of the archive (is|are) missing or damaged \(2024-10-04\): date=2024-10-04/"
    assert re.search(pattern, said(verified, 3))
    summary, *faults = verified.stdout.splitlines()
    named = [line.partition(": ") for line in faults]
    assert summary == f"verified periods=1 rows=3 faults={len(faults)} lost=0"
    assert all(file.startswith("date=2024-10-04/topic") for file, _, _ in named)
    assert all(" missing" in cause and "run `spark-export compact`" in cause for _, _, cause in named)
    assert "3 rows that were in the archive are lost (2024-10-04)" in said(compacted, 3)
    report = json.loads(compacted.stdout)
    assert {fault["kind"] for fault in report["faults"]} == {"missing"}
    assert [(loss["day"], loss["rows"]) for loss in report["lost"]] == [("2024-10-04", 3)]
    (told,) = json.loads(last.stdout)["stores"]
    assert (last.returncode, told["state"], told["faults"]) == (
        1,
        "damaged",
        [said(compacted, 3), f"the last verification failed: {said(verified, 3)}"],
    )
    assert told["archive"]["lost_rows"] == 3
    assert json.loads(acknowledged.stdout)["lost"] == report["lost"]
    assert again.returncode == 0, again.stderr


def test_damaged_record_is_over_when_what_is_advised_was_done(
    spark: SparkSession, here: Command, tmp_path: Path
) -> None:
    store, archive = put(tmp_path / "mailserver.db", envelopes(3)), tmp_path / "archive"
    compact_into(spark, archive, store)
    (archive / "_records" / "2024-10-04.json").write_text('{"version": 1')

    def do(command: str) -> subprocess.CompletedProcess[str]:
        stores = [] if command == "acknowledge" else ["--store", store]
        return here(command, "--archive", archive, *stores)

    named = "records of the archive were damaged (2024-10-04)"
    for command in ("verify", "merge"):
        assert named in (told := said(do(command), 3))
        assert told.index("run `spark-export compact`") < told.index("run `spark-export acknowledge`")
    assert said(do("acknowledge")).endswith("; run `spark-export compact`, which sets it aside")
    assert named in said(do("compact"), 3)
    acknowledged = do("acknowledge")
    assert acknowledged.stdout.splitlines()[0] == "acknowledged lost=0 quarantined=0"
    assert acknowledged.stdout.splitlines()[-1].endswith("learn of it from the next `spark-export compact`")
    assert [(done := do(command)).returncode for command in ("compact", "verify")] == [0, 0], done.stderr


def test_full_disk_is_one_line_and_leaves_the_archive_as_it_was(
    spark: SparkSession, here: Command, tmp_path: Path
) -> None:
    store = put(tmp_path / "mailserver.db", envelopes(3))
    with small_disk(tmp_path / "disk", "256k") as disk:
        archive = disk / "archive"
        compact_into(spark, archive, store)
        before = archived(archive)
        put(store, [envelopes(400, first=1000 * n)[n] for n in range(1, 300)])
        (disk / "ballast").write_bytes(bytes(shutil.disk_usage(disk).free - 16 * 1024))

        done = here("compact", "--store", store, "--archive", archive)

        cause = said(done)
        assert cause.startswith(f"the disk of the archive is full: no space left on device at {archive}, ")
        assert cause.endswith(" KiB needed")
        assert archived(archive) == before
        assert_told(store, cause)
        (disk / "ballast").unlink()


def test_full_disk_of_what_is_on_its_way_is_named_and_not_taken_for_the_archive_s(tmp_path: Path) -> None:
    store, other = (put(tmp_path / name / "mailserver.db", envelopes(1400)) for name in ("one", "two"))
    with small_disk(tmp_path / "disk", "64k") as disk:
        on_disk = ("--store", other, "--conf", f"spark.local.dir={disk}")

        done = run("compact", "--store", store, "--archive", tmp_path / "archive", *on_disk, *FAST)

    needed = size_text(int(2 * sum(len(one.raw) for one in envelopes(1400)) * 0.5))
    cause = said(done)
    assert cause.startswith(f"the disk of the scratch folder is full: no space left on device at {disk}, ")
    assert cause.endswith(f" free now, about {needed} needed")
    assert_told(store, cause)


def assert_told(store: Path, cause: str) -> None:
    """The record has the cause, and so has the health check."""
    _, record = last_run(store)
    assert record is not None
    assert (record.exit_code, record.error) == (1, cause)
    assert run("last", "--store", store).stderr == f"spark-export: {store}: the last run failed: {cause}\n"


def test_nightly_verifies_after_the_compaction_where_that_is_due_and_says_how_it_went(
    spark: SparkSession, store: Path, archive: Path
) -> None:
    put(store, envelopes(9))
    compact_into(spark, archive, store, now=time.time())
    file = next(archive.glob("date=*/*/*.parquet"))
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1  # its size stays, and its contents were read just now: no compaction finds it
    file.write_bytes(content)
    due = {"SPARK_EXPORT_STORE": str(store), "SPARK_EXPORT_ARCHIVE": str(archive), "SPARK_EXPORT_MERGE_SCHEDULE": "off"}
    write_upkeep(store, Task.VERIFY, LastUpkeep(waits_since=1.0))

    done = run("nightly", *FAST, **due)
    last = run("last", **{name: value for name, value in due.items() if "ARCHIVE" not in name})

    assert done.returncode == 3, done.stderr
    assert [line.split()[0] for line in done.stdout.splitlines()][:2] == ["compact", "verified"]
    assert "run ended command=compact exit_code=0" in done.stderr
    assert "run ended command=verify exit_code=3" in done.stderr
    assert last.returncode == 1
    assert "the last verification failed: 1 file of the archive is missing or damaged (2024-10-04): " in last.stderr


def test_error_of_the_archive_s_disk_leaves_the_last_good_archive(spark: SparkSession, tmp_path: Path) -> None:
    """Nor does the record beside the store say that more is archived than is there: nothing else of it is pruned."""
    errors = {
        "data": (Calls.WRITE, ".parquet", 3),
        "sync": (Calls.SYNC, "", 3),
        # The report of the run is written last: what it is about is in its place by then, read back, and handed over.
        "report": (Calls.OPEN, "_runs", 203),
    }
    archives = tmp_path / "archives"
    stores = {name: put(tmp_path / name / "mailserver.db", envelopes(3)) for name in errors}
    for name, store in stores.items():
        compact_into(spark, archives / name, store)
        put(store, envelopes(200, first=1000))

    with (
        faulty_io(tmp_path / "faults", archives) as faults,
        in_turn(tmp_path / "stderr", faults.environment) as exit_code_of,
    ):
        for name, (calls, file, rows) in errors.items():
            faults.fail(errno.EIO, calls, file)
            assert exit_code_of("compact", "--store", stores[name], "--archive", archives / name) == 1, name
            assert faults.mend(), name

            assert len(archived(archives / name)) == rows, name
            left = read_archived(stores[name])
            assert left is not None
            assert left.days == {DAY: rows}, name
    log = (tmp_path / "stderr").read_text()
    assert "Traceback" not in log, log
    causes = [line for line in log.splitlines() if line.startswith("spark-export: ")]
    assert ["Input/output error" in cause for cause in causes] == [True] * 3, log
    for name, store in stores.items():
        compact_into(spark, archives / name, store, run="run-2")
        assert len(archived(archives / name)) == 203, name


def test_unreadable_page_of_the_store_is_one_line(here: Command, tmp_path: Path) -> None:
    store = put(tmp_path / "mailserver.db", envelopes(600))
    content = bytearray(store.read_bytes())
    middle = content.find(envelopes(600)[300].raw) // 4096 * 4096
    content[middle : middle + 4096] = b"\xff" * 4096
    store.write_bytes(content)

    done = here("compact", "--store", store, "--archive", tmp_path / "archive")

    assert said(done).startswith(("cannot read the store", "Spark failed: cannot read the store"))
    assert "malformed" in said(done)
    assert not list((tmp_path / "archive").glob("date=*"))


def test_all_of_a_json_log_is_json(spark: SparkSession, tmp_path: Path) -> None:
    store, archive = put(tmp_path / "mailserver.db", envelopes(3)), tmp_path / "archive"
    compact_into(spark, archive, store)
    put(store, envelopes(5, day=DAY + 1, first=100))
    for copy in ("date=2024-10-04", "_snapshots"):
        shutil.rmtree(archive / copy)

    done = run("compact", "--store", store, "--archive", archive, "--log-format", "json", *FAST)

    assert done.returncode == 3, done.stderr
    events = [json.loads(line) for line in done.stderr.splitlines()]
    told = [(event["level"], event["event"]) for event in events]
    (compacting,) = (event for event in events if event["event"] == "compacting")
    assert set(told[:-1]) == {("INFO", "compacting"), ("INFO", "period mended"), ("ERROR", "fault in the archive")}
    assert told[-1] == ("CRITICAL", "failed")
    assert (compacting["days"], compacting["rows"]) == (2, 8)
    assert "3 files of the archive are missing or damaged (2024-10-04): " in events[-1]["cause"]


@pytest.mark.parametrize("form", LogFormat)
def test_errors_of_the_jvm_are_lines_of_the_same_format(form: LogFormat) -> None:
    done = start([sys.executable, "-c", JVM_ERRORS, form.value])

    first, second = done.stderr.splitlines()
    if form is LogFormat.TEXT:
        time = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z"
        assert re.fullmatch(time + r" ERROR   two\\nlines \?\[2J +logger=org\.example\.Thing", first)
        assert re.fullmatch(time + r" ERROR   caught it broke +logger=org\.example\.Thing", second)
    else:
        fields = [json.loads(line) for line in (first, second)]
        assert [(event["level"], event["logger"]) for event in fields] == [("ERROR", "org.example.Thing")] * 2
        assert [event["event"] for event in fields] == ["two\nlines \x1b[2J", "caught"]
        assert fields[0].keys() == {"time", "level", "logger", "event"}
        assert fields[1]["exception"].startswith("java.lang.IllegalStateException: it broke\n\tat ")
