"""The nightly run beside two daemons on one database, of which one is killed: the archive is exact."""

import asyncio
import random
import threading
import time
from collections import Counter
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from mailserver.store.postgres.job import StoreDatabase
from tests.faults.database.kills import Daemons
from tests.faults.database.pair import Stage, impatient
from tests.spark_export.samples import archived, compact_into
from tests.store.postgres.server import shared_server
from tests.waiting import wait_until

pytestmark = pytest.mark.spark

KEPT = 300
RUN_LIMIT_S = 300.0


def test_daemon_is_killed_beside_it_and_the_archive_has_each_confirmed_envelope_once(
    spark: SparkSession, archive: Path, tmp_path: Path
) -> None:
    stage = Stage(shared_server(), tmp_path / "daemons", random.Random(5), impatient(1.0))
    flags = ("--retention-days", "0", "--retention-envelopes", str(KEPT), "--archive", str(archive))
    pair = stage.pair("compaction", *flags)
    place = StoreDatabase(shared_server().url(pair.schema))
    rows: list[int] = []

    def compact(run: str) -> None:
        report = compact_into(spark, archive, place, now=time.time(), run=run, keep_open_day=True)
        rows.append(report.rows)

    with Daemons(pair) as daemons:
        pair.begin_round()
        beside = threading.Thread(target=compact, args=("run-1",))
        beside.start()
        asyncio.run(daemons.flood_and_kill("one daemon"))
        beside.join(RUN_LIMIT_S)
        asyncio.run(daemons.recover())
        compact("run-2")
        wait_until(lambda: pair.rows("SELECT count(*) FROM envelopes") == [str(KEPT)])
        asyncio.run(pair.verify(daemons.daemons))  # what was deleted, from the archive
        daemons.stop()
    hashes = Counter(bytes.fromhex(row["hash"].removeprefix("0x")) for row in archived(archive))

    assert pair.broken == []
    assert pair.figures["envelopes_compared"] >= 3 * pair.promises.confirmed > 3 * KEPT
    assert set(hashes.values()) == {1}
    assert pair.promises.owed() <= set(hashes)
    sent = pair.promises.sent
    assert all(sent[bytes.fromhex(row["hash"].removeprefix("0x"))].raw == row["raw"] for row in archived(archive))
    assert len(rows) == 2
    assert sum(rows) == hashes.total()
