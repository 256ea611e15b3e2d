"""`spark-export schedule` and `nightly`, without Spark: what is asked of a store in PostgreSQL, and of one that
waits for its mailserver."""

import asyncio
import contextlib
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import asyncpg
import pytest

from mailserver.archive.days import day_of
from mailserver.handoff.last_run import ArchivedDay, Compaction
from mailserver.handoff.last_upkeep import LastUpkeep, Task
from mailserver.store.postgres.job import StoreDatabase
from mailserver.store.postgres.schema import SCHEMA_TABLE
from mailserver.store.postgres.store import open_store
from mailserver.store.sqlite.schema import SCHEMA_VERSION
from tests.spark_export.samples import DAY_S, change, envelope, put
from tests.spark_export.test_schedule import nightly_of
from tests.store.postgres.server import new_schema, shared_server
from tests.waiting import DEADLINE_S, until, wait_until

pytestmark = pytest.mark.integration

ROOT = Path(__file__).parents[2]

SERVICE = """
import sys
sys.executable = sys.argv[1]  # the runs are this program's
from spark_export.cli import main
sys.exit(main(sys.argv[2:]))
"""


@pytest.fixture
def ran(tmp_path: Path) -> Path:
    """Where the program that takes the place of Python writes which commands it was to run."""
    program = tmp_path / "program"
    program.write_text(f'#!/bin/sh\necho "$3" >> "{tmp_path / "ran"}"\n')
    program.chmod(0o700)
    return tmp_path / "ran"


@pytest.fixture
def empty() -> StoreDatabase:
    """A schema that nothing is in yet."""
    return StoreDatabase(shared_server().url(new_schema(shared_server())))


@pytest.fixture
def database(empty: StoreDatabase) -> StoreDatabase:
    """A store that has received something three days ago."""

    async def fill() -> None:
        async with open_store(empty.url) as store:
            await store.put([envelope(1, received=(day_of(int(time.time())) - 3) * DAY_S)])

    asyncio.run(fill())
    return empty


@contextlib.contextmanager
def scheduled(store: str, ran: Path) -> Iterator[subprocess.Popen[str]]:
    """`spark-export schedule`, for runs of which none comes due in the next hours."""
    command = ["schedule", "--store", store, "--archive", str(ran.with_name("archive"))]
    in_the_night = (datetime.now(UTC) + timedelta(hours=12)).hour
    expressions = [f"--{name}schedule=17 {in_the_night} * * *" for name in ("", "merge-", "verify-")]
    with (ran.with_name("log")).open("w") as log:
        process = subprocess.Popen(
            [sys.executable, "-c", SERVICE, str(ran.with_name("program")), *command, *expressions],
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            text=True,
        )
        try:
            yield process
        finally:
            process.kill()
            process.wait()


def log_of(ran: Path) -> str:
    return ran.with_name("log").read_text()


def commands(ran: Path) -> list[str]:
    return ran.read_text().split() if ran.exists() else []


def test_schedule_makes_up_for_a_missed_run_and_ends_by_sigterm(database: StoreDatabase, ran: Path) -> None:
    with scheduled(database.url, ran) as process:
        wait_until(lambda: "schedule waiting command=verify" in log_of(ran) or process.poll() is not None)
        process.send_signal(signal.SIGTERM)
        exit_code = process.wait(DEADLINE_S)

    assert (exit_code, commands(ran)) == (0, ["compact"])
    assert "Traceback" not in log_of(ran)
    assert "WARNING" not in log_of(ran)
    assert all(database.read_upkeep(task) is not None for task in (Task.MERGE, Task.VERIFY))


def test_schedule_ends_by_sigterm_though_a_database_does_not_answer(database: StoreDatabase, ran: Path) -> None:
    server = shared_server()
    schema = database.url.rpartition("search_path=")[2]
    waiting = (
        "SELECT count(*) FROM pg_locks WHERE NOT granted AND relation = (SELECT oid FROM pg_class "
        f"WHERE relname = 'records' AND relnamespace = '{schema}'::regnamespace)"
    )

    async def run() -> int:
        holder = await asyncpg.connect(database.url)
        with scheduled(database.url, ran) as process:
            async with holder.transaction():
                await holder.execute("LOCK TABLE records")
                await until(lambda: server.sql(waiting) == "1")
                process.send_signal(signal.SIGTERM)
                exit_code = await asyncio.to_thread(process.wait, DEADLINE_S)
        await holder.close()
        return exit_code

    exit_code = asyncio.run(run())

    assert (exit_code, commands(ran)) == (0, [])
    assert log_of(ran).splitlines()[-1].endswith("schedule stopped")
    assert "last run unknown" not in log_of(ran)  # it would say so once it had waited for the lock
    assert "Traceback" not in log_of(ran)


