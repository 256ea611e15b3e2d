"""Publishing on S3, without Spark: whatever request a kill comes before, records name files that are there, readers of
directories miss nothing, and the next run completes it. And two runs at once, which no lease keeps apart, lose nothing.
"""

import io
import itertools
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from mailserver.archive.access.bucket import BucketFiles
from mailserver.archive.archive import Archive
from mailserver.archive.days import day_name, month_of
from mailserver.archive.errors import ArchiveError
from mailserver.archive.faults import FaultKind
from mailserver.archive.files import LocalFiles
from mailserver.archive.fingerprint import Fingerprint
from mailserver.archive.layout import Layout, PartitionBy
from mailserver.archive.manifest import DayRecord, FileRecord, PeriodRecord, encode_record
from mailserver.archive.paths import directory_of, index_of, record_of
from spark_export.errors import ExportCheckFailed
from spark_export.inspection import names_and_sizes
from spark_export.pieces import Batch, FileRows, Piece, PieceSource, StoreRows
from spark_export.publishing import WritableArchive
from spark_export.s3_storage import S3Storage
from spark_export.writing import WritingJob, by_period, write_indexes, write_piece
from tests.s3 import FakeS3, fake_s3
from tests.spark_export.samples import DAY, FIRST, NEWS, SECOND, SPORT, envelopes, put

pytestmark = pytest.mark.integration

LAYOUT = Layout(PartitionBy.TOPIC_PREFIX, 1)
MONTH = month_of(DAY)
TWO_FILES = (NEWS, SPORT)
"""Topics of two directories."""
DAY_ONE, LATE = envelopes(6, topics=TWO_FILES), envelopes(3, first=50, topics=TWO_FILES)
DAY_TWO = envelopes(3, day=DAY + 1, first=70, topics=(NEWS,))


def hashes(*groups: Sequence[object]) -> set[str]:
    return {"0x" + one.hash.hex() for group in groups for one in group}  # type: ignore[attr-defined]


@dataclass(frozen=True, slots=True)
class Change:
    """What a run is about to publish, in place of what; all before it and after it, by period."""

    run: str
    records: list[PeriodRecord]
    before: list[PeriodRecord]
    old: set[str]
    new: set[str]


class World:
    """An archive on S3, a store, and a folder for copies to look at, which takes no requests."""

    def __init__(self, s3: FakeS3, folder: Path) -> None:
        self.s3 = s3
        self.store = put(folder / "mailserver.db", DAY_ONE, LATE, DAY_TWO)
        self._copy = folder / "copy"

    def archive(self) -> WritableArchive:
        return WritableArchive(S3Storage(self.s3.root))

    def rows(self, first: int, last: int, day: int = DAY) -> StoreRows:
        batch = Batch(first, last, last - first + 1, 500 * (last - first + 1))
        return StoreRows(0, "id of the store", str(self.store), day, (batch,), np.array([], np.int64))

    def staged(
        self, run: str, period: str, *sources: PieceSource, replaces: Sequence[PeriodRecord] = ()
    ) -> PeriodRecord:
        """What a run has written and verified of a period."""
        job = WritingJob(f"s3://{self.s3.root}", LAYOUT, run)
        written = write_piece(job, Piece(period, 0, sources))
        found = by_period([written])[period]
        days = {day: DayRecord(part, *found.created[day], {"ab" * 16: 100}, 0) for day, part in found.days.items()}
        pairs = tuple((one.period, one.run) for one in replaces)
        index = write_indexes(job, [written])[period]
        return PeriodRecord(period, run, days, found.files, pairs, index=index)

    def begin(self) -> list[PeriodRecord]:
        """Publish two days: return their records."""
        self.archive().begin(LAYOUT)
        records = [
            self.staged("run-1", FIRST, self.rows(1, 6)),
            self.staged("run-1", SECOND, self.rows(10, 12, DAY + 1)),
        ]
        return self.archive().publish("run-1", records, [])

    def copy(self) -> Archive:
        """The archive as it is now."""
        shutil.rmtree(self._copy, ignore_errors=True)
        for name, content in self.s3.objects().items():
            (self._copy / name).parent.mkdir(parents=True, exist_ok=True)
            (self._copy / name).write_bytes(content)
        return Archive(LocalFiles(self._copy))

    def by_records(self) -> set[str]:
        """The rows that records name."""
        objects, records = self.s3.objects(), self.copy().records().values()
        names = [f"{directory_of(record.period)}/{file.path}" for record in records for file in record.files]
        found = [one for name in names for one in rows_in(objects[name])]
        assert len(found) == len(set(found))
        return set(found)

    def by_directories(self) -> list[str]:
        """The rows that readers of directories find."""
        return [
            one for name, content in self.s3.objects().items() if name.startswith("date=") for one in rows_in(content)
        ]

    def runs(self) -> set[str]:
        """Who has written the periods."""
        return {record.run for record in self.copy().records().values()}

    def assert_readable(self, change: Change) -> None:
        """Whoever goes by records finds all as it was, or as it will be, and each row once; others miss nothing."""
        assert self.by_records() in (change.old, change.new)
        assert change.old <= set(self.by_directories())

    def assert_complete(self, rows: set[str]) -> None:
        """All is as it should be, with nothing left over."""
        archive = self.copy()
        records = archive.records()
        assert self.by_records() == set(self.by_directories()) == rows
        assert names_and_sizes(archive, records) == []
        indexes = {index_of(record.period, record.run) for record in records.values()}
        objects = self.s3.objects().keys()
        assert indexes <= objects
        assert not [name for name in objects if name.startswith("_staging/")]
        assert {name for name in objects if name.startswith("_records/")} == {
            f"_records/{name}.json" for name in records
        }


