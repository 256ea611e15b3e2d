"""The report: numbers that plain counting gives, and a page that needs nothing else."""

import json
import re
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from mailserver.store.writer import NewEnvelope
from spark_export.errors import ExportError
from spark_export.report import ArchiveStatistics, DayStatistics, TopicStatistics, as_html, gather
from tests.spark_export.samples import DAY, DAY_S, compact_into, envelope, envelopes, put, visible_files

pytestmark = pytest.mark.spark

SIZES = [envelope(500 + n, received=(DAY + 1) * DAY_S, size=size) for n, size in enumerate((1, 600, 2000, 5000))]
PUT_IN: list[NewEnvelope] = [*envelopes(20), *envelopes(7, day=DAY + 1, first=100), *SIZES]

STATISTICS = ArchiveStatistics(
    archive="file:///srv/<archive> & more",
    partitioned_by="topic",
    envelopes=3,
    bytes=700,
    topics=2,
    files=2,
    file_bytes=900,
    days=(DayStatistics("2024-10-04", 2, 300, 1), DayStatistics("2024-10-05", 1, 400, 1)),
    sizes=((128, 2), (256, 1)),
    top_topics=(TopicStatistics("0x9acb0442", 2, 300), TopicStatistics("<script>", 1, 400)),
)


def test_numbers_are_those_of_plain_counting(spark: SparkSession, tmp_path: Path) -> None:
    archive = tmp_path / "archive"
    compact_into(spark, archive, put(tmp_path / "mailserver.db", PUT_IN))

    found = gather(spark, str(archive))

    assert (found.envelopes, found.bytes) == (len(PUT_IN), sum(len(one.raw) for one in PUT_IN))
    assert found.topics == len({one.topic for one in PUT_IN})
    files = visible_files(archive)
    assert (found.files, found.file_bytes) == (len(files), sum(file.stat().st_size for file in files))
    for day, name in ((DAY, "2024-10-04"), (DAY + 1, "2024-10-05")):
        of_day = [one for one in PUT_IN if one.received // DAY_S == day]
        counted = len(of_day), sum(len(one.raw) for one in of_day), len({one.topic for one in of_day})
        assert DayStatistics(name, *counted) in found.days
    assert len(found.days) == 2
    sizes = Counter(1 << (len(one.raw).bit_length() - 1) for one in PUT_IN)
    assert found.sizes == tuple(sorted(sizes.items()))
    topics = Counter("0x" + one.topic.hex() for one in PUT_IN)
    assert [(topic.topic, topic.envelopes) for topic in found.top_topics] == sorted(
        topics.items(), key=lambda item: (-item[1], item[0])
    )
    assert json.loads(json.dumps(found.as_json()))["days"][0]["date"] == "2024-10-04"


def test_report_needs_an_archive(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(ExportError, match="there is no archive"):
        gather(spark, str(tmp_path))


def test_page_needs_nothing_from_elsewhere() -> None:
    page = as_html(STATISTICS)

    outside = re.sub(r'xmlns(:\w+)?="[^"]*"', "", page)
    assert not re.search(r"https?://|//\w+\.\w+/|@import|<script", outside)
    assert re.findall(r'(?:src|href)="(?!#)[^"]*"', page) == []


def test_page_has_four_plots() -> None:
    page = as_html(STATISTICS)

    assert page.count("<figure>") == page.count("<svg") == page.count("</svg>") == 4


def test_page_escapes_names() -> None:
    page = as_html(STATISTICS)

    assert "&lt;archive&gt; &amp; more" in page
    assert "<code>&lt;script&gt;</code>" in page


def test_page_of_an_empty_archive_and_of_one_day() -> None:
    empty = replace(STATISTICS, days=(), sizes=(), top_topics=(), envelopes=0, bytes=0)

    assert as_html(empty).count("<svg") == 4
    assert as_html(replace(STATISTICS, days=STATISTICS.days[:1])).count("<svg") == 4
