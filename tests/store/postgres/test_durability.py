"""What is confirmed is on the database's disk: nothing of it is lost when all of PostgreSQL is killed at that moment.

The server of these tests confirms commits before they are on disk, unless whoever commits wants it otherwise, and then
does not write them for 10 seconds.
"""

import asyncio

import pytest

from mailserver.errors import StoreError
from mailserver.store.engine import index_wait
from mailserver.store.postgres.store import open_store
from tests.store.engines import found
from tests.store.postgres.server import Server, new_schema
from tests.store.samples import new_envelopes, raws
from tests.waiting import until

pytestmark = pytest.mark.integration


async def test_confirmation_comes_after_the_commit_record_is_on_disk(
    durable_server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_store(durable_server.url(new_schema(durable_server))) as store:
        await store.message_ids.find([])
        monkeypatch.setattr(index_wait, "INDEX_DELAY_S", 3600.0)  # it writes, too
        for number, envelope in enumerate(new_envelopes(20)):
            await store.put([envelope])

            # Nobody else writes here, so the log ends with what this put has written.
            is_flushed = durable_server.sql("SELECT pg_current_wal_flush_lsn() >= pg_current_wal_insert_lsn()")
            assert is_flushed == "t", number


@pytest.mark.parametrize("round_number", range(3))
async def test_nothing_confirmed_is_lost_when_the_database_is_killed(durable_server: Server, round_number: int) -> None:
    url = durable_server.url(new_schema(durable_server))
    confirmed: list[bytes] = []
    async with open_store(url) as store:

        async def put_on(first: int) -> None:
            for number in range(first, first + 1000):
                envelopes = new_envelopes(1, first=number)
                await store.put(envelopes)
                confirmed.extend(raws(envelopes))

        putting = [asyncio.create_task(put_on(first)) for first in range(0, 5000, 1000)]
        await until(lambda: len(confirmed) >= 40 * (round_number + 1))
        durable_server.kill()
        ends = await asyncio.gather(*putting, return_exceptions=True)
        assert {type(end) for end in ends} == {StoreError}

    durable_server.start()
    async with open_store(url) as store:
        there = await found(store, limit=5000)

    assert set(confirmed) <= set(there)
    assert len(there) == len(set(there))
