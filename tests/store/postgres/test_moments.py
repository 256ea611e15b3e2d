"""What is read in several statements, while partitions are made and dropped: the order of arrival, and snapshots."""

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Awaitable, Callable

import asyncpg
import pytest

from mailserver.errors import StoreError
from mailserver.store.engine.snapshots import SnapshotReader
from mailserver.store.interface import OURSELVES, NewEnvelope
from mailserver.store.postgres import connections
from mailserver.store.postgres.connections import SESSION
from mailserver.store.postgres.insertion import MAKE_STAGING, insert_group
from mailserver.store.postgres.message_ids import SnapshotTables
from mailserver.store.postgres.partitions import Partitions
from mailserver.store.postgres.store import PostgresStore, open_store
from mailserver.store.retention import Surplus
from tests.store.engines import EVERYTHING
from tests.store.postgres.conftest import Place
from tests.store.postgres.test_partitions import TODAY, indexed, of_day
from tests.store.samples import DAY
from tests.waiting import DEADLINE_S, until

pytestmark = pytest.mark.integration


@contextlib.asynccontextmanager
async def storing(place: Place, envelopes: list[NewEnvelope]) -> AsyncIterator[Callable[[], Awaitable[None]]]:
    """Another mailserver has stored a group, with the partitions that it needs; yield what commits it."""
    connection = await asyncpg.connect(place.url)
    try:
        await connection.execute(SESSION)
        await connection.execute(MAKE_STAGING)
        transaction = connection.transaction()
        await transaction.start()
        await insert_group(connection, envelopes, Partitions("envelopes"))
        yield transaction.commit
    finally:
        connection.terminate()


LISTS = "^SELECT coalesce.max.seq|ORDER BY seq LIMIT"
"""What lists rows by arrival, by the words of its statements. (What indexes ids waits, too.)"""


def waits_for(place: Place, table: str, who: str = "") -> bool:
    """Whether anybody waits for the lock of a table."""
    waiting = "SELECT count(*) FROM pg_locks JOIN pg_stat_activity USING (pid) WHERE NOT granted"
    return place.rows(f"{waiting} AND relation = to_regclass('{table}') AND query ~ '{who}'") != ["0"]


async def test_page_by_arrival_leaves_nothing_out_that_came_with_a_new_partition(
    place: Place, store: PostgresStore
) -> None:
    """Whoever waits for the partition to be made plans without it, and yet sees what was stored behind it."""
    await store.put([of_day(TODAY - 1, 3, second=1)])
    group = [of_day(TODAY, 1), of_day(TODAY - 1, 2)]

    async with storing(place, group) as commit:
        listing = asyncio.create_task(store.message_ids.as_arrived(EVERYTHING, 10))
        await until(lambda: waits_for(place, "envelopes_rest", LISTS))
        await commit()
        first = await listing
    rest = await store.message_ids.as_arrived(EVERYTHING, 10, after=first.end)

    assert len(first.muids) + len(rest.muids) == 3


async def test_snapshot_keeps_the_ids_of_its_moment(place: Place, store: PostgresStore, other: PostgresStore) -> None:
    """A partition that is dropped is gone for whoever looks later: its sums would stand there without ids."""
    await store.put([of_day(TODAY - 10, 1), of_day(TODAY - 9, 2)])
    await indexed(store)
    has_begun, may_go_on = threading.Event(), threading.Event()

    def look(reader: SnapshotReader) -> tuple[list[int], list[int]]:
        reader.read("SELECT 1")  # this is the moment
        has_begun.set()
        assert may_go_on.wait(DEADLINE_S)
        tables = SnapshotTables(reader)
        return tables.sums(86_400, 0, TODAY, 10)[1], tables.ids(0, b"", TODAY * DAY, 10)[0]

    ids = store.message_ids
    async with ids.snapshots.seat(ids.access(OURSELVES)) as seat:
        looking = asyncio.create_task(seat.run(look, lambda: None))
        await until(has_begun.is_set)
        dropping = asyncio.create_task(other.prune(Surplus(TODAY * DAY, 100)))
        try:
            await until(lambda: dropping.done() or waits_for(place, "ids"))
        finally:
            may_go_on.set()
        counts, created = await looking

    assert counts == [1, 1]
    assert created == [(TODAY - 10) * DAY + 3600, (TODAY - 9) * DAY + 3600]
    assert (await dropping).envelopes == 1


async def test_store_is_closed_while_a_snapshot_is_worked_on(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread asks the event loop for one more answer: that must not wait for the thread."""
    monkeypatch.setattr(connections, "CLOSE_TIMEOUT_S", 0.01)
    has_begun, may_go_on = threading.Event(), threading.Event()

    def look(reader: SnapshotReader) -> None:
        has_begun.set()
        may_go_on.wait(DEADLINE_S)
        reader.read("SELECT 1")

    async with open_store(place.url) as store:
        ids = store.message_ids
        async with ids.snapshots.seat(ids.access(OURSELVES)) as seat:
            looking = asyncio.create_task(seat.run(look, lambda: None))
            await until(has_begun.is_set)
        asyncio.get_running_loop().call_later(1.0, may_go_on.set)

    with pytest.raises(StoreError):
        await looking
