"""The nightly run on stores in PostgreSQL: the same archive as of a file, and the same care of what is deleted."""

import asyncio
import contextlib
import itertools
import json
import signal
import subprocess
import sys
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from mailserver.handoff.last_run import CompactionState
from mailserver.handoff.last_upkeep import Task
from mailserver.metrics.registry import Metrics
from mailserver.store.interface import NewEnvelope, Query
from mailserver.store.postgres.job import StoreDatabase
from mailserver.store.postgres.schema import LOCK_CLASS, Lock
from mailserver.store.postgres.store import open_store
from mailserver.store.retention import Surplus, TimeRetention
from mailserver.upkeep.pruning import Pruning, PruningSettings
from mailserver.waku.bloom import FULL_INTEREST, Interest, bloom_of
from spark_export import commands
from spark_export import compact as compact_module
from spark_export.cli import main
from spark_export.commands import explain
from spark_export.errors import ExportError
from spark_export.places import database_at
from spark_export.publishing import WritableArchive
from spark_export.recording import locked_stores, recorded
from spark_export.schedule import waiting
from spark_export.upkeep import recorded_upkeep
from spark_export.verify import verify
from tests.integration.daemons import run_command, running_daemon
from tests.spark_export.archives.test_answers import pages
from tests.spark_export.samples import (
    DAY,
    DAY_S,
    FIRST,
    NEWS,
    SECOND,
    SPORT,
    archived,
    change,
    compact_into,
    envelope,
    envelopes,
    periods,
    put,
    quarantined,
    records_in,
    rows_of,
    tree,
)
from tests.store.postgres.server import new_schema, shared_server
from tests.store.samples import EVER, answer
from tests.store.samples import raws as raw_list

pytestmark = pytest.mark.spark

ROOT = Path(__file__).parents[3]


class Database:
    """A store in a schema of its own, with what tests do to it."""

    def __init__(self) -> None:
        self.schema = new_schema(shared_server())
        self.url = shared_server().url(self.schema)
        self.place = StoreDatabase(self.url)

    def put(self, *groups: Iterable[NewEnvelope]) -> "Database":
        async def run() -> None:
            async with open_store(self.url) as store:
                for group in groups:
                    await store.put(list(group))

        asyncio.run(run())
        return self

    def sql(self, statement: str) -> str:
        return shared_server().sql(statement, self.schema)

    def handed_over(self) -> dict[int, int]:
        said = self.place.read_archived()
        return {} if said is None else dict(said.days)

    def prune(self, archive: Path, *, now: float, days: float = 3) -> None:
        """One round of the daemon's retention."""

        async def run() -> None:
            async with open_store(self.url) as store:
                settings = PruningSettings((TimeRetention(days),), archive=str(archive))
                await Pruning(store, settings, lambda: now, metrics=Metrics(), wall=lambda: now).prune_once()

        asyncio.run(run())

    def raws(self) -> set[bytes]:
        return {bytes.fromhex(line) for line in self.sql("SELECT encode(raw, 'hex') FROM envelopes").splitlines()}


@pytest.fixture
def database() -> Database:
    return Database()


def raws(given: Iterable[NewEnvelope]) -> set[bytes]:
    return {each.raw for each in given}


def test_database_and_file_with_the_same_envelopes_give_the_same_archive(
    spark: SparkSession, database: Database, store: Path, tmp_path: Path
) -> None:
    groups = [*envelopes(20), *envelopes(5)], envelopes(7, day=DAY + 1, first=100), envelopes(3, first=200)
    put(store, *groups)
    database.put(*groups)

    of_file = compact_into(spark, tmp_path / "of-file", store)
    of_database = compact_into(spark, tmp_path / "of-database", database.place)

    assert archived(tmp_path / "of-database") == archived(tmp_path / "of-file") == rows_of({*itertools.chain(*groups)})
    assert of_database.rows == of_file.rows == 30
    assert periods(tmp_path / "of-database") == [FIRST, SECOND]
    fingerprints = [
        {period: record.fingerprint for period, record in records_in(tmp_path / name).items()}
        for name in ("of-file", "of-database")
    ]
    assert fingerprints[0] == fingerprints[1]
    last = int(database.sql(f"SELECT max(seq) FROM envelopes WHERE received / 86400 = {DAY}"))
    assert database.handed_over()[DAY] == last
    assert of_database.miscounted == []


