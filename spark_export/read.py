"""Reads an archive from Spark: only the directories that a query needs, and all of their rows while a run changes
them."""

import contextlib
import math
from collections.abc import Collection, Sequence
from datetime import UTC, date, datetime, time
from functools import reduce
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from mailserver.archive.archive import Archive, existing_layout
from mailserver.archive.layout import Layout
from mailserver.archive.selection import SelectedPart, select_parts
from mailserver.units import SECONDS_PER_DAY
from spark_export.frames import read_periods
from spark_export.s3_rows import WantedRows
from spark_export.schema import ENVELOPES
from spark_export.storage import open_storage


def read_archive(
    spark: SparkSession,
    path: str | Path,
    topics: Collection[str | bytes] | str | bytes | None = None,
    start: date | float | None = None,
    end: date | float | None = None,
    columns: Sequence[str] = (*ENVELOPES.fieldNames(), "date"),
) -> DataFrame:
    """Read envelopes: the columns of ENVELOPES, and `date`, the UTC day of reception. The rows have no order.

    Args:
        path: the archive's directory or URL.
        topics: one, or several: 4 bytes each, or 0x and 8 hex digits; None for all.
        start: created at this time or later. Unix seconds, or a datetime, of UTC if it names no zone; a date is its
            midnight, UTC.
        end: created before this time.
        columns: some of these. From S3, no others are fetched, except those that are compared.
    Raises:
        ArchiveError: there is no archive, or a later version made it.
        TypeError: a time is none of these.
        ValueError: a topic is not one.
    """
    several = [topics] if isinstance(topics, (str, bytes)) else topics  # else their characters would be topics
    asked = None if several is None else sorted({_topic(topic) for topic in several})
    first, last = _seconds(start), _seconds(end)
    archive = Archive(open_storage(spark, str(path)))
    layout = existing_layout(archive)
    parts = select_parts(archive, layout, start=first, end=last, topics=asked)
    wanted = WantedRows(asked, first, last)
    needed = {*columns, "topic", "created", *(["received"] if "date" in columns else [])}
    frame = _frame(spark, archive, layout, parts, [name for name in ENVELOPES.fieldNames() if name in needed], wanted)
    if asked is not None:
        frame = frame.where(F.col("topic").isin(asked))
    if first is not None:
        frame = frame.where(F.col("created") >= first)
    if last is not None:
        frame = frame.where(F.col("created") < last)
    received_on = F.date_from_unix_date(F.floor(F.col("received") / SECONDS_PER_DAY).cast("int"))
    return frame.select(*(received_on.alias(name) if name == "date" else name for name in columns))


def _frame(
    spark: SparkSession,
    archive: Archive,
    layout: Layout,
    parts: Sequence[SelectedPart],
    columns: Sequence[str],
    wanted: WantedRows,
) -> DataFrame:
    frames = [
        read_periods(spark, archive, layout, part.directories, base=part.base, columns=columns, wanted=wanted)
        for part in parts
    ]
    return reduce(DataFrame.unionByName, frames) if frames else spark.createDataFrame([], ENVELOPES)


def _topic(topic: Any) -> str:
    raw = topic
    if isinstance(topic, str):
        with contextlib.suppress(ValueError):  # no hex digits
            raw = bytes.fromhex(topic.removeprefix("0x"))
    if not isinstance(raw, bytes) or len(raw) != 4:
        raise ValueError(f"{topic!r} is not a topic: 4 bytes, or 0x and 8 hex digits")
    return "0x" + raw.hex()


def _seconds(moment: Any) -> int | None:
    """The first whole second that is not before a moment."""
    if moment is None:
        return None
    if isinstance(moment, date):
        at = moment if isinstance(moment, datetime) else datetime.combine(moment, time())
        return math.ceil((at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp())
    if isinstance(moment, bool) or not isinstance(moment, (int, float)) or not math.isfinite(moment):
        raise TypeError(f"{moment!r} is not a time: Unix seconds, a datetime, or a date")
    return math.ceil(moment)
