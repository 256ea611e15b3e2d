"""The recipes in docs/archive.md: each block of SQL there is run on an archive, with its names replaced; and the one in
Python that finds an envelope."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import duckdb
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from mailserver.ids.envelopes import envelope_muid
from mailserver.ids.muid import DEFAULT_NETWORK_TOPIC, Muid, metadata_of
from mailserver.store.interface import NewEnvelope
from mailserver.waku.envelope import decode_envelope
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

ROOT = Path(__file__).parents[3]

BEFORE = envelopes(6, day=DAY)
"""Archived by an earlier version."""

ARRIVED = [
    envelope(number, received=(DAY + 1) * 86_400 + number // 10, created=DAY * 86_400 + number * 37 % 20, size=300)
    for number in range(120, 140)  # nonces of one byte, with a header and without
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
            pq.write_table(rows.drop_columns(["muid", *(field.name for field in ARRIVAL)]), file)
    return folder / "archive"


def block(heading: str, number: int = 0, *, language: str = "sql") -> str:
    """A block of code below a heading."""
    _, _, text = (ROOT / "docs" / "archive.md").read_text().partition(f"\n### {heading}\n")
    text, _, _ = text.partition("\n##")
    found: list[str] = re.findall(f"```{language}\n(.*?)```", text, re.DOTALL)
    return found[number]


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


def muid_of(put_in: NewEnvelope) -> Muid:
    return envelope_muid(DEFAULT_NETWORK_TOPIC, decode_envelope(put_in.raw))


def test_envelope_is_found_by_its_muid(archive: Path) -> None:
    sql = block("By message id").replace("SELECT *", "SELECT hash")

    for put_in in ARRIVED[:3]:
        assert run(archive, sql, {"MUID": muid_of(put_in).hex()}) == [("0x" + put_in.hash.hex(),)]
    assert run(archive, sql, {"MUID": muid_of(BEFORE[0]).hex()}) == []  # earlier versions archived none


def test_envelope_is_found_by_its_muid_in_pyspark(spark: SparkSession, archive: Path) -> None:
    wanted = ARRIVED[4]
    recipe = block("In PySpark", 1, language="python")
    names: dict[str, Any] = {"spark": spark}

    exec(recipe.replace("MUID", muid_of(wanted).hex()).replace('"archive"', repr(str(archive))), names)

    (row,) = names["found"].collect()
    assert bytes(row.raw) == wanted.raw


def test_muids_of_a_topic_and_a_time_are_listed(archive: Path) -> None:
    first, last = sorted(one.created for one in ARRIVED)[5], sorted(one.created for one in ARRIVED)[15]
    names = {
        "0x9acb0442": "0x" + NEWS.hex(),
        "epoch(TIMESTAMP '2026-11-01')": str(first),
        "epoch(TIMESTAMP '2026-11-08')": str(last),
    }

    found = run(archive, block("By message id", 1), names)

    wanted = [muid_of(one) for one in ARRIVED if first <= one.created < last]
    assert [bytes.fromhex(name) for (name,) in found if name] == sorted(wanted, key=metadata_of)


def test_muids_are_checked_in_sql(archive: Path) -> None:
    sql = block("By message id", 2)
    assert run(archive, sql) == []
    assert len(run(archive, sql, {"lower(hex(muid)) <>": "lower(hex(muid)) ="})) == len(ARRIVED)

    others = run(archive, sql, {"/waku/2/rs/1/4": "/waku/2/rs/1/5"})
    assert sorted(others) == sorted(("0x" + one.hash.hex(),) for one in ARRIVED)
