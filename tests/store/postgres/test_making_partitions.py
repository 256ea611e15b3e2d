"""mailserver.store.postgres.partitions: days are stored, whoever reads or makes partitions meanwhile."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from typing import Any

import asyncpg
import pytest

from mailserver.errors import StoreError
from mailserver.handoff.archived import Mark
from mailserver.store.postgres import ahead, deletion, id_index, partitions
from mailserver.store.postgres.ahead import make_all_days
from mailserver.store.postgres.store import PostgresStore
from mailserver.store.retention import Surplus
from tests.store.engines import found
from tests.store.postgres.conftest import Place
from tests.store.postgres.looking import assert_sound
from tests.store.postgres.test_partitions import indexed, of_day, partition_of
from tests.store.samples import DAY, raws
from tests.waiting import until

pytestmark = pytest.mark.integration

TODAY = int(time.time()) // DAY


LIMIT_S = 10.0


def made(table: str, day: int) -> str:
    """What makes a day's partition."""
    return (
        f"CREATE TABLE {table}_d{day} (LIKE {table} INCLUDING DEFAULTS INCLUDING STORAGE); "
        f"ALTER TABLE {table} ATTACH PARTITION {table}_d{day} FOR VALUES FROM ({day * DAY}) TO ({(day + 1) * DAY})"
    )


MAKE_TOMORROW = made("envelopes", TODAY + 1)


@contextlib.asynccontextmanager
async def holding(place: Place, statements: str) -> AsyncIterator[asyncpg.Connection]:
    """Meanwhile a transaction that has done this lasts."""
    connection = await asyncpg.connect(place.url)
    try:
        await connection.execute(f"BEGIN; {statements}")
        yield connection
        await connection.execute("ROLLBACK")
    finally:
        connection.terminate()


def dumping(place: Place) -> contextlib.AbstractAsyncContextManager[asyncpg.Connection]:
    """Meanwhile every table is read in one transaction, as pg_dump does: also each partition."""
    return holding(place, "LOCK TABLE envelopes, ids IN ACCESS SHARE MODE")


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


