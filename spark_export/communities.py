"""The run that makes the history archives of communities: one for all that we own, and all of their ranges that are
due.

Each range of each community is a task (`make_range`): it looks for envelopes that are new to the history, and writes
the archives of the range to a scratch file. The driver appends these to each community's `data`, in the order of time
(`mailserver.community.owner.appending`). So a run that is killed has changed nothing that was published, and the next
one does what is left. What a task makes depends on the envelopes alone, so it may be tried again, anywhere.

If files of a community are damaged, nothing is made for it; all others go on, and the run fails at its end.
"""

import contextlib
import logging
import os
import shutil
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from mailserver.archive.archive import Archive
from mailserver.archive.days import utc_text
from mailserver.communities.formats import EncodedArchive, TimeRange
from mailserver.communities.index import IndexRoom
from mailserver.communities.ranges import PERIOD_S
from mailserver.community.owner.appending import Made, NewArchive, append, read_made
from mailserver.community.owner.folders import CommunityFolder, owned
from mailserver.community.owner.record import Community, CommunityError
from mailserver.files import PRIVATE_FOLDER, open_descriptor, read_holder, try_lock, write_holder
from mailserver.store.sqlite.schema import HASH_PREFIX_BYTES
from mailserver.units import SECONDS_PER_DAY
from spark_export.community_encoding import CandidateRow, RangeWork, Skipped, archives_of
from spark_export.community_plan import SETTLE_S, Due, late_ranges, plan_community
from spark_export.community_rows import ArchivedPeriods, EnvelopeDatabase, RangeSources, oldest_held, read_rows
from spark_export.errors import ExportError, HoldingsError
from spark_export.places import StorePlace, address_of
from spark_export.session import tasks_failures_told
from spark_export.storage import open_storage
from spark_export.store import oldest_day

log = logging.getLogger(__name__)

LOCK_FILE = "job.lock"
SCRATCH_FOLDER = ".making"

MAX_PARTS = 4096
"""Most tasks of Spark's. Each takes some milliseconds, so ranges share them beyond that."""


@dataclass(frozen=True, slots=True)
class CommunitiesRun:
    """What a run is told.

    `communities`: the folder `DIR/communities`. `stores`: of the mailservers that hear its channels. `archive`: the
    Parquet archive's place, None if there is none. `missing`: times of which the stores still fetch messages.
    """

    communities: Path
    stores: tuple[StorePlace, ...]
    archive: str | None = None
    settle_s: int = SETTLE_S
    period_s: int = PERIOD_S
    missing: tuple[TimeRange, ...] = ()


@dataclass(slots=True)
class CommunityReport:
    """What became of one community.

    `further`: how many archives are of ranges that had one. `left_out`: how many there is no room for in the index.
    `takes_late`: whether there is room for what comes late. `error`: why nothing was made, "" if all went well.
    """

    id: str
    name: str
    archives: int = 0
    messages: int = 0
    bytes: int = 0
    ranges: list[TimeRange] = field(default_factory=list)
    further: int = 0
    waiting: list[TimeRange] = field(default_factory=list)
    unopened: int = 0
    damaged: int = 0
    left_out: int = 0
    takes_late: bool = True
    error: str = ""


@dataclass(slots=True)
class CommunitiesReport:
    """What a run has done."""

    now: float
    communities: list[CommunityReport] = field(default_factory=list)

    @property
    def failures(self) -> str:
        """In one line, the communities for which nothing was made, and why; "" if there are none."""
        failed = [each for each in self.communities if each.error]
        if not failed:
            return ""
        more = "" if len(failed) == 1 else f"; and {len(failed) - 1} more"
        return f"no history archives of {failed[0].id} were made: {failed[0].error}{more}"

    def as_json(self) -> dict[str, Any]:
        """For programs."""
        return {"now": self.now, "communities": [asdict(each) for each in self.communities]}

    def as_words(self) -> Iterator[str]:
        """For people."""
        for each in self.communities:
            if each.error:
                known = f"{each.name} ({each.id})" if each.name else each.id
                yield f"{known}: no history archives were made: {each.error}"
                continue
            said = f"{each.name} ({each.id}): {each.archives} history archives of {len(each.ranges)} ranges"
            yield f"{said}, {each.messages:,} messages, {each.bytes:,} bytes"
            if each.waiting:
                first = utc_text(each.waiting[0].lower)
                yield f"  {len(each.waiting)} ranges from {first} on wait: messages of them are still to be fetched"
            if not each.takes_late:
                yield "  envelopes that come late are left out: half of what an index may list is used"
            for count, what in (
                (each.left_out, "history archives are left out: the index may list no more"),
                (each.unopened, "envelopes that no key of their channel opens are left out"),
                (each.damaged, "envelopes that are damaged, or without an id, are left out"),
            ):
                if count:
                    yield f"  {count:,} {what}"


