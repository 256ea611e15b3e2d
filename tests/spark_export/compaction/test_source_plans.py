"""spark_export.source on PostgreSQL: what a statement costs does not grow with the day that it reads a part of."""

import time

import pytest

from mailserver.store.postgres.store import open_store
from spark_export import source
from spark_export.source import END_OF_TIME
from tests.store.postgres.conftest import Place
from tests.store.postgres.plans import MODES, plans_of
from tests.store.postgres.server import new_schema, shared_server
from tests.store.samples import DAY, new_envelope

pytestmark = pytest.mark.integration

TODAY = int(time.time()) // DAY
ROWS_OF_DAY = 20_000
FIRST, LAST = 10_001, 10_100


@pytest.fixture(scope="module")
def place() -> Place:
    """Where a store of a day is to be."""
    return Place(shared_server(), new_schema(shared_server()))


@pytest.mark.parametrize("mode", MODES)
async def test_statement_reads_only_the_rows_of_its_numbers(place: Place, mode: str) -> None:
    midnight = (TODAY - 1) * DAY
    async with open_store(place.url) as store:
        if not (await store.usage()).envelopes:
            await store.put([new_envelope(n, created=midnight + n, size=9) for n in range(ROWS_OF_DAY)])
            place.rows("ANALYZE")
    parameters = FIRST, LAST, midnight, midnight + DAY - 1, END_OF_TIME

    there = source._THERE.values()  # noqa: SLF001
    plans = await plans_of(place.url, [(sql, parameters) for sql in there], mode)

    assert len(plans) == 3
    for plan in plans:
        steps = plan.of_partitions()
        assert all("_seq_" in step.index for step in steps), plan
        assert plan.rows == LAST - FIRST + 1, plan
        assert plan.pages <= 2 * (LAST - FIRST + 1), plan
