"""The run that makes the history archives of communities: one for all that we own, and all of their ranges that are
due.

It first asks which ranges have envelopes that are new to the history, by their keys, and plans (`community_plan`). Then
each range is encoded by a task, which writes its archives to a scratch file (`community_encoding`). The driver appends
these to each community's `data`, in the order of time (`mailserver.community.owner.appending`). So a run that is killed
has changed nothing that was published, and the next one does what is left.
"""

import contextlib
import json
import logging
import os
import shutil
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import chain, groupby
from operator import itemgetter
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from mailserver.archive.days import utc_text
from mailserver.communities.formats import EncodedArchive, TimeRange
from mailserver.communities.ranges import PERIOD_S
from mailserver.community.owner.appending import Made, NewArchive, append, read_made
from mailserver.community.owner.folders import CommunityFolder, owned
from mailserver.community.owner.record import Community
from mailserver.files import PRIVATE_FOLDER, open_descriptor, read_holder, try_lock, write_holder
from mailserver.store.sqlite.schema import HASH_PREFIX_BYTES
from spark_export.community_encoding import CandidateRow, RangeWork, Skipped, archives_of
from spark_export.community_plan import SETTLE_S, Due, Found, Plan, plan_community, spans
from spark_export.community_rows import Sources, candidates
from spark_export.errors import ExportError
from spark_export.session import tasks_failures_told

log = logging.getLogger(__name__)

LOCK_FILE = "job.lock"
SCRATCH_FOLDER = ".making"

_HELD = "topic string, community int, since long, until long"
_PLANNED = "community int, lower long, work int"
_DONE = "work int, archives string"
_PUBLISHED = pa.schema([("community", pa.int32()), ("key", pa.binary())])

END_OF_TIME = 2**62


@dataclass(frozen=True, slots=True)
class CommunitiesConfig:
    """What a run is told.

    `communities`: the folder `DIR/communities`. `stores`: of the mailservers that hear its channels. `archive`: None if
    there is none. `missing`: times of which the stores still fetch messages.
    """

    communities: Path
    stores: tuple[Path, ...]
    archive: str | None = None
    settle_s: int = SETTLE_S
    period_s: int = PERIOD_S
    missing: tuple[TimeRange, ...] = ()


@dataclass(slots=True)
class CommunityReport:
    """What became of one community."""

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
    forged: int = 0


@dataclass(slots=True)
class CommunitiesReport:
    """What a run has done."""

    now: float
    communities: list[CommunityReport] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        """For programs."""
        return {"now": self.now, "communities": [asdict(each) for each in self.communities]}

    def as_words(self) -> Iterator[str]:
        """For people."""
        for each in self.communities:
            said = f"{each.name} ({each.id}): {each.archives} history archives of {len(each.ranges)} ranges"
            yield f"{said}, {each.messages:,} messages, {each.bytes:,} bytes"
            if each.waiting:
                first = utc_text(each.waiting[0].lower)
                yield f"  {len(each.waiting)} ranges from {first} on wait: messages of them are still being fetched"
            for count, what in (
                (each.unopened, "envelopes that no key of their channel opens are left out"),
                (each.damaged, "envelopes that are damaged, or without an id, are left out"),
                (each.forged, "envelopes that claim to be older than they can be are left out"),
            ):
                if count:
                    yield f"  {count:,} {what}"


@dataclass(slots=True)
class _Owned:
    folder: CommunityFolder
    community: Community
    made: Made
    report: CommunityReport


def make_archives(spark: SparkSession, config: CommunitiesConfig, *, now: float) -> CommunitiesReport:
    """Make the history archives that are due.

    Args:
        now: Unix seconds.
    Raises:
        ExportError: another run is at work, or a store cannot be read.
        CommunityError: a community's files cannot be read or written.
        ArchiveError: the Parquet archive cannot be read.
    """
    report = CommunitiesReport(now)
    with _locked(config.communities):
        scratch = config.communities / SCRATCH_FOLDER
        shutil.rmtree(scratch, ignore_errors=True)  # of a run that was killed
        communities = [*_owned(config.communities)]
        report.communities = [each.report for each in communities]
        run = _Run(spark, config, communities, Due(int(now), config.settle_s, config.period_s, config.missing))
        works = run.plan()
        scratch.mkdir(PRIVATE_FOLDER)
        try:
            run.make(works, scratch)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
    return report


