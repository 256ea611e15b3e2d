"""The whole way: the real compaction archives, the daemon prunes, and light clients get all of it from the gateway."""

import asyncio
import json
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from mailserver.archive.days import day_name
from mailserver.data_dir.folder import load_or_make_key
from mailserver.gateway.index.schema import INDEX_FILE
from mailserver.ids.envelopes import content_topic_of, message_of
from mailserver.ids.muid import DEFAULT_NETWORK_TOPIC
from mailserver.store.interface import NewEnvelope
from mailserver.store.sqlite.schema import STORE_FILE
from mailserver.units import SECONDS_PER_DAY
from mailserver.waku.envelope import decode_envelope
from mailserver.waku2.codes import StoreStatus
from mailserver.waku2.store_query import StoreQueryRequest, StoreQueryResponse
from tests.integration.daemons import DEADLINE_S, running_daemon
from tests.integration.gateways import METRICS, GatewayProcess, running_gateway
from tests.integration.go_client import go_client
from tests.integration.light_clients import hashes_of, light_client, sent_hash
from tests.libp2p.names import MUXERS
from tests.spark_export.samples import NEWS, compact_into, envelopes, prune, put

pytestmark = pytest.mark.spark

DAYS = range(20_000, 20_004)
DAY_MS = SECONDS_PER_DAY * 1000
ALL = StoreQueryRequest("all", include_data=True, pagination_forward=True, pagination_limit=13)


def names(some: Sequence[NewEnvelope]) -> list[bytes]:
    """The hashes of the messages of envelopes, in the order of store v3."""
    messages = [message_of(decode_envelope(one.raw)) for one in some]
    return [name for _, name in sorted((each.timestamp or 0, each.hash(DEFAULT_NETWORK_TOPIC)) for each in messages)]


def asked(gateway: GatewayProcess, request: StoreQueryRequest) -> list[StoreQueryResponse]:
    """All pages of a query, of a client that connects for it."""

    async def ask() -> list[StoreQueryResponse]:
        pages = []
        async with go_client(gateway.tcp, MUXERS[0]) as client:
            after = request
            while True:
                pages.append(await client.query(after))
                if pages[-1].pagination_cursor is None:
                    return pages
                after = replace(request, pagination_cursor=pages[-1].pagination_cursor)

    return asyncio.run(ask())


def found(gateway: GatewayProcess, request: StoreQueryRequest) -> list[bytes]:
    """The hashes of all pages, page after page."""
    pages = asked(gateway, request)
    assert {page.status_code for page in pages} == {StoreStatus.OK}, gateway.log
    return [each.message_hash for page in pages for each in page.messages]


def assert_answers_all(gateway: GatewayProcess, everything: Sequence[NewEnvelope]) -> None:
    expected = names(everything)
    of_topic = replace(ALL, pubsub_topic=DEFAULT_NETWORK_TOPIC, content_topics=(content_topic_of(NEWS),))
    backward = asked(gateway, replace(ALL, pagination_forward=False))

    assert found(gateway, ALL) == expected, gateway.log
    assert [each.message_hash for page in backward[::-1] for each in page.messages] == expected
    assert found(gateway, of_topic) == names([one for one in everything if one.topic == NEWS])
    presence = StoreQueryRequest("presence", message_hashes=(*expected[:3], bytes(31) + b"\1"), pagination_forward=True)
    assert found(gateway, presence) == expected[:3]


def ready(gateway: GatewayProcess) -> list[str]:
    """Its problems."""
    port = gateway.wait_for_line("serving metrics").rpartition("port=")[2]
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/ready", timeout=DEADLINE_S) as answer:
            text = answer.read()
    except urllib.error.HTTPError as error:
        text = error.read()
    problems: list[str] = json.loads(text)["problems"]
    return problems


def wait_until_indexed(gateway: GatewayProcess, archive: Path) -> None:
    """Wait until it has indexed the archive."""
    periods = [folder.name.removeprefix("date=") for folder in archive.glob("date=*")]
    assert set(periods) >= {*map(day_name, DAYS)}
    for period in periods:
        gateway.wait_for_line(f"archive is indexed period={period}")


