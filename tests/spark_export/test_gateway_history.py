"""The whole way: the real compaction archives, the daemon prunes, and light clients get all of it from the gateway."""

import asyncio
import json
import urllib.error
import urllib.request
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from mailserver.archive.days import day_name
from mailserver.data_dir.folder import load_or_make_key
from mailserver.gateway.index.schema import INDEX_FILE
from mailserver.ids.envelopes import content_topic_of, message_of
from mailserver.ids.muid import DEFAULT_NETWORK_TOPIC
from mailserver.store.interface import NewEnvelope
from mailserver.store.sqlite.schema import STORE_FILE
from mailserver.waku.envelope import decode_envelope
from mailserver.waku2.codes import StoreStatus
from mailserver.waku2.store_query import StoreQueryRequest, StoreQueryResponse
from tests.integration.daemons import DEADLINE_S, running_daemon
from tests.integration.gateways import METRICS, GatewayProcess, running_gateway
from tests.integration.go_client import go_client
from tests.libp2p.names import MUXERS
from tests.spark_export.samples import NEWS, compact_into, envelopes, put

pytestmark = pytest.mark.spark

DAYS = range(20_000, 20_004)
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


def wait_until_indexed(gateway: GatewayProcess) -> None:
    """Wait until it has indexed the archive."""
    for day in DAYS:
        gateway.wait_for_line(f"archive is indexed period={day_name(day)}")


def test_light_clients_get_what_was_archived_and_pruned(spark: SparkSession, tmp_path: Path) -> None:
    everything = [one for day in DAYS for one in envelopes(30, day=day, first=100 * (day - DAYS[0]))]
    archive, store = tmp_path / "archive", put(tmp_path / "data" / STORE_FILE, everything)
    load_or_make_key(store.parent)
    compact_into(spark, archive, store, now=20_010 * 86_400)
    reads = ("--archive", str(archive))

    with running_gateway(store.parent, *reads, *METRICS) as gateway:
        wait_until_indexed(gateway)
        assert_answers_all(gateway, everything)
        with running_daemon(
            store.parent, "--feed-socket", "--archive", str(archive), "--retention-days", "2"
        ) as daemon:
            daemon.wait_for_line("pruned envelopes=")
            gateway.wait_for_line("feed connected")
            assert_answers_all(gateway, everything)

    (store.parent / INDEX_FILE).unlink()
    with running_gateway(store.parent, *reads, *METRICS) as gateway:
        wait_until_indexed(gateway)
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