def rows_in(content: bytes) -> list[str]:
    found: list[str] = pq.read_table(io.BytesIO(content), columns=["hash"]).column("hash").to_pylist()
    return found


@pytest.fixture
def s3(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeS3]:
    with fake_s3(monkeypatch) as fake:
        yield fake


@pytest.fixture
def world(s3: FakeS3, tmp_path: Path) -> World:
    return World(s3, tmp_path)


def late_rows(world: World) -> Change:
    """A day is written anew, with rows that came late, and another day is new."""
    first, _ = world.begin()
    record = world.staged("run-2", FIRST, world.rows(1, 9))
    everything = hashes(DAY_ONE, DAY_TWO)
    return Change("run-2", [record], [first], everything, everything | hashes(LATE))


def merge(world: World) -> Change:
    """Days are merged into their month."""
    days = world.begin()
    sources = [FileRows(f"{directory_of(day.period)}/{file.path}", file.sha256) for day in days for file in day.files]
    record = world.staged("merge", MONTH, *sources, replaces=days)
    everything = hashes(DAY_ONE, DAY_TWO)
    return Change("merge", [record], days, everything, everything)


def late_rows_of_a_month(world: World) -> Change:
    """A month and a day of it, with rows that came late, are merged into the month."""
    change = merge(world)
    (month,) = world.archive().publish(change.run, change.records, change.before)
    (day,) = world.archive().publish("run-2", [world.staged("run-2", FIRST, world.rows(7, 9))], [])
    parts = [month, day]
    sources = [FileRows(f"{directory_of(one.period)}/{file.path}", file.sha256) for one in parts for file in one.files]
    record = world.staged("merge-2", MONTH, *sources, replaces=[day])
    everything = hashes(DAY_ONE, DAY_TWO, LATE)
    return Change("merge-2", [record], parts, everything, everything)


@pytest.mark.parametrize(("prepare", "step"), [(late_rows, 1), (late_rows_of_a_month, 2)])
def test_run_killed_before_any_change_is_done_by_the_next(
    world: World, prepare: Callable[[World], Change], step: int
) -> None:
    change = prepare(world)
    begun = world.s3.objects()
    outcomes = []
    for at in itertools.count(step=step):
        world.s3.hold(begun)
        try:
            with world.s3.refusing_changes_after(at):
                world.archive().publish(change.run, change.records, change.before)
        except ArchiveError:
            world.assert_readable(change)
            world.archive().repair()
            outcomes.append(world.runs() >= {change.run})
            world.assert_complete(change.new if outcomes[-1] else change.old)
        else:
            break
    world.assert_complete(change.new)
    assert names_and_sizes(world.archive(), world.archive().records()) == []  # no directory is left empty either
    assert outcomes == sorted(outcomes)  # what is verified and written down stays so
    assert {False, True} == set(outcomes)
    assert len(outcomes) > 10


def test_repair_that_is_killed_is_done_by_the_next(world: World) -> None:
    change = late_rows(world)
    archive = world.archive()
    with pytest.raises(ArchiveError), world.s3.refusing_changes_after(3):  # the journal, and one of two copies
        archive.publish(change.run, change.records, change.before)
    killed = world.s3.objects()
    for at in itertools.count(step=2):
        world.s3.hold(killed)
        try:
            with world.s3.refusing_changes_after(at):
                world.archive().repair()
        except ArchiveError:
            world.assert_readable(change)
            world.archive().repair()
            world.assert_complete(change.new)
        else:
            break
    assert at > 5


