"""The recipes in docs/archive.md: each block of SQL there is run on an archive, with its names replaced."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import duckdb
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from spark_export.schema import ARRIVAL
from tests.spark_export.samples import (
    DAY,
    FIRST,
    NEWS,
    compact_into,
    envelope,
    envelopes,
    put,
    visible_files,
)

pytestmark = pytest.mark.spark

ROOT = Path(__file__).parents[2]

BEFORE = envelopes(6, day=DAY)
"""Archived by an earlier version."""

ARRIVED = [
    envelope(number, received=(DAY + 1) * 86_400 + number // 10, created=DAY * 86_400 + number * 37 % 20, size=300)
    for number in range(20, 40)
]
"""As they arrived, ten in each second; in no other order."""


@pytest.fixture(scope="module")
def archive(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two days. The files of the first one lack the columns that earlier versions did not have."""
    folder = tmp_path_factory.mktemp("recipes")
    compact_into(spark, folder / "archive", put(folder / "store" / "mailserver.db", BEFORE, ARRIVED))
    for file in visible_files(folder / "archive"):
        if f"date={FIRST}" in file.parts:
            rows = pq.ParquetFile(file).read()
            file.unlink()  # it has a second name
            pq.write_table(rows.drop_columns([field.name for field in ARRIVAL]), file)
    return folder / "archive"


def block(heading: str, number: int = 0) -> str:
    """A block of SQL below a heading."""
    _, _, text = (ROOT / "docs" / "archive.md").read_text().partition(f"\n### {heading}\n")
    text, _, _ = text.partition("\n##")
    return re.findall("```sql\n(.*?)```", text, re.DOTALL)[number]


def run(archive: Path, sql: str, names: Mapping[str, str] = {}) -> list[tuple[Any, ...]]:
    """Run SQL on the view that the first recipe makes, with some names in it replaced: each must be there."""
    view = block("In the order of arrival")
    for name, value in names.items():
        assert name in sql
        sql = sql.replace(name, value)
    with duckdb.connect() as connection:
        connection.execute(view.replace("archive/", f"{archive}/"))
        return connection.execute(sql).fetchall()


def test_envelopes_are_listed_in_the_order_of_arrival(archive: Path) -> None:
    sql = block("In the order of arrival", 1).replace("SELECT *", "SELECT hash, seq")

    found = run(archive, sql, {"0x9acb0442": "0x" + NEWS.hex()})

    assert [name for name, seq in found if seq is not None] == ["0x" + one.hash.hex() for one in ARRIVED]
    assert {name for name, seq in found if seq is None} == {
        "0x" + one.hash.hex() for one in BEFORE if one.topic == NEWS
    }