def test_light_clients_get_what_was_archived_and_pruned(spark: SparkSession, tmp_path: Path) -> None:
    everything = [one for day in DAYS for one in envelopes(30, day=day, first=100 * (day - DAYS[0]))]
    archive, store = tmp_path / "archive", put(tmp_path / "data" / STORE_FILE, everything)
    load_or_make_key(store.parent)
    compact_into(spark, archive, store, now=20_010 * 86_400)
    reads = ("--archive", str(archive))

    with running_gateway(store.parent, *reads, *METRICS) as gateway:
        wait_until_indexed(gateway, archive)
        assert_answers_all(gateway, everything)
        with running_daemon(
            store.parent, "--feed-socket", "--archive", str(archive), "--retention-days", "2"
        ) as daemon:
            daemon.wait_for_line("pruned envelopes=")
            gateway.wait_for_line("feed connected")
            assert_answers_all(gateway, everything)

    (store.parent / INDEX_FILE).unlink()
    with running_gateway(store.parent, *reads, *METRICS) as gateway:
        wait_until_indexed(gateway, archive)
        files = {file: file.read_bytes() for file in archive.rglob("part-*")}
        for file in files:
            file.unlink()
        (broken,) = asked(gateway, ALL)
        said = ready(gateway)
        for file, content in files.items():
            file.write_bytes(content)
        assert_answers_all(gateway, everything)

    assert broken.status_code == StoreStatus.SERVICE_UNAVAILABLE
    assert any("could not be answered from the archive" in problem for problem in said), said
    assert "store query failed" in gateway.log


def test_js_waku_reads_what_only_the_archive_has_and_what_it_sent_itself_as_it_sent_it(
    spark: SparkSession, tmp_path: Path
) -> None:
    old = [one for day in DAYS for one in envelopes(15, day=day, first=100 * (day - DAYS[0]), topics=[NEWS])]
    archive, store = tmp_path / "archive", put(tmp_path / "data" / STORE_FILE, old)
    sent_at = time.time_ns() // 1_000_000

    async def send() -> None:
        with running_daemon(store.parent, "--feed-socket") as daemon, running_gateway(store.parent) as gateway:
            gateway.wait_for_line("feed connected")
            async with light_client() as js:
                await js.dial(gateway.websocket)
                await js.send(NEWS, b"by js-waku", timestamp=sent_at)
            assert daemon.log.count("internal error") == gateway.log.count("internal error") == 0

    async def read() -> dict[str, Any]:
        with running_gateway(store.parent, "--archive", str(archive)) as gateway:
            wait_until_indexed(gateway, archive)
            async with light_client() as js:
                await js.dial(gateway.websocket)
                return {
                    "forward": await js.query(NEWS, limit=13),
                    "backward": await js.query(NEWS, limit=13, forward=False),
                    "day": await js.query(NEWS, start=DAYS[1] * DAY_MS, end=DAYS[2] * DAY_MS),
                    "hashes": await js.ask("queryHashes", topics=[content_topic_of(NEWS)], hashes=expected[::7]),
                }

    asyncio.run(send())
    compact_into(spark, archive, store, now=time.time() + 2 * SECONDS_PER_DAY)
    assert prune(store, before=2**33) == len(old) + 1
    expected = [*(name.hex() for name in names(old)), sent_hash(NEWS, b"by js-waku", sent_at)]
    found = asyncio.run(read())

    assert [len(page) for page in found["forward"]] == [13, 13, 13, 13, 9]
    assert [name for page in found["forward"] for name in hashes_of(page)] == expected
    assert [name for page in found["backward"][::-1] for name in hashes_of(page)] == expected
    assert [name for page in found["day"] for name in hashes_of(page)] == expected[15:30]
    assert [name for page in found["hashes"] for name in hashes_of(page)] == expected[::7]
    last = found["forward"][-1][-1]
    assert (last["payload"], last["timestamp"], last["version"]) == (b"by js-waku".hex(), str(sent_at * 10**6), 0)
