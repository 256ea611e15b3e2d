"""spark_export.report: numbers that plain counting gives."""

import json
from collections import Counter
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from mailserver.archive.errors import ArchiveError
from mailserver.store.interface import NewEnvelope
from spark_export.report import DayStatistics, class_width, gather
from tests.spark_export.samples import DAY, DAY_S, compact_into, envelope, envelopes, put, visible_files

pytestmark = pytest.mark.spark

SIZES = [envelope(500 + n, received=(DAY + 1) * DAY_S, size=size) for n, size in enumerate((1, 600, 2000, 5000))]
PUT_IN: list[NewEnvelope] = [*envelopes(20), *envelopes(7, day=DAY + 1, first=100), *SIZES]


def test_numbers_are_those_of_plain_counting(spark: SparkSession, tmp_path: Path) -> None:
    archive = tmp_path / "archive"
    compact_into(spark, archive, put(tmp_path / "mailserver.db", PUT_IN))

    found = gather(spark, str(archive), now=1_800_000_000.0)

    assert (found.envelopes, found.bytes) == (len(PUT_IN), sum(len(one.raw) for one in PUT_IN))
    assert found.topics == len({one.topic for one in PUT_IN})
    files = visible_files(archive)
    assert (found.files, found.file_bytes) == (len(files), sum(file.stat().st_size for file in files))
    for day, name in ((DAY, "2024-10-04"), (DAY + 1, "2024-10-05")):
        of_day = [one for one in PUT_IN if one.received // DAY_S == day]
        counted = len(of_day), sum(len(one.raw) for one in of_day), len({one.topic for one in of_day})
        assert DayStatistics(name, *counted) in found.days
    assert len(found.days) == 2
    assert sum(size.envelopes for size in found.sizes) == len(PUT_IN)
    for size in found.sizes:
        assert size.envelopes == sum(size.least <= len(one.raw) <= size.most for one in PUT_IN)
    assert found.created == "2027-01-15T08:00:00Z"
    topics = Counter("0x" + one.topic.hex() for one in PUT_IN)
    assert [(topic.topic, topic.envelopes) for topic in found.top_topics] == sorted(
        topics.items(), key=lambda item: (-item[1], item[0])
    )
    assert json.loads(json.dumps(found.as_json()))["days"][0]["date"] == "2024-10-04"


def test_classes_of_sizes_are_quarters_of_a_doubling_without_a_gap() -> None:
    least, classes = 1, []
    while least <= 2**20:
        classes.append((least, least + class_width(least) - 1))
        least += class_width(least)

    assert classes[:9] == [(1, 1), (2, 2), (3, 3), (4, 4), (5, 5), (6, 6), (7, 7), (8, 9), (10, 11)]
    assert [least for least, _ in classes if 512 <= least <= 1024] == [512, 640, 768, 896, 1024]
    for least, most in classes:
        assert class_width(least) == class_width(most) == most - least + 1


def test_report_needs_an_archive(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(ArchiveError, match="there is no archive"):
        gather(spark, str(tmp_path), now=0.0)
