"""mailserver.store.postgres.partitions: days are stored, whoever reads or makes partitions meanwhile."""

import contextlib
import time
from collections.abc import AsyncIterator

import asyncpg
import pytest

from mailserver.store.postgres import partitions
from mailserver.store.postgres.store import PostgresStore
from mailserver.store.retention import Surplus
from tests.store.engines import found
from tests.store.postgres.conftest import Place
from tests.store.postgres.looking import assert_sound
from tests.store.postgres.test_partitions import indexed, of_day, partition_of
from tests.store.samples import DAY, raws

pytestmark = pytest.mark.integration

TODAY = int(time.time()) // DAY


@contextlib.asynccontextmanager
async def dumping(place: Place) -> AsyncIterator[None]:
    """Meanwhile every table is read in one transaction, as pg_dump does."""
    connection = await asyncpg.connect(place.url)
    try:
        await connection.execute("BEGIN; LOCK TABLE envelopes, ids IN ACCESS SHARE MODE")  # with their partitions
        yield
        await connection.execute("ROLLBACK")
    finally:
        connection.terminate()


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Partitions are tried again at once."""
    monkeypatch.setattr(partitions, "MAKING_AGAIN_S", 0.0)


async def test_first_envelopes_of_a_day_are_stored_while_a_backup_reads(
    place: Place, store: PostgresStore, other: PostgresStore, at_once: None
) -> None:
    before = of_day(TODAY - 1, 1)
    envelopes = [of_day(TODAY, number, second=number) for number in range(2, 6)]
    await store.put([before])

    async with dumping(place):
        await store.put(envelopes[:1])
        await other.put(envelopes[1:2])
        await store.put([before, *envelopes[2:3]])
    await other.put(envelopes[3:])

    assert partition_of(place, before) == f"envelopes_d{TODAY - 1}"
    assert {partition_of(place, envelope) for envelope in envelopes} == {"envelopes_rest"}
    assert await found(store) == await found(other) == raws([*envelopes[::-1], before])
    assert_sound(place.server, place.schema)


async def test_day_that_came_during_a_backup_is_indexed_and_deleted_row_by_row(
    place: Place, store: PostgresStore
) -> None:
    old, kept = [of_day(TODAY - 3, number, second=number) for number in range(3)], of_day(TODAY - 2, 5)
    async with dumping(place):
        await store.put(old)
    await store.put([kept])
    await indexed(store)

    assert await store.held(Surplus((TODAY - 2) * DAY, 100)) == 3
    assert await store.prune(Surplus((TODAY - 2) * DAY, 100)) == (3, sum(map(len, raws(old))))

    assert await found(store) == [kept.raw]
    assert place.rows("SELECT count(*) FROM ids") == ["1"]
    assert_sound(place.server, place.schema)


async def test_other_days_get_partitions_soon_after_a_backup(place: Place, store: PostgresStore, at_once: None) -> None:
    during, later, again = of_day(TODAY - 3, 1), of_day(TODAY - 2, 2), of_day(TODAY - 3, 3, second=1)
    async with dumping(place):
        await store.put([during])

    await store.put([later, again])

    assert partition_of(place, during) == partition_of(place, again) == "envelopes_rest"
    assert partition_of(place, later) == f"envelopes_d{TODAY - 2}"


async def test_nobody_waits_again_for_a_backup_that_was_waited_for(place: Place, store: PostgresStore) -> None:
    days = [of_day(TODAY - age, age) for age in range(40)]
    async with dumping(place):
        began = time.monotonic()
        for envelope in days:
            await store.put([envelope])
        took_s = time.monotonic() - began

    assert took_s < 40 * partitions.MAKING_WAIT_S / 2
    assert await found(store) == raws(days)