@dataclass(slots=True)
class _Owned:
    folder: CommunityFolder
    community: Community
    made: Made
    report: CommunityReport
    held_since: int | None
    """When the first of its holdings was received, Unix seconds; None if there are none."""

    @property
    def published(self) -> dict[TimeRange, bytes]:
        """The keys of the envelopes of each range that has an archive."""
        keys: dict[TimeRange, bytes] = defaultdict(bytes)
        for entry, ids in zip(self.made.entries, self.made.ids, strict=True):
            keys[entry.time_range] += ids.keys
        return keys


@dataclass(frozen=True, slots=True)
class RangeTask:
    """What a task does: the work, where its envelopes are, and the scratch file for what it makes."""

    work: RangeWork
    sources: RangeSources
    file: Path


@dataclass(frozen=True, slots=True)
class RangeMade:
    """What a task has made: of each archive its size, its padding, and how many messages it has.

    `error`: why it has made none; "" if all that it needs could be read.
    """

    archives: tuple[tuple[int, int, int], ...]
    skipped: Skipped
    error: str = ""


RunTasks = Callable[[Sequence[RangeTask]], Sequence[RangeMade]]


def make_archives(spark: SparkSession, config: CommunitiesRun, *, now: float) -> CommunitiesReport:
    """Make the history archives that are due, in tasks of Spark.

    Args:
        now: Unix seconds.
    Raises:
        PySparkException, Py4JError: Spark has failed; else as `make_archives_by`.
    """

    def run_tasks(tasks: Sequence[RangeTask]) -> list[RangeMade]:
        with tasks_failures_told():
            return spark.sparkContext.parallelize(tasks, min(len(tasks), MAX_PARTS)).map(make_range).collect()

    archive = None if config.archive is None else Archive(open_storage(spark, config.archive))
    return make_archives_by(run_tasks, config, archive, now=now)


def make_archives_by(
    run_tasks: RunTasks, config: CommunitiesRun, archive: Archive | None, *, now: float
) -> CommunitiesReport:
    """Make the history archives that are due.

    Args:
        run_tasks: calls `make_range` for each task, wherever; returns what it returned, in the same order.
        archive: the Parquet archive, None if there is none.
        now: Unix seconds.
    Raises:
        ExportError: another run is at work, or a store cannot be read.
        CommunityError: the folder of the communities cannot be read, or has too many.
        ArchiveError: the Parquet archive cannot be read.
    """
    report = CommunitiesReport(now)
    if not config.communities.exists():  # nobody has made a community yet
        return report
    with _locked(config.communities):
        scratch = config.communities / SCRATCH_FOLDER
        shutil.rmtree(scratch, ignore_errors=True)  # of a run that was killed
        communities = _owned(config.communities, report)
        due = Due(int(now), config.settle_s, config.period_s, config.missing)
        tasks = _tasks(config, archive, communities, due)
        scratch.mkdir(PRIVATE_FOLDER)
        try:
            made = run_tasks(tasks) if tasks else []
            for each, parts in groupby(zip(tasks, made, strict=True), lambda part: part[0].work.community):
                with _concerning(communities[each].report):
                    _append(communities[each], [*parts])
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
    return report


def _tasks(config: CommunitiesRun, archive: Archive | None, communities: Sequence[_Owned], due: Due) -> list[RangeTask]:
    """What is to be looked at, in the order of communities and time."""
    layout = None if archive is None else archive.layout()
    periods = None if archive is None or layout is None else ArchivedPeriods(archive, layout)
    first_days = [None if periods is None else periods.first_day, *map(oldest_day, config.stores)]
    days = [day for day in first_days if day is not None]
    stores = tuple(EnvelopeDatabase(address_of(place), is_store=True) for place in config.stores)
    tasks: list[RangeTask] = []
    for number, each in enumerate(communities):
        holdings = EnvelopeDatabase(str(each.folder.holdings.absolute()), is_store=False)
        has_holdings = each.folder.holdings.exists()
        received = [day * SECONDS_PER_DAY for day in days] + ([] if each.held_since is None else [each.held_since])
        late = late_ranges(each.made.entries, due.now) if each.report.takes_late else frozenset[TimeRange]()
        plan = plan_community(number, each.community, each.published, late, min(received, default=None), due)
        each.report.waiting = [*plan.waiting]
        if plan.waiting:
            log.warning("history archives wait community=%s ranges=%d", each.report.id, len(plan.waiting))
        for work in plan.works:
            files = None if periods is None else periods.files(work.time_range, work.topics)
            sources = RangeSources((*stores, holdings) if has_holdings else stores, files)
            tasks.append(RangeTask(work, sources, config.communities / SCRATCH_FOLDER / f"{len(tasks):06}"))
    return tasks


