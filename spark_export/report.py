"""What is in an archive, for people: envelopes and bytes a day, topics, sizes; as JSON, or a page with plots.

The page is one file that needs nothing else.
"""

import io
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from datetime import date
from html import escape
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from spark_export.archive import Archive, existing_layout
from spark_export.read import read_archive
from spark_export.storage import open_storage

TOP_TOPICS = 20
MAX_TICKS = 12

_COLOUR = "#4360df"
_SLANTED: dict[str, Any] = {"rotation": 30, "ha": "right", "rotation_mode": "anchor"}


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
class ArchiveStatistics:
    """What is in an archive. `sizes`: envelopes with a size from 2**n to 2**(n+1) - 1 bytes, by 2**n."""

    archive: str
    partitioned_by: str
    envelopes: int
    bytes: int
    topics: int
    files: int
    file_bytes: int
    days: tuple[DayStatistics, ...]
    sizes: tuple[tuple[int, int], ...]
    top_topics: tuple[TopicStatistics, ...]

    def as_json(self) -> dict[str, Any]:
        """As JSON has it."""
        return asdict(self)


def gather(spark: SparkSession, path: str) -> ArchiveStatistics:
    """Count what is in an archive.

    Raises:
        ExportError: there is none.
    """
    archive = Archive(open_storage(spark, path))
    layout = existing_layout(archive)
    records = archive.records().values()
    envelopes = read_archive(spark, path).select("date", "topic", "size")
    size_class = F.floor(F.log2(F.greatest("size", F.lit(1)))).cast("int")
    days = envelopes.groupBy("date").agg(
        F.count("*").alias("envelopes"), F.sum("size").alias("bytes"), F.countDistinct("topic").alias("topics")
    )
    topics = envelopes.groupBy("topic").agg(F.count("*").alias("envelopes"), F.sum("size").alias("bytes"))
    top = topics.orderBy(F.desc("envelopes"), "topic").limit(TOP_TOPICS)
    by_day = tuple(
        DayStatistics(str(row["date"]), row["envelopes"], row["bytes"], row["topics"])
        for row in days.orderBy("date").collect()
    )
    sizes = envelopes.groupBy(size_class.alias("power")).count().orderBy("power").collect()
    return ArchiveStatistics(
        archive=archive.url,
        partitioned_by=str(layout),
        envelopes=sum(day.envelopes for day in by_day),
        bytes=sum(day.bytes for day in by_day),
        topics=topics.count(),
        files=sum(len(record.files) for record in records),
        file_bytes=sum(file.bytes for record in records for file in record.files),
        days=by_day,
        sizes=tuple((2 ** row["power"], row["count"]) for row in sizes),
        top_topics=tuple(TopicStatistics(row["topic"], row["envelopes"], row["bytes"]) for row in top.collect()),
    )


def as_html(statistics: ArchiveStatistics) -> str:
    """A page with a table and four plots."""
    days = statistics.days
    figures = [
        _plot("Envelopes a day", lambda axes: _bars(axes, days, [day.envelopes for day in days])),
        _plot("Megabytes a day", lambda axes: _bars(axes, days, [day.bytes / 1e6 for day in days])),
        _plot("Topics a day", lambda axes: _bars(axes, days, [day.topics for day in days])),
        _plot("Envelopes by size in bytes", lambda axes: _size_bars(axes, statistics.sizes)),
    ]
    facts = {
        "archive": statistics.archive,
        "partitioned by": statistics.partitioned_by,
        "days": f"{len(days):,}" + (f", {days[0].date} to {days[-1].date}" if days else ""),
        "envelopes": f"{statistics.envelopes:,}, {statistics.bytes / 1e6:,.1f} MB",
        "topics": f"{statistics.topics:,}",
        "files": f"{statistics.files:,}, {statistics.file_bytes / 1e6:,.1f} MB",
    }
    rows = "".join(f"<tr><th>{escape(name)}</th><td>{escape(value)}</td></tr>" for name, value in facts.items())
    top = "".join(
        f"<tr><td><code>{escape(topic.topic)}</code></td><td>{topic.envelopes:,}</td><td>{topic.bytes:,}</td></tr>"
        for topic in statistics.top_topics
    )
    return _PAGE.format(facts=rows, figures="".join(figures), top=top)


def _plot(title: str, draw: Callable[[Axes], None]) -> str:
    """An SVG with one plot."""
    figure = Figure(figsize=(8, 2.8), layout="constrained")
    axes = figure.subplots()
    axes.set_title(title, loc="left")
    axes.spines[["top", "right"]].set_visible(False)
    axes.yaxis.set_major_formatter("{x:,.6g}")
    draw(axes)
    text = io.StringIO()
    figure.savefig(text, format="svg", metadata=dict.fromkeys(("Date", "Creator", "Format", "Type")))
    svg = text.getvalue()
    return f"<figure>{svg[svg.index('<svg') :]}</figure>"


def _bars(axes: Axes, days: Sequence[DayStatistics], values: Sequence[float]) -> None:
    numbers = [date.fromisoformat(day.date).toordinal() for day in days]
    axes.bar(numbers, values, color=_COLOUR)
    if numbers:  # whole days only: matplotlib's own ticks are hours, where days are few
        ticks = range(numbers[0], numbers[-1] + 1, 1 + (numbers[-1] - numbers[0]) // MAX_TICKS)
        axes.set_xticks(ticks, [date.fromordinal(tick).isoformat() for tick in ticks], **_SLANTED)
        axes.set_xlim(numbers[0] - 2, numbers[-1] + 2)


def _size_bars(axes: Axes, sizes: Sequence[tuple[int, int]]) -> None:
    places = range(len(sizes))
    axes.bar(places, [count for _, count in sizes], color=_COLOUR)
    axes.set_xticks(places, [f"{size:,}-{2 * size - 1:,}" for size, _ in sizes], **_SLANTED)


_PAGE = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<title>Waku archive</title>
<style>
body {{ font: 16px/1.4 system-ui, sans-serif; max-width: 52rem; margin: 2rem auto; padding: 0 1rem; }}
th {{ text-align: left; padding-right: 2rem; font-weight: 600; }}
td + td {{ text-align: right; padding-left: 2rem; }}
figure {{ margin: 2rem 0; }}
svg {{ width: 100%; height: auto; }}
</style>
<h1>Waku archive</h1>
<table>{facts}</table>
{figures}
<h2>Topics with most envelopes</h2>
<table><tr><th>topic</th><th>envelopes</th><th>bytes</th></tr>{top}</table>
</html>
"""
