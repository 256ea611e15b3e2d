"""What a real Prometheus makes of a daemon, its gateway and `community serve`: panels have answers, alerts metrics."""

import asyncio
import contextlib
import subprocess
import time
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families

from mailserver.client.id_client import IdClient
from mailserver.client.mail_client import connect
from mailserver.codec import rlp
from mailserver.codec.keys import Enode
from mailserver.communities.links import AnnouncedLink
from mailserver.communities.ranges import PERIOD_S
from mailserver.community.folder import COMMUNITIES_FOLDER
from mailserver.community.member.history import open_history
from mailserver.community.member.joined import Joined, membership
from mailserver.community.owner.sent import SentPieces
from mailserver.handoff.archived import Archived
from mailserver.handoff.last_run import Compaction
from mailserver.ids.envelopes import NS, content_topic_of
from mailserver.ids.muid import DEFAULT_NETWORK_TOPIC, Muid
from mailserver.ids.waku_message import WakuMessage
from mailserver.mail.request import MailRequest, RequestId
from mailserver.metrics.labels import ArchiveRead
from mailserver.store.sqlite.handoff import write_archived, write_compaction
from mailserver.store.sqlite.schema import STORE_FILE
from mailserver.store.sqlite.store import open_store
from mailserver.units import SECONDS_PER_DAY
from mailserver.waku.bloom import FULL_BLOOM, Interest
from mailserver.waku.envelope import Envelope, Topic, encode_envelope, encode_envelopes
from mailserver.waku.packets import PacketCode
from mailserver.waku2.codes import LightPushStatus
from mailserver.waku2.store_query import StoreQueryRequest
from mailserver.wakuid.questions import Query as IdQuery
from tests.archive.reading.parquet import envelope, write_period
from tests.community.member.test_following import COMMUNITY
from tests.community.member.worlds import WEEK_S, import_week, message
from tests.community.owner.samples import FIRST_WEEK, OTHER_OWNER, garden, made_in, week
from tests.community.owner.serving import make_week
from tests.gateway.clients import LightClient, connected
from tests.integration.communities import running_communities
from tests.integration.daemons import Daemon, running_daemon
from tests.integration.gateways import GatewayProcess, running_gateway
from tests.integration.peers import Peers
from tests.mailservers import NEWS, PASSWORD_KEY, SPORT, fill, make_envelope
from tests.monitoring.prometheus import (
    Prometheus,
    Query,
    metrics_in,
    program,
    queries,
    running_prometheus,
)
from tests.raw_peer import RawPeer
from tests.waiting import until

pytestmark = pytest.mark.integration

NOT_EVERYWHERE = {
    "mailserver_memory_limit_bytes",
    "mailserver_database_connections",
    "mailserver_database_connections_max",
    "mailserver_database_lock_waits",
    "mailserver_database_notification_queue_ratio",
    "mailserver_database_partitions",
    "mailserver_others_waiting_envelopes",
}
"""Only where a control group limits the memory; only of a store in PostgreSQL: `test_database_figures.py`."""

NEWS_IN_V2 = content_topic_of(NEWS)
LARGE_BYTES = 100_000
REQUEST_ID = bytes(32)
SOME_BLOOM = b"\x01" * 32 + bytes(32)
REQUESTS = [
    rlp.encode([REQUEST_ID, b"", b"\xff" * 4, b"", b"", b"", [bytes(NEWS)]]),
    rlp.encode([REQUEST_ID, b"", b"\xff" * 4, b"", b"", SOME_BLOOM, []]),
    rlp.encode([REQUEST_ID, b"", b"\xff" * 4, b"\x01", b"", FULL_BLOOM, []]),
    rlp.encode([REQUEST_ID, b"\x02", b"\x01", b"", b"", FULL_BLOOM, []]),  # its lower bound is above the upper
    rlp.encode([b"not a request"]),
]
"""In the clear: by topic, by bloom filter, for everything; refused, and unreadable."""

ARCHIVED_AT = int(time.time()) - 5 * SECONDS_PER_DAY
"""When those were created that only the archive has, Unix seconds."""

LONG_REQUEST = rlp.encode([REQUEST_ID, b"", b"\xff" * 4, b"", b"", b"", [bytes(SPORT)]])
"""For all large envelopes."""