def test_old_files_are_kept_while_the_new_ones_are_not_what_was_written(world: World) -> None:
    change = late_rows(world)
    killed_after = world.s3.objects()
    archive = world.archive()
    archive.publish(change.run, change.records, change.before)
    deleted = [one for one in world.s3.asked if one.startswith(f"DELETE /{world.s3.root}/date=") and one[-1] != "/"]
    assert sorted(deleted) == sorted(
        f"DELETE /{world.s3.root}/{directory_of(old.period)}/{file.path}" for old in change.before for file in old.files
    )
    world.s3.hold(killed_after)

    real = archive.replace_record

    def lose_one(record: PeriodRecord) -> None:
        real(record)
        content = world.s3.objects()
        content.pop(f"{directory_of(record.period)}/{record.files[0].path}")
        world.s3.hold(content)

    archive.replace_record = lose_one  # type: ignore[method-assign]
    archive.publish(change.run, change.records, change.before)

    assert change.old <= set(world.by_directories())
    kinds = {fault.kind for fault in names_and_sizes(archive, archive.records())}
    assert kinds == {FaultKind.MISSING, FaultKind.UNRECORDED}  # the next run takes their rows in


def test_period_that_another_run_has_written_is_not_published(world: World) -> None:
    first, _ = world.begin()
    ours = world.staged("run-2", FIRST, world.rows(1, 8))
    theirs = world.staged("run-3", FIRST, world.rows(1, 9))
    world.archive().publish("run-3", [theirs], [first])
    before = world.s3.objects()

    with pytest.raises(ExportCheckFailed, match=f"{FIRST}: run run-3 has written it meanwhile, in place of run run-1"):
        world.archive().publish("run-2", [ours], [first])

    assert world.s3.objects() == before


def test_day_that_came_back_is_not_merged_unseen(world: World) -> None:
    change = merge(world)
    first, _ = change.before
    world.archive().publish("run-3", [world.staged("run-3", FIRST, world.rows(1, 9))], [first])

    with pytest.raises(ExportCheckFailed, match=f"{FIRST}: run run-3 has written it"):
        world.archive().publish(change.run, change.records, change.before)

    assert hashes(LATE) <= set(world.by_directories())


def test_run_that_wakes_up_amidst_another_loses_no_row(world: World) -> None:
    first, _ = world.begin()
    slept = world.staged("run-2", FIRST, world.rows(1, 8))
    other = world.staged("run-3", FIRST, world.rows(1, 9))
    with pytest.raises(ArchiveError), world.s3.refusing_changes_after(2):  # it sleeps after its journal
        world.archive().publish("run-2", [slept], [first])
    world.archive().publish("run-3", [other], [first])

    world.archive().repair()  # what the sleeper would do next: it believes that it is alone

    assert set(world.by_directories()) == hashes(DAY_ONE, LATE, DAY_TWO)
    faults = names_and_sizes(world.archive(), world.archive().records())
    assert {fault.kind for fault in faults} == {FaultKind.UNRECORDED}  # of run-3: the next run takes their rows in
    assert all("run-3" in fault.file for fault in faults)


def hold_days(s3: FakeS3, count: int) -> dict[str, PeriodRecord]:
    """Have a bucket hold as many days, each with two files and an index."""
    objects: dict[str, bytes] = {}
    records: dict[str, PeriodRecord] = {}
    for day in range(DAY - count, DAY):
        period = day_name(day)
        files = tuple(FileRecord(f"topic_prefix={digit}/part-run-1.parquet", 5, 3) for digit in "9f")
        said = DayRecord(Fingerprint(6, 10, 0), 0, 0, {"ab" * 16: 6}, 0)
        record = records[period] = PeriodRecord(period, "run-1", {day: said}, files)
        objects |= {f"{directory_of(period)}/{file.path}": b"PAR1." for file in files}
        objects |= {record_of(period): encode_record(record).encode(), index_of(period, "run-1"): b"index"}
    s3.hold(objects)
    return records


def listings(s3: FakeS3, since: int) -> int:
    return sum(one.startswith("GET") and one.strip("/").endswith(s3.bucket) for one in s3.asked[since:])


def test_files_of_a_year_are_compared_by_a_listing_of_all(s3: FakeS3) -> None:
    records = hold_days(s3, 365)
    archive, since = Archive(BucketFiles(s3.root)), len(s3.asked)

    assert names_and_sizes(archive, records) == []

    objects = len(s3.objects())
    assert len(s3.asked) - since == listings(s3, since) <= -(-objects // 1000) + 2  # what is at the top, second names


def test_repair_lists_no_more_for_more_days(s3: FakeS3) -> None:
    found = []
    for days in (2, 20):
        hold_days(s3, days)
        before, since = s3.objects(), len(s3.asked)

        WritableArchive(S3Storage(s3.root)).repair()

        assert s3.objects() == before
        found.append(listings(s3, since))
    assert found[0] == found[1]