def test_schedule_of_a_database_without_a_store_waits_for_one(empty: StoreDatabase, ran: Path) -> None:
    with scheduled(empty.url, ran) as process:
        wait_until(lambda: "schedule started command=verify" in log_of(ran) or process.poll() is not None)
        process.send_signal(signal.SIGTERM)
        exit_code = process.wait(DEADLINE_S)

    assert (exit_code, commands(ran)) == (0, [])
    assert "no store yet" in log_of(ran)
    assert "WARNING" not in log_of(ran)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (f"PRAGMA user_version = {SCHEMA_VERSION - 1}", f"PRAGMA user_version = {SCHEMA_VERSION}"),
        ("DELETE FROM identity", "INSERT INTO identity (id) VALUES ('new')"),
    ],
    ids=["an earlier version", "a backup"],
)
def test_schedule_waits_until_the_mailserver_was_started_on_a_file(
    tmp_path: Path, ran: Path, before: str, after: str
) -> None:
    file = put(tmp_path / "mailserver.db", [envelope(1, received=(day_of(int(time.time())) - 3) * DAY_S)])
    change(file, before)

    with scheduled(str(file), ran) as process:
        wait_until(lambda: "schedule waits for the mailserver" in log_of(ran) or process.poll() is not None)
        assert commands(ran) == []
        change(file, after)
        wait_until(lambda: "schedule waiting command=verify" in log_of(ran) or process.poll() is not None)

    assert commands(ran) == ["compact"]
    assert log_of(ran).count("schedule waits for the mailserver") == 1
    assert "WARNING" not in log_of(ran)


def test_schedule_waits_until_the_mailserver_has_migrated_a_database(database: StoreDatabase, ran: Path) -> None:
    migrate(database, -1)

    with scheduled(database.url, ran) as process:
        wait_until(lambda: "schedule waits for the mailserver" in log_of(ran) or process.poll() is not None)
        assert commands(ran) == []
        migrate(database, +1)
        wait_until(lambda: "schedule waiting command=verify" in log_of(ran) or process.poll() is not None)

    assert commands(ran) == ["compact"]
    assert "WARNING" not in log_of(ran)


def migrate(database: StoreDatabase, by: int) -> None:
    """Have a store be of an earlier version, or of ours again."""

    async def change_version() -> None:
        connection = await asyncpg.connect(database.url)
        try:
            await connection.execute(f"UPDATE {SCHEMA_TABLE} SET version = version + $1", by)
        finally:
            await connection.close()

    asyncio.run(change_version())


def test_schedule_that_waits_for_the_mailserver_ends_by_sigterm(tmp_path: Path, ran: Path) -> None:
    file = put(tmp_path / "mailserver.db", [envelope(1)])
    change(file, f"PRAGMA user_version = {SCHEMA_VERSION - 1}")

    with scheduled(str(file), ran) as process:
        wait_until(lambda: "schedule waits for the mailserver" in log_of(ran) or process.poll() is not None)
        process.send_signal(signal.SIGTERM)
        exit_code = process.wait(DEADLINE_S)

    assert (exit_code, commands(ran)) == (0, [])
    assert "Traceback" not in log_of(ran)


def test_night_merges_and_verifies_where_that_is_due(
    database: StoreDatabase, ran: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "program"))
    now = time.time()
    database.write_compaction(Compaction(now - 9, now, 0, succeeded_at=now, archived={1: ArchivedDay(1, 100)}))
    for task in (Task.MERGE, Task.VERIFY):
        database.write_upkeep(task, LastUpkeep(waits_since=1.0))

    assert nightly_of(tmp_path, store=database.url) == 0

    assert commands(ran) == ["compact", "merge", "verify"]


def test_night_puts_off_what_has_nothing_to_do(
    database: StoreDatabase, ran: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "program"))
    for task in (Task.MERGE, Task.VERIFY):
        database.write_upkeep(task, LastUpkeep(waits_since=1.0))

    assert nightly_of(tmp_path, store=database.url) == 0

    assert commands(ran) == ["compact"]
    for task in (Task.MERGE, Task.VERIFY):
        put_off = database.read_upkeep(task)
        assert put_off is not None
        assert put_off.waits_since > 1.0