@dataclass(frozen=True)
class Observed:
    """What Prometheus saw of a daemon, its gateway and its communities, with all kinds of traffic, until `at` (Unix
    seconds)."""

    prometheus: Prometheus
    instance: str
    gateway: str
    communities: str
    at: float
    exposed: list[str]


@pytest.fixture(scope="module")
def observed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Observed]:
    """Made once: each test asks for the same moment."""
    folder = tmp_path_factory.mktemp("observed")
    for name in ("source", "ours", "prometheus"):
        (folder / name).mkdir()
    program("prometheus")
    write_period(folder / "archive", [envelope(number, created=ARCHIVED_AT, topic=SPORT) for number in range(30)])
    asyncio.run(prepare(folder / "source", folder / "ours"))
    keep = ("--retention-days", "0")
    with (
        running_daemon(folder / "source", *keep) as source,
        running_daemon(
            folder / "ours", *keep, "--feed-socket", "--metrics", "127.0.0.1:0", "--trusted-peers", str(source.enode)
        ) as daemon,
        running_gateway(folder / "ours", "--metrics", "127.0.0.1:0", "--archive", str(folder / "archive")) as gateway,
        running_communities(folder / "ours", "--metrics", "127.0.0.1:0") as communities,
        running_prometheus(
            folder / "prometheus",
            instance := metrics_address(daemon),
            of_gateway := metrics_address(gateway),
            of_communities := metrics_address(communities),
        ) as prometheus,
    ):
        daemon.wait_for_line("caught up")
        gateway.wait_for_line("feed connected")
        gateway.wait_for_line("archive is indexed period=")
        communities.wait_for_line("magnet link announced")
        prometheus.wait_for('community_ranges{role="owner", state="distributed"} == 1')
        at, exposed = asyncio.run(make_traffic(daemon, gateway, (instance, of_gateway, of_communities), prometheus))
        yield Observed(prometheus, instance, of_gateway, of_communities, at, exposed)


def metrics_address(daemon: Daemon) -> str:
    """HOST:PORT of a daemon's metrics, by its log."""
    return f"127.0.0.1:{daemon.wait_for_line('serving metrics port=').rpartition('=')[2]}"


def exposed_by(instance: str) -> str:
    """What is there to scrape."""
    with urllib.request.urlopen(f"http://{instance}/metrics") as response:
        text: str = response.read().decode()
    return text


