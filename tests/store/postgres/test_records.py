"""mailserver.store.postgres.records: what is kept with the store, as far as only this engine does it."""

import time

import pytest

from mailserver.store.postgres.store import PostgresStore

pytestmark = pytest.mark.integration


async def test_moment_that_nobody_has_written_is_that_of_the_database(
    store: PostgresStore, other: PostgresStore
) -> None:
    before = int(time.time())

    moment = await store.time_record.read()
    await other.time_record.write(20)

    assert before <= moment <= time.time()
    assert await store.time_record.read() == 20