def test_late_rows_are_added_and_what_is_archived_is_not_read_again(
    spark: SparkSession, database: Database, archive: Path
) -> None:
    database.put(envelopes(5))
    compact_into(spark, archive, database.place)
    assert compact_into(spark, archive, database.place, run="run-2").rows == 0

    database.put(envelopes(4, first=50))
    report = compact_into(spark, archive, database.place, run="run-3")

    assert report.rows == 4
    assert archived(archive) == rows_of([*envelopes(5), *envelopes(4, first=50)])


def test_database_and_file_in_one_run_are_deduplicated(
    spark: SparkSession, database: Database, store: Path, archive: Path
) -> None:
    put(store, envelopes(20))
    database.put([each._replace(received=each.received + 1) for each in envelopes(30)])

    report = compact_into(spark, archive, store, database.place)

    late = [each._replace(received=each.received + 1) for each in envelopes(30)[20:]]
    assert report.rows == 30
    assert archived(archive) == rows_of(envelopes(20) + late)


def test_damaged_rows_are_set_aside_and_counted_as_of_a_file(
    spark: SparkSession, database: Database, store: Path, tmp_path: Path
) -> None:
    hit = [envelope(90 + number) for number in range(4)]
    damages = (
        "raw = {}ff00{}",
        "hash = {}00112233445566778899aabbccddeeff{}",
        f"topic = {{}}{SPORT.hex()}{{}}",
        "hash = {}00{}",
    )
    put(store, hit, envelopes(5))
    database.put(hit, envelopes(5))
    for number, damage in enumerate(damages, 1):
        change(store, f"UPDATE envelopes SET {damage.format(chr(120) + chr(39), chr(39))} WHERE seq = {number}")
        database.sql(f"UPDATE envelopes SET {damage.format(chr(39) + chr(92) + 'x', chr(39))} WHERE seq = {number}")

    of_file = compact_into(spark, tmp_path / "of-file", store)
    of_database = compact_into(spark, tmp_path / "of-database", database.place)

    assert (of_database.rows, of_database.quarantined) == (of_file.rows, of_file.quarantined) == (5, 4)
    assert archived(tmp_path / "of-database") == rows_of(envelopes(5))
    told = [
        [(line["seq"], line["fault"], line["raw"]) for line in quarantined(tmp_path / name)]
        for name in ("of-file", "of-database")
    ]
    assert told[0] == told[1]
    assert len(told[0]) == 4
    assert records_in(tmp_path / "of-database")[FIRST].days[DAY].quarantined == 4


def test_day_that_differs_from_its_counts_is_not_handed_over(
    spark: SparkSession, database: Database, archive: Path
) -> None:
    database.put(envelopes(5), envelopes(3, day=DAY + 1, first=50))
    database.sql("UPDATE envelopes SET received = received + 86400 * 5 WHERE seq = 3")

    report = compact_into(spark, archive, database.place)

    assert report.miscounted == [{"store": str(database.place), "day": FIRST, "rows": -1}]
    assert database.handed_over().keys() == {DAY + 1}


def test_retention_drops_what_is_archived_and_keeps_the_rest(
    spark: SparkSession, database: Database, archive: Path
) -> None:
    today = int(database.sql("SELECT extract(epoch FROM now())::bigint / 86400"))
    now = float((today + 1) * DAY_S)
    old, other = envelopes(5, day=today - 10), envelopes(4, day=today - 9, first=50)
    # Received the day after it was created: its partition goes when both days of reception are archived.
    late = envelope(90, received=(today - 9) * DAY_S + 5, created=(today - 10) * DAY_S + 7)
    database.put(old, [late], other)
    everything = raws([*old, late, *other])
    database.prune(archive, now=now)
    assert database.raws() == everything

    compact_into(spark, archive, database.place, now=now, until=today - 10)
    database.prune(archive, now=now)
    assert database.raws() == everything

    compact_into(spark, archive, database.place, now=now, run="run-2", until=today - 9)
    unarchived = envelopes(2, day=today - 9, first=70)
    database.put(unarchived)
    aside = archive.rename(archive.with_name("aside"))
    database.prune(archive, now=now)
    assert database.raws() == everything | raws(unarchived)  # the archive was looked at

    aside.rename(archive)
    database.prune(archive, now=now)
    assert database.raws() == raws([*other, *unarchived])
    assert database.sql(f"SELECT to_regclass('envelopes_d{today - 10}')") == ""

    compact_into(spark, archive, database.place, now=now, run="run-3")
    database.prune(archive, now=now)
    assert database.raws() == set()
    assert archived(archive) == rows_of([*old, late, *other, *unarchived])


