"""What is in an archive, for people: envelopes and bytes a day, topics, sizes. `spark_export.report_page` draws it."""

from dataclasses import asdict, dataclass
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from mailserver.archive.archive import Archive, existing_layout
from mailserver.archive.days import utc_text
from spark_export.read import read_archive
from spark_export.storage import open_storage

TOP_TOPICS = 20

STEPS = 4
"""How many classes of sizes there are from one power of two to the next."""


@dataclass(frozen=True, slots=True)
class DayStatistics:
    """One UTC day of reception."""

    date: str
    envelopes: int
    bytes: int
    topics: int


@dataclass(frozen=True, slots=True)
class TopicStatistics:
    """One topic, over all days."""

    topic: str
    envelopes: int
    bytes: int


@dataclass(frozen=True, slots=True)
class SizeStatistics:
    """Envelopes of `least` to `most` bytes."""

    least: int
    most: int
    envelopes: int


@dataclass(frozen=True, slots=True)
class ArchiveStatistics:
    """What is in an archive, as it was at `created`. Days and sizes that have nothing are left out."""

    archive: str
    created: str
    partitioned_by: str
    envelopes: int
    bytes: int
    topics: int
    files: int
    file_bytes: int
    days: tuple[DayStatistics, ...]
    sizes: tuple[SizeStatistics, ...]
    top_topics: tuple[TopicStatistics, ...]

    def as_json(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


def class_width(size: int) -> int:
    """How many sizes there are in the class that holds this one: a quarter of the power of two below it."""
    return max(2 ** (size.bit_length() - 1) // STEPS, 1) if size else 1


def gather(spark: SparkSession, path: str, now: float) -> ArchiveStatistics:
    """Count what is in an archive.

    Args:
        now: Unix seconds.
    Raises:
        ArchiveError: there is none.
    """
    archive = Archive(open_storage(spark, path))
    layout = existing_layout(archive)
    records = archive.records().values()
    envelopes = read_archive(spark, path, columns=("date", "topic", "size"))
    width = F.greatest(F.pow(F.lit(2), F.length(F.bin("size")) - 1) / STEPS, F.lit(1))  # as `class_width`
    least = (F.floor(F.col("size") / width) * width).cast("int")
    days = envelopes.groupBy("date").agg(
        F.count("*").alias("envelopes"), F.sum("size").alias("bytes"), F.countDistinct("topic").alias("topics")
    )
    topics = envelopes.groupBy("topic").agg(F.count("*").alias("envelopes"), F.sum("size").alias("bytes"))
    top = topics.orderBy(F.desc("envelopes"), "topic").limit(TOP_TOPICS)
    by_day = tuple(
        DayStatistics(str(row["date"]), row["envelopes"], row["bytes"], row["topics"])
        for row in days.orderBy("date").collect()
    )
    sizes = envelopes.groupBy(least.alias("least")).agg(F.count("*").alias("envelopes")).orderBy("least").collect()
    return ArchiveStatistics(
        archive=archive.url,
        created=utc_text(now),
        partitioned_by=str(layout),
        envelopes=sum(day.envelopes for day in by_day),
        bytes=sum(day.bytes for day in by_day),
        topics=topics.count(),
        files=sum(len(record.files) for record in records),
        file_bytes=sum(file.bytes for record in records for file in record.files),
        days=by_day,
        sizes=tuple(
            SizeStatistics(row["least"], row["least"] + class_width(row["least"]) - 1, row["envelopes"])
            for row in sizes
        ),
        top_topics=tuple(TopicStatistics(row["topic"], row["envelopes"], row["bytes"]) for row in top.collect()),
    )