async def prepare(source: Path, ours: Path) -> None:
    """Make two stores: one has what the other has missed, that one has a compaction behind it."""
    now = int(time.time())
    async with open_store(source / STORE_FILE) as store:
        await fill(store, [make_envelope(number, created=now - 60 * number, ttl=10) for number in range(1, 20)])
    path = ours / STORE_FILE
    async with open_store(path) as store:
        # What fills the buffers of a socket many times: who asks for it and goes away does so before its end.
        large = [make_envelope(number, topic=SPORT, data_bytes=LARGE_BYTES) for number in range(100)]
        await fill(store, large)
        identity = await store.identity()
    write_compaction(
        path,
        Compaction(
            started_at=now - 700, finished_at=now - 600, exit_code=0, rows=100, seconds=100.0, succeeded_at=now - 600
        ),
    )
    write_archived(path, Archived(identity, "archive", now - 600, {now // 86400 - 1: 100}))
    await prepare_communities(ours)


async def prepare_communities(ours: Path) -> None:
    """Make a community of ours with last week's history, which somebody has fetched, and join another, of which a week
    was fetched before."""
    ended = int(time.time()) // PERIOD_S - FIRST_WEEK - 1
    folder = made_in(ours / COMMUNITIES_FOLDER, garden(registered=week(ended).lower), OTHER_OWNER)
    make_week(folder, ended)
    sent = SentPieces()
    sent.add({0: 1}, int(time.time()), 1)
    sent.write(folder.sent)
    joined = membership(ours, COMMUNITY)
    joined.write(Joined(COMMUNITY))
    async with open_history(joined.history) as history:
        await import_week(history, 5, {"a": [message(5 * WEEK_S)]})
        await history.note_link(AnnouncedLink(int(time.time() * 1000), "magnet:?a"), int(time.time()))


async def make_traffic(
    daemon: Daemon, gateway: GatewayProcess, instances: Sequence[str], prometheus: Prometheus
) -> tuple[float, list[str]]:
    """Have two rounds of all kinds of traffic, with a look of Prometheus before, between and after them."""
    peers = Peers()
    try:
        sender, reader = await peers.join(daemon, "sender"), await peers.join(daemon, "reader")
        async with connected(int(gateway.tcp.split("/")[4])) as light:
            await light.subscribe(DEFAULT_NETWORK_TOPIC, NEWS_IN_V2)
            await looked_at(instances, prometheus)
            await have_round(daemon, sender, reader, peers)
            await have_round_of_gateway(light)
            await looked_at(instances, prometheus)
            await have_round(daemon, sender, reader, peers)
            await have_round_of_gateway(light)
            exposed = await looked_at(instances, prometheus)
            scraped = await asyncio.to_thread(prometheus.query, "max(timestamp(up))")
            return scraped[0].value, exposed
    finally:
        await peers.close()


COUNTED_LAST = {
    "mailserver_envelopes_stored_total",
    "mailserver_confirmation_delay_seconds_count",
    "gateway_store_query_seconds_count",
    "gateway_push_delay_seconds_count",
}
"""What a round counts: Prometheus has seen the round when it has seen these."""


async def looked_at(instances: Sequence[str], prometheus: Prometheus) -> list[str]:
    """Wait until Prometheus has seen what is now; return that, of each instance."""
    exposed = [await asyncio.to_thread(exposed_by, instance) for instance in instances]
    for family in families_in(exposed):
        for sample in family.samples:
            if sample.name in COUNTED_LAST:
                await asyncio.to_thread(prometheus.wait_for, f"{sample.name} >= {sample.value}")
    return exposed


def families_in(exposed: Sequence[str]) -> list[Metric]:
    """All that was there to scrape."""
    return [family for text in exposed for family in text_string_to_metric_families(text)]


async def have_round_of_gateway(light: LightClient) -> None:
    """Have a light client send, get its own message and those of v1 pushed, and ask for history."""
    before = len(light.pushes)
    message = WakuMessage(b"a message", NEWS_IN_V2, version=0, timestamp=time.time_ns(), meta=b"")
    assert (await light.lightpush(DEFAULT_NETWORK_TOPIC, message)).status_code == LightPushStatus.OK
    await until(lambda: len(light.pushes) > before)
    found = await light.query(StoreQueryRequest("1", True, DEFAULT_NETWORK_TOPIC, (NEWS_IN_V2,)))
    assert found.messages
    begin, end = ARCHIVED_AT * NS, (ARCHIVED_AT + 1) * NS
    archived = await light.query(StoreQueryRequest("2", True, time_start=begin, time_end=end, pagination_limit=100))
    assert len(archived.messages) == 30


async def have_round(daemon: Daemon, sender: RawPeer, reader: RawPeer, peers: Peers) -> None:
    """Have envelopes of all kinds, relayed to a second peer, and requests of all kinds."""
    now = int(time.time())
    good = [live(now, number) for number in range(10)]
    bad = [live(now - 1000, 1), live(now + 1000, 2), live(now, 3, ttl=10**7)]  # of a wrong time, of too little work
    for envelopes in (good, good, bad):
        sender.say(PacketCode.MESSAGES, encode_envelopes([envelope.raw for envelope in envelopes]))
        await sender.hear_confirmation()
    while (await reader.hear_packet()).code != PacketCode.MESSAGES:
        pass
    for request in REQUESTS:
        sender.say(PacketCode.P2P_REQUEST, request)
        await sender.hear_answer()
    hasty = await peers.join(daemon, f"hasty {now}")
    hasty.say(PacketCode.P2P_REQUEST, LONG_REQUEST)
    await hasty.hear_packet()
    await hasty.close()
    await asyncio.to_thread(daemon.wait_for_line, "outcome=lost")
    await ask_for_ids(daemon.enode, now)


async def ask_for_ids(enode: Enode, now: int) -> None:
    """Have a list of the newest ids, and their envelopes."""
    async with connect(enode, "asker") as client:
        ids, found, taken = IdClient(client), list[Muid](), list[Envelope]()
        await ids.open(PASSWORD_KEY, min_pow=client.settings.pow_requirement)
        await ids.list_ids(
            IdQuery(0, "", now - 60, now + 60, interest=Interest(topics=frozenset({NEWS}))), found.extend
        )
        await ids.fetch(found, taken.extend)
        assert len(taken) == len(found) > 0


def live(now: int, number: int, ttl: int = 50) -> Envelope:
    """An envelope of now that is like no other."""
    return encode_envelope(now + ttl, ttl, NEWS, time.time_ns().to_bytes(8, "big") * 30, number)


@pytest.mark.parametrize("query", queries(), ids=lambda query: f"{query.panel}: {query.expression}")
def test_query_of_each_panel_has_an_answer(observed: Observed, query: Query) -> None:
    found = observed.prometheus.query(query.of(observed.instance, observed.gateway, observed.communities), observed.at)

    if metrics_in(query.expression) & NOT_EVERYWHERE and not found:
        assert not any(f"\n{name} " in text for name in NOT_EVERYWHERE for text in observed.exposed)
        return
    assert found
    assert all(sample.value == sample.value for sample in found), "not a number: nothing was observed"


def test_gateway_tells_what_it_reads_of_the_archive(observed: Observed) -> None:
    def value(query: str) -> float:
        (sample,) = observed.prometheus.query(f'{query}{{instance="{observed.gateway}"}}', observed.at)
        return sample.value

    read = observed.prometheus.query(f'gateway_archive_row_groups_total{{instance="{observed.gateway}"}}', observed.at)
    lookups = observed.prometheus.query(
        f'sum(gateway_archive_cache_lookups_total{{instance="{observed.gateway}"}})', observed.at
    )

    assert len(read) == len(ArchiveRead)
    assert all(sample.value > 0 for sample in (*read, *lookups))
    assert value("gateway_archive_read_seconds_total") > 0
    assert value("gateway_archive_cache_bytes") > 0
    assert value("gateway_archive_read_failures_total") == 0
    assert value("gateway_unindexed_archive_periods") == 0


def test_alerts_are_evaluated_and_none_is_raised(observed: Observed) -> None:
    rules = observed.prometheus.alerts()

    assert rules
    assert [rule["lastError"] for rule in rules if rule["health"] != "ok"] == []
    assert [rule["name"] for rule in rules if rule["state"] == "firing"] == []


def test_metrics_of_all_alerts_are_there(observed: Observed) -> None:
    names = {name for rule in observed.prometheus.alerts() for name in metrics_in(rule["query"])}

    types = {family.name: family.type for family in families_in(observed.exposed)}
    series = {f"{name}_bucket" if types.get(name) == "histogram" else name for name in names - NOT_EVERYWHERE}
    assert {name for name in series if not observed.prometheus.query(name, observed.at)} == set()


def test_promtool_has_nothing_to_say_of_the_metrics(observed: Observed) -> None:
    for exposed in observed.exposed:
        checked = subprocess.run(
            [program("promtool"), "check", "metrics"],
            input=exposed,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

        assert (checked.returncode, checked.stdout + checked.stderr) == (0, "")


def series_of(text: str) -> set[tuple[str, tuple[tuple[str, str], ...]]]:
    return {
        (sample.name, tuple(sorted(sample.labels.items())))
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


async def test_no_peer_can_make_a_series(tmp_path: Path) -> None:
    async with open_store(tmp_path / STORE_FILE) as store:
        await fill(store, [make_envelope(1)])  # or its series would begin at some later look
    async with contextlib.AsyncExitStack() as stack:
        daemon = stack.enter_context(running_daemon(tmp_path, "--metrics", "127.0.0.1:0", "--retention-days", "0"))
        instance = metrics_address(daemon)
        await until(lambda: "\nmailserver_store_oldest_timestamp_seconds " in exposed_by(instance))

        async def visit(number: int) -> None:
            """Come under a name of its own, post to a topic of its own, ask for that; and stay."""
            topic = Topic(number.to_bytes(4, "big"))
            client = await stack.enter_async_context(connect(daemon.enode, f'name-{number}"\n/v{number}'))
            now = int(time.time())
            await client.post([encode_envelope(now + 50, 50, topic, bytes(300), number)])
            wanted = MailRequest(RequestId(number.to_bytes(32, "big")), 0, 0, Interest(topics=frozenset({topic})))
            await client.request(wanted, PASSWORD_KEY, lambda found: None)

        await visit(0)
        before = series_of(await asyncio.to_thread(exposed_by, instance))
        for number in range(1, 51):
            await visit(number)
        exposed = await asyncio.to_thread(exposed_by, instance)

        assert '\nmailserver_peers{client="other",direction="in"} 51.0\n' in exposed
        assert series_of(exposed) == before
