"""A primary with a synchronous standby: what is confirmed is on both, so a failover loses nothing of it."""

import asyncio
import shutil
from collections.abc import Iterator
from typing import NamedTuple

import pytest

from mailserver.errors import StoreError
from mailserver.ids.muid import DEFAULT_NETWORK_TOPIC
from mailserver.store.message_ids import BEFORE_ALL
from mailserver.store.postgres import connections
from mailserver.store.postgres.arrivals import open_arrivals
from mailserver.store.postgres.connections import open_links
from mailserver.store.postgres.failures import StoreFailures, Unreachable
from mailserver.store.postgres.job import StoreDatabase
from mailserver.store.postgres.presence import Presence
from mailserver.store.postgres.store import open_store
from tests.store.engines import found
from tests.store.postgres.server import Server, give_to_server
from tests.store.samples import new_envelopes, raws
from tests.waiting import wait_until

pytestmark = pytest.mark.integration

NAME = "standby"
SETTINGS = {"wal_level": "replica", "max_wal_senders": "4", "shared_buffers": "16MB", "hot_standby": "on"}
BOTH, STUCK, NEW = ([envelope] for envelope in new_envelopes(3))


class Pair(NamedTuple):
    """Two servers: the second has all that the first confirms."""

    primary: Server
    standby: Server


@pytest.fixture
def pair() -> Iterator[Pair]:
    primary = Server({**SETTINGS, "synchronous_standby_names": NAME})
    primary.start()  # so that its data say with which settings a standby can follow
    primary.stop()
    data = primary.folder / NAME
    shutil.copytree(primary.data, data)
    for path in (data, *data.rglob("*")):
        give_to_server(path)
    data.chmod(0o700)
    reach = f"host={primary.folder} user=postgres application_name={NAME}"
    standby = Server({**SETTINGS, "primary_conninfo": reach}, data=data)
    standby.stand_by()
    try:
        primary.start()
        standby.start()
        yield Pair(primary, standby)
    finally:
        standby.remove()
        primary.remove()


async def test_standby_is_not_taken_for_the_primary(pair: Pair) -> None:
    """Nor by a connection that is made anew: the URL may name several hosts."""
    async with open_store(pair.primary.url()) as store:
        await store.put(BOTH)
        identity = await store.identity()
    wait_until(lambda: pair.standby.sql("SELECT count(*) FROM envelopes") == "1")
    url = pair.standby.url()

    async with (
        open_arrivals(url, DEFAULT_NETWORK_TOPIC) as log,
        open_links(url, 1, StoreFailures(), Presence(identity, StoreFailures()).check) as (link,),
    ):
        with pytest.raises(StoreError, match="is a standby"):
            await log.after(BEFORE_ALL, 10, of=identity)
        with pytest.raises(Unreachable, match="is a standby"):
            await link.run(lambda connection: connection.fetchval("SELECT 1"))
    with pytest.raises(StoreError, match="is a standby"):
        await asyncio.to_thread(StoreDatabase(url).read_archived)


async def test_failover_loses_nothing_that_was_confirmed(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "STATEMENT_TIMEOUT_S", 1.0)  # it is waited for in vain
    url = pair.primary.url()
    async with open_store(url) as one, open_store(url) as other:
        await one.put(BOTH)
        await other.put(BOTH)

        pair.standby.kill()
        with pytest.raises(StoreError, match="does not answer in time"):
            await one.put(STUCK)
        # The operator ends the commit that waits: then the primary has it, and the standby has not.
        pair.primary.sql("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE wait_event = 'SyncRep'")
        wait_until(lambda: pair.primary.sql("SELECT count(*) FROM envelopes") == "2")
        for envelopes in (STUCK, NEW):
            with pytest.raises(StoreError, match="does not answer in time"):
                await other.put(envelopes)
        pair.primary.kill()

    pair.standby.start()
    assert pair.standby.sql("SELECT pg_promote()") == "t"
    async with open_store(pair.standby.url()) as store:
        assert await found(store) == raws(BOTH)
        await store.put(STUCK)
        assert await found(store) == raws([*STUCK, *BOTH])