def test_number_of_the_last_row_of_a_day_stays_when_its_rows_are_dropped(
    spark: SparkSession, database: Database, archive: Path
) -> None:
    today = int(database.sql("SELECT extract(epoch FROM now())::bigint / 86400"))
    now, received = float((today + 1) * DAY_S), (today - 9) * DAY_S
    kept = envelope(1, received=received, created=(today - 9) * DAY_S)
    dropped = envelope(2, received=received + 1, created=(today - 10) * DAY_S)
    database.put([kept], [dropped])
    compact_into(spark, archive, database.place, now=now)

    database.sql(
        f"DELETE FROM envelopes WHERE seq = 2; DELETE FROM counts WHERE day = {today - 10}"
    )  # as when its partition is dropped
    report = compact_into(spark, archive, database.place, now=now, run="run-2")

    assert report.rows == 0
    assert database.handed_over() == {today - 9: 2}


def test_database_put_back_to_an_earlier_moment_loses_nothing_to_numbers_that_the_archive_knows(
    spark: SparkSession, database: Database, archive: Path
) -> None:
    before, lost, after = envelopes(4), envelopes(3, first=100), envelopes(3, first=200)
    database.put(before)
    dump = shared_server().dump(database.schema)
    database.put(lost)
    compact_into(spark, archive, database.place)  # knows rows 5 to 7, which are there no more
    shared_server().restore(database.schema, dump)

    compact_into(spark, archive, database.place, run="run-2")  # before any mailserver is started
    database.put(after)
    numbers = [int(line) for line in database.sql("SELECT seq FROM envelopes ORDER BY seq").splitlines()]
    compact_into(spark, archive, database.place, run="run-3")

    assert numbers[:4] == [1, 2, 3, 4]
    assert numbers[4] > 7
    assert archived(archive) == rows_of([*before, *lost, *after])
    assert database.handed_over() == {DAY: numbers[-1]}


# One at a time


def test_nothing_is_deleted_while_a_run_reads(database: Database) -> None:
    database.put(envelopes(5))

    async def pruned() -> tuple[bool, int]:
        async with open_store(database.url) as store, store.handoff.pruning_turn() as ours:
            return ours, (await store.prune(Surplus(2**40, 100))).envelopes

    with locked_stores([database.place]):
        assert asyncio.run(pruned()) == (False, 0)
    assert asyncio.run(pruned()) == (True, 5)


def test_two_runs_never_read_a_store_at_once(database: Database) -> None:
    database.put(envelopes(1))

    with (
        locked_stores([database.place]),
        pytest.raises(ExportError, match=r"another compaction \(pid [0-9]+ of the database\) reads this store"),
        locked_stores([database_at(database.url)]),
    ):
        pytest.fail("both have it")
    with (
        pytest.raises(ExportError, match="named twice"),
        locked_stores([database.place, database_at(database.url)]),
    ):
        pytest.fail("both have it")
    with locked_stores([database_at(database.url)]):
        pass


def test_run_waits_for_the_batch_that_is_being_deleted(database: Database) -> None:
    database.put(envelopes(1))
    deleting, done = threading.Event(), threading.Event()

    def delete() -> None:
        place = database_at(database.url)
        key = f"{LOCK_CLASS + Lock.COMPACTION}, current_schema()::regnamespace::oid::int"
        with place.connected():
            place.select(f"SELECT pg_advisory_lock_shared({key})")
            deleting.set()
            assert done.wait(20)
            order.append("deleted")

    order: list[str] = []
    thread = threading.Thread(target=delete)
    thread.start()
    assert deleting.wait(20)
    threading.Timer(0.2, done.set).start()
    with locked_stores([database.place]):
        order.append("read")
    thread.join()
    assert order == ["deleted", "read"]


