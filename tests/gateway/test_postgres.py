"""A gateway over a database that hangs."""

import asyncio
import time
from pathlib import Path

import pytest

from mailserver.gateway import store_service
from mailserver.gateway.index import follower as following
from mailserver.waku2.store_query import StoreQueryRequest
from tests.gateway.worlds import TOPIC, message, running_gateway
from tests.mailservers import make_envelope
from tests.store.engines import PostgresEngine
from tests.store.postgres.server import Server
from tests.waiting import DEADLINE_S

pytestmark = pytest.mark.integration

ALL = StoreQueryRequest("all", include_data=True)
IN_TIME_S = 8.0
"""Twice a second and the rest for a busy machine; a statement by itself would take 10 s to be given up."""


async def test_database_that_hangs_is_told_as_unavailable_in_time(
    own_server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with (
        running_gateway(tmp_path, engine=PostgresEngine(tmp_path, own_server)) as gateway,
        gateway.client() as client,
    ):
        await gateway.accept(make_envelope(1))
        before = await client.query(ALL)
        with own_server.hanging(), monkeypatch.context() as patch:
            patch.setattr(store_service, "QUERY_TIMEOUT_S", 1.0)
            patch.setattr(following, "CATCH_UP_S", 1.0)
            began = time.monotonic()
            asked, sent = await client.query(ALL), await client.lightpush(TOPIC, message(1))
            took = time.monotonic() - began
        async with asyncio.timeout(DEADLINE_S):
            while (after := await client.query(ALL)).status_code != 200:
                pass

    assert (asked.status_code, sent.status_code) == (503, 503)
    assert took < IN_TIME_S
    assert len(before.messages) == 1
    assert after.messages == before.messages