class _Run:
    def __init__(self, spark: SparkSession, config: CommunitiesConfig, communities: Sequence[_Owned], due: Due) -> None:
        self._spark = spark
        self._communities = communities
        self._due = due
        holdings = (each.folder.holdings for each in communities)
        self._sources = Sources(config.archive, config.stores, tuple(path for path in holdings if path.exists()))

    def plan(self) -> list[RangeWork]:
        """What is to be made, in the order of communities and time."""
        found = self._found()
        works: list[RangeWork] = []
        for number, each in enumerate(self._communities):
            plan = plan_community(number, each.community, each.made.ranges, found.get(number, {}), self._due)
            _note(each, plan)
            works += plan.works
        return works

    def make(self, works: Sequence[RangeWork], scratch: Path) -> None:
        """Encode the ranges in tasks, and append what they have made."""
        done = self._encode(works, scratch) if works else {}
        for number, of_community in groupby(enumerate(works), lambda pair: pair[1].community):
            each = self._communities[number]
            self._append(each, [(work, scratch, done.get(at)) for at, work in of_community])

    def _found(self) -> Mapping[int, Mapping[int, Found]]:
        """What sources have of each range of each community."""
        # What was created before the oldest envelope that anybody keeps can only be forged; 1970 is when time begins.
        everything = [TimeRange(1, max(self._due.end, 1))]
        if not self._held or self._due.end <= 1:
            return {}
        keys = self._of_communities(candidates(self._spark, self._sources, self._topics, everything, keys_only=True))
        is_new = F.when(F.col("is_published").isNull(), F.col("key"))
        with tasks_failures_told():
            rows = (
                keys.join(self._published(range(len(self._communities))), ["community", "key"], "left")
                .groupBy("community", "lower")
                .agg(F.count_distinct(is_new).alias("new"), F.min("received").alias("first_received"))
                .collect()
            )
        found: dict[int, dict[int, Found]] = defaultdict(dict)
        for row in rows:
            found[row["community"]][row["lower"]] = Found(row["new"], row["first_received"])
        return found

    def _encode(self, works: Sequence[RangeWork], scratch: Path) -> dict[int, str]:
        """Have tasks write the archives of each range that has envelopes; return what they say of them, by number."""
        planned = [(work.community, work.time_range.lower, at) for at, work in enumerate(works)]
        frame = candidates(self._spark, self._sources, self._topics, spans(works), keys_only=False)
        rows = self._of_communities(frame).join(
            F.broadcast(self._spark.createDataFrame(planned, _PLANNED)), ["community", "lower"]
        )
        if further := sorted({work.community for work in works if work.is_further}):
            rows = rows.join(self._published(further).drop("is_published"), ["community", "key"], "left_anti")
        tasks = min(len(works), 4 * self._spark.sparkContext.defaultParallelism)
        by_work = (
            rows.select("work", "created", "key", "raw")
            .repartitionById(tasks, F.col("work") % tasks)
            .sortWithinPartitions("work", "created")
        )
        folder = str(scratch)

        def encode(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            return _encode_batches(works, Path(folder), batches)

        with tasks_failures_told():
            return {row["work"]: row["archives"] for row in by_work.mapInArrow(encode, _DONE).collect()}

    @property
    def _held(self) -> list[tuple[str, int, int, int]]:
        """Topic, community, and the time in which it holds there."""
        return [
            (
                f"0x{channel.topic.hex()}",
                number,
                channel.since or 0,
                END_OF_TIME if channel.until is None else channel.until,
            )
            for number, each in enumerate(self._communities)
            for channel in each.community.channels
        ]

    @property
    def _topics(self) -> list[Any]:
        return sorted({topic for each in self._communities for topic in each.community.topics})

    def _of_communities(self, rows: DataFrame) -> DataFrame:
        """Rows of each community, with `community` and `lower`, where their range begins."""
        held = F.broadcast(self._spark.createDataFrame(self._held, _HELD))
        lower = F.col("created") - F.pmod(F.col("created"), F.lit(self._due.period_s))
        return (
            rows.join(held, "topic")
            .where((F.col("created") >= F.col("since")) & (F.col("created") < F.col("until")))
            .withColumn("lower", lower)
            .drop("topic", "since", "until")
        )

    def _published(self, communities: Iterable[int]) -> DataFrame:
        """The keys of what is in history archives: community, key, is_published."""
        tables = [_keys_table(number, self._communities[number].made) for number in communities]
        table = pa.concat_tables([_PUBLISHED.empty_table(), *tables])
        return self._spark.createDataFrame(table).distinct().withColumn("is_published", F.lit(True))

    def _append(self, each: _Owned, parts: Sequence[tuple[RangeWork, Path, str | None]]) -> None:
        """Append the archives of some ranges of a community."""
        form, counts = each.community.format, Counter[str]()

        def archives() -> Iterator[NewArchive]:
            for work, scratch, said in parts:
                new = _empty(work) if said is None else _written(work, scratch, json.loads(said))
                for archive in new:
                    counts["archives"] += 1
                    counts["messages"] += archive.encoded.messages
                    counts["further"] += work.is_further
                    yield archive
                if said is not None:
                    counts.update({name: json.loads(said)[name] for name in ("unopened", "damaged")})

        before = each.made.end
        each.made = append(each.folder, form, each.made, archives())
        report = each.report
        for name, count in counts.items():
            setattr(report, name, count)
        report.bytes = each.made.end - before
        report.ranges = [work.time_range for work, _, _ in parts]
        log.info(
            "history archives made community=%s archives=%d messages=%d bytes=%d further=%d",
            report.id,
            report.archives,
            report.messages,
            report.bytes,
            report.further,
        )


def _encode_batches(
    works: Sequence[RangeWork], scratch: Path, batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """What a task does: rows sorted by work and time in, a row for each work out. Its archives are in a file then."""
    for number, rows in groupby(chain.from_iterable(map(_rows, batches)), itemgetter(0)):
        said = _encode_work(works[number], number, scratch, (row for _, row in rows))
        yield pa.RecordBatch.from_pydict(
            {"work": pa.array([number], pa.int32()), "archives": pa.array([json.dumps(said)], pa.string())}
        )


def _rows(batch: pa.RecordBatch) -> Iterator[tuple[int, CandidateRow]]:
    columns = (batch.column(name).to_pylist() for name in ("work", "created", "key", "raw"))
    return ((work, CandidateRow(created, key, raw)) for work, created, key, raw in zip(*columns, strict=True))


def _encode_work(work: RangeWork, number: int, scratch: Path, rows: Iterator[CandidateRow]) -> dict[str, Any]:
    skipped, archives = Skipped(), []
    path = _scratch_file(scratch, number)
    attempt = path.with_name(f"{path.name}.{os.getpid()}")  # the task may be tried twice at a time
    with attempt.open("wb") as file:
        for archive in archives_of(work, rows, skipped):
            file.write(archive.encoded.data)
            file.write(archive.keys)
            archives.append((len(archive.encoded.data), archive.encoded.padding, archive.encoded.messages))
    attempt.replace(path)
    return {"file": path.name, "archives": archives, **asdict(skipped)}


def _scratch_file(scratch: Path, number: int) -> Path:
    return scratch / f"{number:06}.archives"


def _written(work: RangeWork, scratch: Path, said: Mapping[str, Any]) -> Iterator[NewArchive]:
    """What a task has written."""
    with (scratch / said["file"]).open("rb") as file:
        for size, padding, messages in said["archives"]:
            data, keys = file.read(size), file.read(messages * HASH_PREFIX_BYTES)
            if len(data) != size or len(keys) != messages * HASH_PREFIX_BYTES:
                raise ExportError(f"{file.name} is shorter than the task has written it")
            yield NewArchive(EncodedArchive(work.time_range, work.content_topics, data, padding, messages), keys)


def _empty(work: RangeWork) -> Iterator[NewArchive]:
    """The archives of a range without envelopes."""
    return archives_of(work, (), Skipped())


def _owned(communities: Path) -> Iterator[_Owned]:
    """The communities that are on and have channels."""
    for folder in owned(communities):
        community = folder.read()
        if community.is_enabled and community.channels:
            made = read_made(folder, community.format)
            yield _Owned(folder, community, made, CommunityReport(folder.path.name, community.name))


def _keys_table(number: int, made: Made) -> pa.Table:
    keys = pa.py_buffer(b"".join(ids.keys for ids in made.ids))
    count = keys.size // HASH_PREFIX_BYTES
    fixed = pa.Array.from_buffers(pa.binary(HASH_PREFIX_BYTES), count, [None, keys])
    return pa.table([pa.repeat(pa.scalar(number, pa.int32()), count), fixed.cast(pa.binary())], schema=_PUBLISHED)


def _note(each: _Owned, plan: Plan) -> None:
    each.report.waiting = [*plan.waiting]
    each.report.forged = plan.forged
    if plan.waiting:
        log.warning("history archives wait for messages community=%s ranges=%d", each.report.id, len(plan.waiting))


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