def test_state_of_the_last_run_is_told_to_the_daemon(database: Database) -> None:
    database.put(envelopes(1))

    async def told() -> tuple[CompactionState, CompactionState]:
        async with open_store(database.url) as store:
            return (await store.handoff.last_run())[0], (await store.handoff.last_upkeep(Task.MERGE))[0]

    assert asyncio.run(told()) == (CompactionState.NEVER, CompactionState.NEVER)
    with contextlib.suppress(ExportError), recorded([database.place], explain):
        assert asyncio.run(told())[0] is CompactionState.RUNNING
        raise ExportError("what went wrong")
    with contextlib.suppress(ExportError), recorded_upkeep([database.place], Task.MERGE, explain):
        assert asyncio.run(told())[1] is CompactionState.RUNNING
        with (
            pytest.raises(ExportError, match="another run of merge"),
            recorded_upkeep([database_at(database.url)], Task.MERGE, explain),
        ):
            pytest.fail("both are at work")
        raise ExportError("what went wrong")

    assert asyncio.run(told()) == (CompactionState.FAILED, CompactionState.FAILED)
    state, record = database.place.last_run()
    assert (state, record and record.error) == (CompactionState.FAILED, "what went wrong")


def test_run_that_gets_sigkill_has_died_and_holds_no_lock(database: Database) -> None:
    database.put(envelopes(1))
    code = (
        "import sys, time\n"
        "from spark_export.commands import explain\n"
        "from spark_export.places import place_of\n"
        "from spark_export.recording import recorded\n"
        "with recorded([place_of(sys.argv[1])], explain):\n"
        "    print('at work', flush=True)\n"
        "    sys.stdin.read()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, database.url], stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT
    ) as run:
        assert run.stdout is not None
        assert run.stdout.readline() == b"at work\n"
        assert database.place.last_run()[0] is CompactionState.RUNNING
        run.kill()

    with locked_stores([database.place]):  # once the server has noticed
        pass
    assert database.place.last_run()[0] is CompactionState.DIED