async def test_what_came_during_a_backup_is_indexed_before_its_end(
    place: Place, store: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(partitions, "PATIENCE_S", 0.0)
    before, during, later = of_day(TODAY - 1, 3), of_day(TODAY, 1), of_day(TODAY, 2, second=1)
    await store.put([before])
    await indexed(store)

    async with dumping(place), asyncio.timeout(LIMIT_S):
        await store.put([during])
        await indexed(store)
    await store.put([later])
    await indexed(store)

    assert place.rows("SELECT count(*) FROM ids_rest") == ["2"]
    assert [(await store.prune(Surplus((TODAY + 1) * DAY, 100))).envelopes for _ in range(2)] == [1, 2]
    assert place.rows("SELECT count(*) FROM ids") == place.rows("SELECT count(*) FROM id_sums") == ["0"]


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


async def test_day_is_stored_where_there_is_too_much_to_look_through(
    place: Place, store: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(partitions, "MAKING_WAIT_S", LIMIT_S)
    monkeypatch.setattr(partitions, "MAKING_S", 0.01)
    envelope = of_day(TODAY, 1)

    async with dumping(place):  # whom it would wait for, if it might take longer
        await store.put([envelope])

    assert partition_of(place, envelope) == "envelopes_rest"
    assert store.problem == ""


async def test_ids_are_indexed_where_there_is_too_much_to_look_through(
    place: Place, store: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    envelopes = [of_day(TODAY, number, second=number) for number in range(3)]
    await store.put([of_day(TODAY - 1, 3)])
    await indexed(store)
    monkeypatch.setattr(partitions, "WAIT_S", LIMIT_S)
    monkeypatch.setattr(partitions, "MAKING_S", 0.01)

    async with dumping(place):  # whom it would wait for, if it might take longer
        for envelope in envelopes:
            await store.put([envelope])
            await indexed(store)

    assert place.rows("SELECT count(*) FROM ids_rest") == ["3"]
    assert store.problem == store.damage == ""


@pytest.mark.parametrize("archived", [None, {TODAY - 10: 2**40}], ids=["there is no archive", "all is archived"])
async def test_day_of_which_many_ids_are_elsewhere_goes_bit_by_bit(
    place: Place, store: PostgresStore, monkeypatch: pytest.MonkeyPatch, archived: dict[int, Mark] | None
) -> None:
    """One statement would take too long to delete them."""
    monkeypatch.setattr(id_index, "MANY_ELSEWHERE", 2)
    monkeypatch.setattr(deletion, "BATCH_ROWS", 2)
    monkeypatch.setattr(partitions, "PATIENCE_S", 0.0)
    for day in (TODAY - 10, TODAY - 9):
        place.rows(made("envelopes", day))
    old, kept = [of_day(TODAY - 10, number, second=number) for number in range(7)], of_day(TODAY - 9, 8)
    await store.put([kept])
    await indexed(store)
    async with holding(place, "LOCK TABLE ids IN ACCESS SHARE MODE"):
        await store.put(old)
        await indexed(store)
    assert place.rows("SELECT count(*) FROM ids_rest") == ["7"]

    surplus, deleted, indexed_then = Surplus((TODAY - 9) * DAY, 100), [], []
    while batch := (await store.prune(surplus, archived)).envelopes:
        deleted.append(batch)
        indexed_then += place.rows("SELECT count(*), (SELECT sum(count) FROM id_sums WHERE span = 60) FROM ids")

    assert deleted == [2, 2, 2, 1]  # the last one with the whole day
    assert indexed_then == ["6|6", "4|4", "2|2", "1|1"]
    assert place.rows(f"SELECT to_regclass('envelopes_d{TODAY - 10}')") == []
    assert await found(store) == [kept.raw]
    assert_sound(place.server, place.schema)


# Ahead of time


async def test_partitions_of_tomorrow_are_made_today(place: Place, store: PostgresStore, other: PostgresStore) -> None:
    await store.put([of_day(TODAY, 1)])
    await indexed(store)

    assert await store.maintain() is await other.maintain() is False

    tables = [f"{table}_d{TODAY + 1}" for table in ("envelopes", "ids")]
    assert place.rows(f"SELECT '{tables[0]}'::regclass, '{tables[1]}'::regclass") != []
    async with dumping(place):
        tomorrow = of_day(TODAY + 1, 2)
        await store.put([tomorrow])
        await indexed(store)
    assert partition_of(place, tomorrow) == tables[0]
    assert place.rows(f"SELECT count(*) FROM {tables[1]}") == ["1"]
    assert_sound(place.server, place.schema)


async def test_day_is_not_made_ahead_where_nothing_comes(place: Place, store: PostgresStore) -> None:
    await store.put([of_day(TODAY - 1, 1)])

    await store.maintain()

    assert place.rows(f"SELECT to_regclass('envelopes_d{TODAY + 1}')") == []


async def test_nobody_who_stores_waits_for_a_partition_that_is_made_ahead(place: Place, store: PostgresStore) -> None:
    """The server looks through the last partition meanwhile, which nobody can read."""
    await store.put([of_day(TODAY, 1)])

    async with holding(place, MAKE_TOMORROW):
        async with asyncio.timeout(LIMIT_S):
            await store.put([of_day(TODAY, 2, second=1)])

    assert (await store.stats()).envelopes == 2


async def test_partition_that_cannot_be_made_ahead_is_made_later(place: Place, store: PostgresStore) -> None:
    await store.put([of_day(TODAY, 1)])
    async with dumping(place):
        await store.maintain()
        assert place.rows(f"SELECT to_regclass('envelopes_d{TODAY + 1}')") == []

    await store.maintain()

    assert place.rows(f"SELECT count(*) FROM envelopes_d{TODAY + 1}") == ["0"]


async def test_all_days_are_made_for_a_long_history(place: Place, store: PostgresStore) -> None:
    elsewhere = of_day(TODAY - 5, 1)
    async with dumping(place):
        await store.put([elsewhere])
        await make_all_days(place.url)  # which gives up soon
    assert place.rows("SELECT count(*) FROM pg_inherits WHERE inhparent = 'envelopes'::regclass") == ["1"]

    await make_all_days(place.url)
    await make_all_days(place.url)

    days = partitions.DAYS_BACK + 1 + partitions.DAYS_AHEAD
    for table, count in (("envelopes", days - 1), ("ids", days)):
        assert place.rows(f"SELECT count(*) - 1 FROM pg_inherits WHERE inhparent = '{table}'::regclass") == [str(count)]
    async with dumping(place):
        recent = of_day(TODAY - 30, 2)
        await store.put([recent])
    assert partition_of(place, elsewhere) == "envelopes_rest"
    assert partition_of(place, recent) == f"envelopes_d{TODAY - 30}"


async def test_days_cannot_be_made_in_a_schema_without_a_store(place: Place) -> None:
    with pytest.raises(StoreError, match=r"cannot make the partitions of postgresql:.*does not exist"):
        await make_all_days(place.url)


async def test_partition_is_made_ahead_although_an_autovacuum_is_in_the_way(
    place: Place, store: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server ends it, `deadlock_timeout` after somebody has begun to wait for it."""
    (deadlock_timeout,) = place.rows("SELECT boot_val FROM pg_settings WHERE name = 'deadlock_timeout'")
    assert int(deadlock_timeout) < partitions.WAIT_S * 1000
    monkeypatch.setattr(ahead, "WAIT_S", LIMIT_S)
    monkeypatch.setattr(ahead, "AHEAD_S", LIMIT_S)
    await store.put([of_day(TODAY, 1), of_day(100, 2)])
    await indexed(store)

    async with holding(place, "LOCK TABLE envelopes_rest IN SHARE UPDATE EXCLUSIVE MODE") as vacuum:
        making = asyncio.create_task(store.maintain())
        waits = (
            "SELECT count(*) FROM pg_locks WHERE NOT granted AND relation = 'envelopes_rest'::regclass "
            f"AND clock_timestamp() - waitstart > interval '{partitions.MAKING_WAIT_S} s'"
        )
        await until(lambda: place.rows(waits) == ["1"], LIMIT_S)
        await vacuum.execute("ROLLBACK; BEGIN")
        await making

    assert place.rows(f"SELECT count(*) FROM envelopes_d{TODAY + 1}") == ["0"]


async def test_partition_that_would_take_too_long_is_not_tried_again_every_minute(
    place: Place, store: PostgresStore, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    await store.put([of_day(TODAY, 1)])
    monkeypatch.setattr(ahead, "WAIT_S", LIMIT_S)
    monkeypatch.setattr(ahead, "AHEAD_S", 0.01)
    async with dumping(place):  # whom it would wait for, if it might take longer
        await store.maintain()
    monkeypatch.undo()

    await store.maintain()

    assert place.rows(f"SELECT to_regclass('envelopes_d{TODAY + 1}')") == []
    name = f"envelopes_d{TODAY + 1}"
    said = f"partition not made, its day goes into the shared one partition={name} limit_s=0.01 again_in_s=21600"
    assert [message for message in caplog.messages if message.startswith("partition")] == [said]


async def test_day_of_which_something_is_elsewhere_stays_there(place: Place, store: PostgresStore) -> None:
    async with dumping(place):
        await store.put([of_day(TODAY, 1), of_day(TODAY + 1, 2)])

    await store.maintain()

    assert place.rows(f"SELECT to_regclass('envelopes_d{TODAY + 1}')") == []


async def test_envelope_that_comes_while_its_partition_is_made_is_stored(place: Place, store: PostgresStore) -> None:
    envelope = of_day(TODAY + 1, 1)

    async with holding(place, MAKE_TOMORROW) as making:
        putting = asyncio.create_task(store.put([envelope]))
        waits = (
            "SELECT count(*) FROM pg_locks AS l JOIN pg_stat_activity USING (pid) "
            "WHERE NOT l.granted AND l.relation = 'envelopes_rest'::regclass AND query LIKE '%INSERT INTO envelopes%'"
        )
        await until(lambda: place.rows(waits) == ["1"], LIMIT_S)
        await making.execute("COMMIT")
        await putting

    assert partition_of(place, envelope) == f"envelopes_d{TODAY + 1}"
    assert_sound(place.server, place.schema)


async def test_old_day_of_which_nothing_came_is_dropped(place: Place, store: PostgresStore) -> None:
    empty, held = TODAY - partitions.DAYS_BACK - 1, TODAY - partitions.DAYS_BACK - 2
    for day in (empty, held):
        for table in ("envelopes", "ids"):
            place.rows(made(table, day))
    await store.put([of_day(held, 1)])

    await store.maintain()

    assert place.rows(f"SELECT to_regclass('envelopes_d{empty}'), to_regclass('ids_d{empty}')") == ["|"]
    assert partition_of(place, of_day(held, 1)) == f"envelopes_d{held}"
    assert len(await found(store)) == 1


async def test_whoever_reads_is_waited_for_once_not_for_each_old_day(
    place: Place, store: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody can store meanwhile, on any mailserver."""
    monkeypatch.setattr(ahead, "WAIT_S", 0.05)
    days = [TODAY - partitions.DAYS_BACK - number for number in (1, 2, 3)]
    for day in days:
        for table in ("envelopes", "ids"):
            place.rows(made(table, day))
    tried = []
    take_no_longer = partitions.take_no_longer

    async def noting(*arguments: Any) -> None:
        tried.append(arguments)
        await take_no_longer(*arguments)

    monkeypatch.setattr(ahead, "take_no_longer", noting)
    async with dumping(place):
        await store.maintain()
    assert len(tried) == 1

    monkeypatch.setattr(ahead, "WAIT_S", LIMIT_S)
    await store.maintain()

    assert [place.rows(f"SELECT to_regclass('envelopes_d{day}')") for day in days] == [[], [], []]