def make_range(task: RangeTask) -> RangeMade:
    """Make the archives of a range, and write them to the task's file: what a task does.

    Holdings that cannot be read concern one community: that is returned, and ends no other's task.

    Raises:
        ExportError: a store cannot be read, or the file cannot be written.
        ArchiveError: the Parquet archive cannot be read.
    """
    work, skipped = task.work, Skipped()
    published, holds = work.published_keys(), work.holds()

    def rows(*, keys_only: bool) -> Iterator[CandidateRow]:
        found = read_rows(task.sources, work.time_range, work.topics, holds, keys_only=keys_only)
        return (row for row in found if row.key not in published)

    archives = []
    try:
        if not published or next(rows(keys_only=True), None) is not None:
            attempt = task.file.with_name(f"{task.file.name}.{os.getpid()}")  # it may be tried twice at a time
            with attempt.open("wb") as file:
                for archive in archives_of(work, sorted(rows(keys_only=False), key=itemgetter(0)), skipped):
                    file.write(archive.encoded.data)
                    file.write(archive.keys)
                    archives.append((len(archive.encoded.data), archive.encoded.padding, archive.encoded.messages))
            attempt.replace(task.file)
    except HoldingsError as error:
        return RangeMade((), Skipped(), str(error))
    except OSError as error:
        raise ExportError(f"cannot write {task.file}: {error.strerror or error}") from error
    return RangeMade(tuple(archives), skipped)


def _append(each: _Owned, parts: Sequence[tuple[RangeTask, RangeMade]]) -> None:
    """Append the archives of a community.

    Raises:
        HoldingsError: a task could not read what is held of it: nothing is appended, as archives are in order.
        CommunityError: its files cannot be read or written.
    """
    report, before = each.report, each.made
    if error := next((made.error for _, made in parts if made.error), ""):
        raise HoldingsError(error)

    def archives() -> Iterator[NewArchive]:
        for task, made in parts:
            report.unopened += made.skipped.unopened
            report.damaged += made.skipped.damaged
            if made.archives:
                yield from _written(task, made)

    each.made = append(each.folder, each.community.format, before, archives())
    added, ranges = each.made.entries[len(before.entries) :], before.ranges
    report.archives = len(added)
    report.ranges = [*dict.fromkeys(entry.time_range for entry in added)]
    report.further = sum(entry.time_range in ranges for entry in added)
    report.left_out = sum(len(made.archives) for _, made in parts) - len(added)
    report.takes_late = IndexRoom(each.community.format, each.made.entries).takes_late
    report.messages = sum(len(ids.keys) for ids in each.made.ids[len(before.ids) :]) // HASH_PREFIX_BYTES
    report.bytes = each.made.end - before.end
    log.info(
        "history archives made community=%s archives=%d messages=%d bytes=%d further=%d left_out=%d takes_late=%s",
        report.id,
        report.archives,
        report.messages,
        report.bytes,
        report.further,
        report.left_out,
        "yes" if report.takes_late else "no",
    )


def _written(task: RangeTask, made: RangeMade) -> Iterator[NewArchive]:
    """What a task has written."""
    work = task.work
    with task.file.open("rb") as file:
        for size, padding, messages in made.archives:
            data, keys = file.read(size), file.read(messages * HASH_PREFIX_BYTES)
            if len(data) != size or len(keys) != messages * HASH_PREFIX_BYTES:
                raise ExportError(f"{task.file} is shorter than the task has written it")
            yield NewArchive(EncodedArchive(work.time_range, work.content_topics, data, padding, messages), keys)


def _owned(communities: Path, report: CommunitiesReport) -> list[_Owned]:
    """The communities that are on and have channels; those that cannot be read are in the report alone."""
    found = []
    for folder in owned(communities):
        said = CommunityReport(folder.path.name, "")
        with _concerning(said):
            community = folder.read()
            said.name = community.name
            if not (community.is_enabled and community.channels):
                continue
            made = read_made(folder, community.format)
            said.takes_late = IndexRoom(community.format, made.entries).takes_late
            held_since = oldest_held(folder.holdings) if folder.holdings.exists() else None
            found.append(_Owned(folder, community, made, said, held_since))
        report.communities.append(said)
    return found


@contextlib.contextmanager
def _concerning(report: CommunityReport) -> Iterator[None]:
    """Note in the report of a community that it cannot be worked for: the others go on."""
    try:
        yield
    except (CommunityError, HoldingsError) as error:
        report.error = str(error)
        log.error("history archives not made community=%s cause=%r", report.id, report.error)


@contextlib.contextmanager
def _locked(communities: Path) -> Iterator[None]:
    """Keep other runs away from the communities of a folder."""
    with contextlib.ExitStack() as stack:
        try:
            path = communities / LOCK_FILE
            descriptor = stack.enter_context(open_descriptor(path, os.O_RDWR | os.O_CREAT))
            if not try_lock(descriptor):
                raise ExportError(
                    f"another run (pid {read_holder(descriptor)}) makes history archives in {communities}"
                )
            write_holder(descriptor)
        except OSError as error:
            raise ExportError(f"cannot lock {communities}: {error.strerror or error}") from error
        yield