def test_run_that_has_lost_its_lock_hands_nothing_over(
    spark: SparkSession, database: Database, archive: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    database.put(envelopes(5))
    publish = WritableArchive.publish

    def cut_off(*arguments: Any) -> Any:
        published = publish(*arguments)
        database.sql(
            f"SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory' AND objid = "
            f"'{database.schema}'::regnamespace::oid"
        )
        return published

    with monkeypatch.context() as patch:
        patch.setattr(WritableArchive, "publish", cut_off)
        with pytest.raises(ExportError, match="cannot write beside"):
            compact_into(spark, archive, database.place)
    assert database.handed_over() == {}

    report = compact_into(spark, archive, database.place, run="run-2")

    assert (report.rows, archived(archive)) == (0, rows_of(envelopes(5)))
    assert database.handed_over() == {DAY: 5}


class Killed(BaseException):
    """The end of a run."""


@pytest.mark.parametrize("step", ["write_pieces", "hand_over"])
def test_run_killed_between_files_and_record_is_done_by_the_next(
    spark: SparkSession, database: Database, archive: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    database.put(envelopes(4), envelopes(3, day=DAY + 1, first=70))
    real = getattr(compact_module, step)

    def dying(*arguments: Any) -> Any:
        if step == "hand_over" and not records_in(archive):  # before anything was written
            return real(*arguments)
        if step == "write_pieces":
            real(*arguments)
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(compact_module, step, dying)
        with pytest.raises(Killed):
            compact_into(spark, archive, database.place)
    assert database.handed_over() == {}

    compact_into(spark, archive, database.place, run="run-2")

    assert archived(archive) == rows_of([*envelopes(4), *envelopes(3, day=DAY + 1, first=70)])
    assert database.handed_over() == {DAY: 4, DAY + 1: 7}


# Refused


def test_database_without_a_store_is_refused(spark: SparkSession, database: Database, archive: Path) -> None:
    with pytest.raises(ExportError, match="there is none"):
        compact_into(spark, archive, database.place)


def test_store_of_an_earlier_version_is_refused_until_a_mailserver_has_migrated_it(
    spark: SparkSession, database: Database, archive: Path
) -> None:
    database.put(envelopes(3), envelopes(2, day=DAY + 1, first=50))
    database.sql("DROP TABLE reception_days; UPDATE mailserver_schema SET version = 2")
    with pytest.raises(ExportError, match="start this version of the mailserver on it once"):
        compact_into(spark, archive, database.place)

    database.put(envelopes(1, day=DAY + 1, first=60))

    assert compact_into(spark, archive, database.place).rows == 6
    assert database.handed_over() == {DAY: 3, DAY + 1: 6}


def test_store_of_another_network_topic_is_refused(spark: SparkSession, database: Database, archive: Path) -> None:
    database.put(envelopes(3))
    database.sql("UPDATE id_index SET network_topic = '/waku/2/other'")

    with pytest.raises(ExportError, match="belong to /waku/2/other"):
        compact_into(spark, archive, database.place)


def test_verification_takes_back_what_the_archive_does_not_have_any_more(
    spark: SparkSession, database: Database, archive: Path
) -> None:
    database.put(envelopes(4))
    compact_into(spark, archive, database.place)
    for file in archive.glob(f"date={FIRST}/**/*.parquet"):
        file.unlink()

    verify(spark, str(archive), stores=[database.place])

    assert database.handed_over() == {}


# Commands


def test_commands_name_a_database_and_show_no_password(
    spark: SparkSession,
    database: Database,
    archive: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    database.put(envelopes(3))
    url = database.url.replace("postgres@", "postgres:verysecret@")
    monkeypatch.setattr(commands, "spark_session", lambda *_, **__: contextlib.nullcontext(spark))
    handler = signal.getsignal(signal.SIGTERM)

    codes = [
        main(["compact", "--store", url, "--archive", str(archive)]),
        main(["verify", "--store", url, "--archive", str(archive)]),
        main(["last", "--store", url]),
        main(["communities", "--store", url, "--archive", str(archive), "--communities", str(archive / "none")]),
    ]

    signal.signal(signal.SIGTERM, handler)
    said = capsys.readouterr()
    assert codes == [0, 0, 0, 0], said.err
    assert archived(archive) == rows_of(envelopes(3))
    assert f"{database.place}: " in said.out
    assert "verysecret" not in said.out + said.err + "".join(tree_text(archive))
    assert waiting([database.place], 2**33) == pytest.approx(database.place.last_run()[1].succeeded_at)  # type: ignore[union-attr]
    assert database.place.last_upkeep(Task.VERIFY)[0] is CompactionState.SUCCEEDED
    assert database.place.last_upkeep(Task.COMMUNITIES)[0] is CompactionState.SUCCEEDED


def tree_text(archive: Path) -> list[str]:
    return [content.decode("latin-1") for content in tree(archive, without=()).values()]


# Answers


def test_what_was_archived_and_dropped_is_answered(spark: SparkSession, database: Database, archive: Path) -> None:
    today = int(database.sql("SELECT extract(epoch FROM now())::bigint / 86400"))
    now = float((today + 1) * DAY_S)
    everything = [one for day in range(6) for one in envelopes(12, day=today - 8 + day, first=100 * day)]
    database.put(everything)
    compact_into(spark, archive, database.place, now=now)
    database.prune(archive, now=now, days=6)
    assert 0 < len(database.raws()) < len(everything)

    for interest in (FULL_INTEREST, Interest(topics=frozenset({NEWS})), Interest(bloom=bloom_of([SPORT]))):
        for bounds in (EVER, ((today - 7) * DAY_S, (today - 4) * DAY_S)):
            query = Query(*bounds, interest)
            for limit in (7, 1000):
                found = pages(lambda: open_store(database.url), archive, query, limit)
                assert found == raw_list(answer(everything, query)), query


def test_daemon_answers_from_the_archive_what_it_has_dropped(
    spark: SparkSession, database: Database, archive: Path, tmp_path: Path
) -> None:
    today = int(database.sql("SELECT extract(epoch FROM now())::bigint / 86400"))
    everything = [one for day in range(5) for one in envelopes(12, day=today - 6 + day, first=100 * day)]
    database.put(everything)
    compact_into(spark, archive, database.place, now=float((today + 1) * DAY_S))
    flags = ("--store", database.url, "--archive", str(archive), "--retention-days", "2")

    with running_daemon(tmp_path / "data", *flags) as daemon:
        daemon.wait_for_line("history is answered from the archive, too")
        daemon.wait_for_line("pruned envelopes=")
        found = run_command("request", daemon.enode, "--from", 1, "--all", "--limit", 7, "--format", "raw")
        doctor = run_command("doctor", *flags, "--listen", "127.0.0.1:0", "--json")

    assert len(database.raws()) < len(everything)
    newest_first = answer(everything, Query(*EVER, FULL_INTEREST))
    assert found.stdout.split() == [raw.hex() for raw in raw_list(newest_first)], found.stderr + daemon.log
    said = {finding["check"]: finding for finding in json.loads(doctor.stdout)}
    assert said["archive"]["verdict"] == "ok"
    assert "has every file of the " in said["archive"]["text"]
