"""mailserver.catchup.comparing: what we lack is found by comparing ids, with mailservers of ours and with liars."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from mailserver.catchup import catchup as catchup_module
from mailserver.catchup import comparing as comparing_module
from mailserver.catchup import page_rules
from mailserver.catchup import source as source_module
from mailserver.catchup.catchup import Catchup
from mailserver.catchup.comparing import CompareTimes, common
from mailserver.catchup.page_rules import Lie, Wrong
from mailserver.catchup.progress import SourceState
from mailserver.catchup.ranges import MissingRange
from mailserver.catchup.source import CatchupSource
from mailserver.client import id_client
from mailserver.codec.keys import Enode
from mailserver.errors import Rejection, RequestRejected
from mailserver.history import id_answers, id_conversation
from mailserver.history.delivery import DeliverySettings
from mailserver.ids.envelopes import envelope_muid
from mailserver.ids.muid import DEFAULT_NETWORK_TOPIC, sync_id
from mailserver.limits.admission import Admission, AdmissionLimits
from mailserver.limits.request_quotas import RequestLimits
from mailserver.metrics.registry import count_of
from mailserver.net.connection import Connection
from mailserver.net.listener import Listener
from mailserver.peers.connected import Peers
from mailserver.peers.served_peer import ServedPeer, Services
from mailserver.reconcile.sides import Needed
from mailserver.store import message_ids
from mailserver.store.engine import comparison as engine
from mailserver.store.engine import message_ids as engine_ids
from mailserver.store.engine.comparison import StoredComparison
from mailserver.store.engine.message_ids import FoundRows, StoredMessageIds
from mailserver.store.message_ids import ComparedScope
from mailserver.store.retention import END_OF_TIME, Surplus
from mailserver.store.sqlite.schema import STORE_FILE
from mailserver.store.sqlite.store import SqliteStore, open_store
from mailserver.waku.acceptance import Requirements
from mailserver.waku.bloom import FULL_INTEREST, Interest, bloom_of
from mailserver.waku.envelope import MAX_U32, Envelope, Topic
from mailserver.wakuid.answers import Terms
from tests.catchup.running import assert_stored, catching_up, hurry, settled, state_of
from tests.catchup.servers import PASSWORD_KEY, Archive, make_envelopes, raws, serving, settings_for, stored_raws
from tests.loops import ON_UVLOOP
from tests.mailservers import NEWS, NO_REQUEST_LIMITS, NOW, SPORT, Clock, fill, make_envelope, stored, wired
from tests.pairs import private_key
from tests.store.samples import EVER, EVERY_BYTE
from tests.waiting import DEADLINE_S, until

pytestmark = pytest.mark.usefixtures("hurried")

KEY = private_key("the source")
SETTLED = make_envelopes(300, first=61, step_s=400)
"""Over a little more than a day, of which the newest is older than a minute."""


@pytest.fixture(autouse=True)
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    hurry(monkeypatch)


class Own:
    """A mailserver of ours that runs as a source."""

    def __init__(self, enode: Enode, store: SqliteStore, services: Services) -> None:
        self.enode = enode
        self.store = store
        self.services = services

    def asked(self, kind: str) -> float:
        """How many questions of a kind it has answered."""
        return count_of(self.services.metrics.id_requests.labels(kind, "delivered"))

    @property
    def pages(self) -> float:
        """How many history requests it has answered."""
        return count_of(self.services.metrics.requests)


@contextlib.asynccontextmanager
async def own(
    path: Path,
    envelopes: Sequence[Envelope],
    *,
    clock: Clock | None = None,
    interest: Interest = FULL_INTEREST,
    requests: RequestLimits = NO_REQUEST_LIMITS,
    network_topic: str = DEFAULT_NETWORK_TOPIC,
) -> AsyncIterator[Own]:
    """Run a mailserver of ours that has these envelopes."""
    async with open_store(path, network_topic) as store:
        await fill(store, envelopes)
        settings = DeliverySettings(PASSWORD_KEY, KEY)
        requirements = Requirements(0.0, interest)
        node, services = wired(
            store, clock or Clock(), settings, Peers(10), requirements=requirements, requests=requests
        )

        async def serve(connection: Connection) -> None:
            await ServedPeer(connection, services, 1).run()

        listener = Listener(
            KEY, "own/1", status=node.status, refuse=lambda _: None, admission=Admission(AdmissionLimits()), serve=serve
        )
        try:
            yield Own(Enode(KEY.public_key, "127.0.0.1", await listener.start("127.0.0.1", 0)), store, services)
        finally:
            listener.stop()
            await asyncio.wait_for(listener.join(), DEADLINE_S)


@pytest.mark.parametrize("held", [0, 7, 299, 300])
async def test_what_is_missing_is_fetched_and_nothing_else(tmp_path: Path, held: int) -> None:
    extra = make_envelopes(5, first=1000, step_s=100)
    async with (
        own(tmp_path / "source.db", SETTLED) as source,
        catching_up(tmp_path, source.enode, held=[*SETTLED[:held], *extra]) as catchup,
    ):
        (progress,) = await settled(catchup)
        pages = source.pages

    assert_stored(tmp_path, [*SETTLED, *extra])
    assert (progress.state, progress.fetched, progress.stored) == (SourceState.DONE, 300 - held, 300 - held)
    assert source.asked("reconcile") > 0
    assert source.asked("fetch_items") == (0 if held == 300 else 1)
    assert pages == 1  # of the last minute, which is not compared


async def test_last_minute_is_asked_for_page_by_page(tmp_path: Path) -> None:
    fresh = make_envelopes(30)
    async with (
        own(tmp_path / "source.db", [*fresh, *SETTLED]) as source,
        catching_up(tmp_path, source.enode, held=fresh[::2]) as catchup,
    ):
        (progress,) = await settled(catchup)

    assert_stored(tmp_path, [*fresh, *SETTLED])
    assert progress.stored == 300 + 15


async def test_what_was_pruned_is_neither_compared_nor_fetched_again(tmp_path: Path) -> None:
    async with own(tmp_path / "source.db", SETTLED) as source, open_store(tmp_path / STORE_FILE) as store:
        oldest = SETTLED[200:]
        await store.put([stored(each, each.created) for each in SETTLED])
        surplus = Surplus(oldest[0].created + 1, EVERY_BYTE)
        while (await store.prune(surplus)).envelopes:
            pass
        catchup = Catchup(store, tmp_path, settings_for(source.enode), Clock())
        catchup._max_days = 30.0  # noqa: SLF001 - as `add_missed` sets it
        running = asyncio.create_task(catchup.run())
        await until(lambda: source.asked("reconcile") > 0)
        await until(lambda: catchup.snapshot()[0].state is SourceState.DONE)
        catchup.stop()
        await asyncio.wait_for(running, DEADLINE_S)
        fetched = source.asked("fetch_items")

    assert fetched == 0
    assert stored_raws(tmp_path / STORE_FILE) == raws(SETTLED[:200])


async def test_trusted_peers_are_compared_with_again_and_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(comparing_module, "COMPARE_INTERVAL_S", 0.02)
    async with own(tmp_path / "source.db", SETTLED) as source, open_store(tmp_path / STORE_FILE) as store:
        catchup = Catchup(store, tmp_path, settings_for(source.enode), Clock())
        await catchup.add_missed(30.0)
        running = asyncio.create_task(catchup.run())
        await until(lambda: catchup.snapshot()[0].stored == 300)

        later = make_envelopes(20, first=5000, step_s=17)
        await fill(source.store, later)
        await until(lambda: catchup.snapshot()[0].stored == 320)

        catchup.stop()
        await asyncio.wait_for(running, DEADLINE_S)

    assert_stored(tmp_path, [*SETTLED, *later])


async def test_without_days_to_go_back_nothing_is_compared(tmp_path: Path) -> None:
    async with own(tmp_path / "source.db", SETTLED) as source, open_store(tmp_path / STORE_FILE) as store:
        catchup = Catchup(store, tmp_path, settings_for(source.enode), Clock())
        await catchup.add_missed(0.0)
        running = asyncio.create_task(catchup.run())
        await asyncio.sleep(5 * catchup_module.SAVE_INTERVAL_S)
        catchup.stop()
        await asyncio.wait_for(running, DEADLINE_S)

    assert source.asked("open") == 0


def test_comparisons_are_an_interval_apart_at_most_and_half_of_one_at_least() -> None:
    times = CompareTimes()
    due = [second for second in range(2000) if times.are_due(float(second))]

    assert due[0] == 0
    gaps = [after - before for before, after in pairwise(due)]
    assert all(150 <= gap <= 301 for gap in gaps)
    assert len(gaps) > 5


BY_TOPICS = [
    (FULL_INTEREST, FULL_INTEREST, {NEWS, SPORT}),
    (Interest(topics=frozenset({NEWS})), FULL_INTEREST, {NEWS}),
    (FULL_INTEREST, Interest(topics=frozenset({SPORT})), {SPORT}),
    (Interest(topics=frozenset({NEWS})), Interest(topics=frozenset({SPORT})), set()),
]


@pytest.mark.parametrize(
    ("ours", "theirs", "both"),
    [
        *BY_TOPICS,
        (Interest(topics=frozenset({NEWS, SPORT})), Interest(bloom=bloom_of([NEWS])), {NEWS}),
        (Interest(bloom=bloom_of([NEWS])), Interest(bloom=bloom_of([NEWS, SPORT])), {NEWS}),
    ],
)
def test_what_two_interests_have_in_common(ours: Interest, theirs: Interest, both: set[Topic]) -> None:
    assert {topic for topic in (NEWS, SPORT) if common(ours, theirs).wants(topic)} == both
    assert {topic for topic in (NEWS, SPORT) if common(theirs, ours).wants(topic)} == both


@pytest.mark.parametrize(("ours", "theirs", "both"), BY_TOPICS)
async def test_topics_that_both_accept_are_compared(
    tmp_path: Path, ours: Interest, theirs: Interest, both: set[Topic]
) -> None:
    everything = [*SETTLED, *make_envelopes(100, first=61, step_s=300, topic=SPORT)]
    async with (
        own(tmp_path / "source.db", everything, interest=theirs) as source,
        catching_up(tmp_path, source.enode, settings=settings_for(interest=ours)) as catchup,
    ):
        await settled(catchup)

    assert_stored(tmp_path, [each for each in everything if each.topic in both])


async def test_range_with_too_much_for_one_comparison_by_topics_is_compared_in_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "MAX_IDS_OF_TOPICS", 40)
    async with (
        own(tmp_path / "source.db", SETTLED) as source,
        catching_up(
            tmp_path,
            source.enode,
            settings=settings_for(interest=Interest(topics=frozenset({NEWS}))),
            held=SETTLED[::2],
        ) as catchup,
    ):
        (progress,) = await settled(catchup)

    assert_stored(tmp_path, SETTLED)
    assert progress.fetched == 150
    assert source.asked("reconcile") >= 8
    assert source.pages == 1


async def test_what_we_refuse_is_remembered_and_not_fetched_each_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(comparing_module, "COMPARE_INTERVAL_S", 0.02)
    settings = settings_for(min_pow=1e6)
    async with own(tmp_path / "source.db", SETTLED[:20]) as source, open_store(tmp_path / STORE_FILE) as store:
        catchup = Catchup(store, tmp_path, replace(settings, sources=(source.enode,)), Clock())
        await catchup.add_missed(30.0)
        running = asyncio.create_task(catchup.run())
        await until(lambda: source.asked("reconcile") >= 6)
        (progress,) = catchup.snapshot()
        catchup.stop()
        await asyncio.wait_for(running, DEADLINE_S)

    assert source.asked("fetch_items") == 1
    assert progress.wrong == {Wrong.LOW_POW: 20}
    assert stored_raws(tmp_path / STORE_FILE) == []


async def test_long_envelopes_are_fetched_in_parts_that_fit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page_rules, "MAX_PAGE_BYTES", 60_000)
    long = [make_envelope(number, created=NOW - 100 - number, data_bytes=5000) for number in range(50)]
    async with (
        own(tmp_path / "source.db", long) as source,
        catching_up(tmp_path, source.enode) as catchup,
    ):
        (progress,) = await settled(catchup)

    assert_stored(tmp_path, long)
    assert progress.state is SourceState.DONE


async def test_source_of_another_network_topic_is_asked_page_by_page(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "mailserver.catchup")
    async with (
        own(tmp_path / "source.db", SETTLED, network_topic="/waku/2/rs/1/5") as source,
        catching_up(tmp_path, source.enode) as catchup,
    ):
        await settled(catchup)

    assert_stored(tmp_path, SETTLED)
    assert source.asked("reconcile") == 0
    assert "its ids belong to '/waku/2/rs/1/5', ours to '/waku/2/rs/1/4'" in caplog.text


@ON_UVLOOP
async def test_range_with_too_many_other_ids_is_compared_in_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is wanted may lie far apart amidst ids of other topics: each of these is looked at."""
    monkeypatch.setattr(engine_ids, "WALKED_ROWS", 20)
    monkeypatch.setattr(id_answers, "FETCH_WORK", 3000)
    others = [make_envelope(1000 + each, created=NOW - 100 - 100 * each, topic=SPORT) for each in range(1000)]
    async with (
        own(tmp_path / "source.db", [*SETTLED, *others]) as source,
        catching_up(
            tmp_path,
            source.enode,
            settings=settings_for(interest=Interest(topics=frozenset({NEWS}))),
            held=SETTLED[:40],
        ) as catchup,
    ):
        (progress,) = await settled(catchup)

    assert_stored(tmp_path, SETTLED)
    assert count_of(source.services.metrics.requests_rejected[Rejection.TOO_WIDE]) > 1
    assert progress.state is SourceState.DONE


@ON_UVLOOP
async def test_answer_that_takes_too_long_is_asked_for_in_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A source that sends something now and then is not silent, and could keep us for days."""
    monkeypatch.setattr(comparing_module, "PAGE_TIMEOUT_S", 0.2)
    find_items, asked = StoredMessageIds.find_items, list[int]()

    async def slow(ids: StoredMessageIds, groups: Sequence[Needed], **more: Any) -> FoundRows:
        asked.append(sum(len(group.ids) for group in groups))
        if asked[-1] > 50:
            await asyncio.sleep(DEADLINE_S)
        return await find_items(ids, groups, **more)

    monkeypatch.setattr(StoredMessageIds, "find_items", slow)
    async with own(tmp_path / "source.db", SETTLED) as source, catching_up(tmp_path, source.enode) as catchup:
        (progress,) = await settled(catchup)

    assert_stored(tmp_path, SETTLED)
    assert asked[:2] == [300, 125]
    assert max(asked[2:]) == 15
    assert progress.state is SourceState.DONE


async def test_source_without_the_capability_is_asked_page_by_page(tmp_path: Path) -> None:
    async with serving(Archive(SETTLED)) as server, catching_up(tmp_path, server.enode) as catchup:
        await settled(catchup)

    assert_stored(tmp_path, SETTLED)
    assert server.requests


async def test_source_that_sends_us_away_is_asked_again_when_it_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(source_module, "MAX_COME_BACK_S", 0.01)
    limits = RequestLimits(requests_per_minute=120)
    async with own(tmp_path / "source.db", SETTLED, requests=limits) as source:
        requester = source.services.requests
        assert requester is not None
        async with catching_up(tmp_path, source.enode) as catchup:
            await settled(catchup)

    assert_stored(tmp_path, SETTLED)


async def lied(folder: Path, source: Own) -> tuple[SourceState, str]:
    async with catching_up(folder, source.enode) as catchup:
        progress = await state_of(catchup, SourceState.SET_ASIDE)
    return progress.state, progress.problem


@pytest.mark.parametrize(
    "lie",
    [
        {"since": 0},
        {"since": MAX_U32},
        {"now": 0},
        {"now": MAX_U32},
        {"max_message_bytes": 0},
        {"max_message_bytes": MAX_U32},
        {"network_topic": "/waku/2/rs/1/5"},
    ],
)
async def test_lies_about_its_terms_cost_a_source_the_comparison_and_us_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lie: dict[str, Any]
) -> None:
    monkeypatch.setattr(id_conversation, "Terms", lambda *said, **also: replace(Terms(*said, **also), **lie))
    async with (
        own(tmp_path / "source.db", SETTLED) as source,
        catching_up(tmp_path, source.enode, held=SETTLED[::2]) as catchup,
    ):
        (progress,) = await settled(catchup)

    assert_stored(tmp_path, SETTLED)
    assert (progress.state, progress.stored) == (SourceState.DONE, 150)


async def test_source_whose_messages_are_none_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def nonsense(*_: object) -> bytes:
        return b"\x61\xff\xff\xff"

    async with own(tmp_path / "source.db", SETTLED) as source:
        monkeypatch.setattr(StoredComparison, "respond", nonsense)
        assert await lied(tmp_path, source) == (SourceState.SET_ASIDE, Lie.NO_COMPARISON.value)


async def test_source_that_never_ends_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def differing(*_: object) -> bytes:
        return b"\x61\x00\x00\x01" + bytes(16)

    monkeypatch.setattr(comparing_module, "MAX_ROUNDS", 20)
    async with own(tmp_path / "source.db", SETTLED) as source:
        monkeypatch.setattr(StoredComparison, "respond", differing)
        async with catching_up(tmp_path, source.enode, held=SETTLED) as catchup:
            progress = await state_of(catchup, SourceState.SET_ASIDE)

    assert progress.problem == Lie.ENDLESS_COMPARISON.value


async def test_source_that_compares_ever_smaller_parts_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It refuses every range but the shortest, of which a month has millions."""
    asked: list[ComparedScope] = []

    async def refusing(comparison: StoredComparison, _: bytes) -> bytes:
        asked.append(comparison.scope)
        if comparison.scope.lower < comparison.scope.upper:
            raise message_ids.TooManyIds(0)
        return b"\x61"

    monkeypatch.setattr(comparing_module, "MAX_ROUNDS", 60)
    async with own(tmp_path / "source.db", SETTLED) as source:
        monkeypatch.setattr(StoredComparison, "respond", refusing)
        async with catching_up(tmp_path, source.enode, held=SETTLED) as catchup:
            progress = await state_of(catchup, SourceState.SET_ASIDE)

    assert progress.problem == Lie.ENDLESS_COMPARISON.value
    assert len(asked) == 60


async def test_ids_that_nobody_has_cost_no_more_than_a_question(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def naming(*_: object) -> bytes:
        return b"\x61\x00\x00\x02\x03" + b"".join(bytes([number]) * 32 for number in (1, 2, 3))

    async with own(tmp_path / "source.db", []) as source:
        monkeypatch.setattr(StoredComparison, "respond", naming)
        async with catching_up(tmp_path, source.enode) as catchup:
            (progress,) = await settled(catchup)

    assert progress.state is SourceState.DONE
    assert (progress.fetched, source.asked("fetch_items")) == (0, 1)


@pytest.mark.parametrize(("for_s", "most", "is_again"), [(3600.0, 3, False), (0.0, 3, True), (3600.0, 2, True)])
async def test_ids_that_were_named_and_not_given_are_counted_and_not_asked_for_again_for_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, for_s: float, most: int, is_again: bool
) -> None:
    monkeypatch.setattr(comparing_module, "COMPARE_INTERVAL_S", 0.02)
    monkeypatch.setattr(comparing_module, "UNDELIVERED_S", for_s)
    monkeypatch.setattr(comparing_module, "MAX_UNDELIVERED", most)

    async def naming(*_: object) -> bytes:
        return b"\x61\x00\x00\x02\x03" + b"".join(bytes([number]) * 32 for number in (1, 2, 3))

    monkeypatch.setattr(StoredComparison, "respond", naming)
    async with (
        own(tmp_path / "source.db", []) as source,
        catching_up(tmp_path, source.enode, wanted=None) as catchup,
    ):
        await catchup.add_missed(30.0)
        await until(lambda: source.asked("reconcile") >= 6)
        (progress,) = catchup.snapshot()
        fetches = source.asked("fetch_items")

    assert fetches > 1 if is_again else fetches == 1
    assert progress.wrong[Wrong.NOT_GIVEN] >= 3
    assert progress.state is not SourceState.SET_ASIDE


async def test_comparison_may_take_any_number_of_messages_that_bring_something(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(comparing_module, "MAX_ROUNDS", 12)
    monkeypatch.setattr(engine, "MAX_IDS_OF_TOPICS", 20)
    settings = settings_for(interest=Interest(topics=frozenset({NEWS})))
    async with (
        own(tmp_path / "source.db", SETTLED) as source,
        catching_up(tmp_path, source.enode, settings=settings) as catchup,
    ):
        (progress,) = await settled(catchup)
        rounds = source.asked("reconcile")

    assert_stored(tmp_path, SETTLED)
    assert progress.state is SourceState.DONE
    assert rounds > 12


async def test_comparison_that_is_interrupted_goes_on_with_what_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is in more parts than a source compares before it sends us away."""
    monkeypatch.setattr(comparing_module, "COMPARE_INTERVAL_S", 0.02)
    monkeypatch.setattr(source_module, "MAX_COME_BACK_S", 0.0)
    monkeypatch.setattr(engine, "MAX_IDS_OF_TOPICS", 20)
    respond, asked = StoredComparison.respond, list[ComparedScope]()

    async def respond_a_few_times(comparison: StoredComparison, message: bytes) -> bytes:
        asked.append(comparison.scope)
        if len(asked) % 8 == 0:
            raise RequestRejected(Rejection.RATE_LIMITED, retry_after_s=0)
        return await respond(comparison, message)

    def whole_was_compared() -> bool:
        return any(scope.lower <= SETTLED[-1].created for scope in asked)

    monkeypatch.setattr(StoredComparison, "respond", respond_a_few_times)
    async with (
        own(tmp_path / "source.db", SETTLED) as source,
        catching_up(
            tmp_path,
            source.enode,
            settings=settings_for(interest=Interest(topics=frozenset({NEWS}))),
            held=SETTLED,
            wanted=None,
        ) as catchup,
    ):
        await catchup.add_missed(30.0)
        await settled(catchup)
        first = len(asked)
        for _ in range(2):  # and so do those that come every few minutes
            asked.clear()
            await until(whole_was_compared)

    assert first > 8


async def test_store_that_is_not_ready_leaves_it_to_pages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def not_yet(*_: object) -> bytes:
        raise message_ids.NotIndexedYet(5)

    async def not_now(*_: object) -> bytes:
        raise message_ids.StoreBusy("too many others compare")

    async with own(tmp_path / "source.db", SETTLED) as source:
        for side, fail in (("begin", not_yet), ("respond", not_yet), ("begin", not_now)):
            with monkeypatch.context() as patched:
                patched.setattr(StoredComparison, side, fail)
                folder = tmp_path / f"{side} {fail.__name__}"
                folder.mkdir()
                async with catching_up(folder, source.enode) as catchup:
                    await settled(catchup)
            assert_stored(folder, SETTLED)


@ON_UVLOOP
async def test_kill_amid_a_comparison_loses_nothing_that_was_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(comparing_module, "MAX_FETCHED_IDS", 40)
    many = make_envelopes(400, first=61, step_s=60)
    async with own(tmp_path / "source.db", many) as source:
        async with catching_up(tmp_path, source.enode) as catchup:
            await until(lambda: catchup.snapshot()[0].stored >= 80)
        kept = len(stored_raws(tmp_path / STORE_FILE))
        async with catching_up(tmp_path, source.enode, wanted=None) as catchup:
            (progress,) = await settled(catchup)

    assert kept >= 80
    assert progress.stored == 400 - kept
    assert_stored(tmp_path, many)


async def test_everything_is_pruned_at_the_source_meanwhile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(comparing_module, "MAX_FETCHED_IDS", 40)
    async with own(tmp_path / "source.db", SETTLED) as source, catching_up(tmp_path, source.enode) as catchup:
        await until(lambda: catchup.snapshot()[0].stored >= 40)
        while (await source.store.prune(Surplus(END_OF_TIME, EVERY_BYTE))).envelopes:
            pass
        (progress,) = await settled(catchup)

    assert progress.state is SourceState.DONE
    assert progress.stored == len(stored_raws(tmp_path / STORE_FILE)) <= 300


async def test_envelope_that_was_not_asked_for_is_a_lie(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with own(tmp_path / "source.db", SETTLED) as source:
        find_items = StoredMessageIds.find_items

        async def find_another(ids: StoredMessageIds, groups: Sequence[Needed], **more: Any) -> FoundRows:
            others = [sync_id(envelope_muid(DEFAULT_NETWORK_TOPIC, SETTLED[0]))]
            assert groups
            return await find_items(ids, [Needed(*EVER, others)], **more)

        monkeypatch.setattr(StoredMessageIds, "find_items", find_another)
        async with catching_up(tmp_path, source.enode, held=SETTLED[:1]) as catchup:
            progress = await state_of(catchup, SourceState.SET_ASIDE)

    assert progress.problem == Lie.WRONG_ENVELOPES.value


async def test_envelopes_that_never_fit_are_a_lie(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page_rules, "MAX_PAGE_BYTES", 10)
    async with own(tmp_path / "source.db", SETTLED) as source, catching_up(tmp_path, source.enode) as catchup:
        progress = await state_of(catchup, SourceState.SET_ASIDE)

    assert progress.problem == Lie.ENDLESS_PAGE.value


ON_NEWS = settings_for(interest=Interest(topics=frozenset({NEWS})))


async def test_second_with_too_much_to_compare_is_passed_over_and_what_is_older_is_compared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "mailserver.catchup")
    monkeypatch.setattr(engine, "MAX_IDS_OF_TOPICS", 3)
    monkeypatch.setattr(comparing_module, "COMPARE_INTERVAL_S", 0.02)
    crowded = [make_envelope(number, created=NOW - 500) for number in range(10)]
    older = [make_envelope(100 + number, created=NOW - 900 - 100 * number) for number in range(3)]
    async with (
        own(tmp_path / "source.db", crowded) as source,
        catching_up(tmp_path, source.enode, settings=ON_NEWS, wanted=None) as catchup,
    ):
        await catchup.add_missed(30.0)
        await until(lambda: catchup.snapshot()[0].stored == len(crowded))  # page by page
        await fill(source.store, older)
        await until(lambda: catchup.snapshot()[0].stored == len(crowded) + len(older))

    assert_stored(tmp_path, [*crowded, *older])
    assert f"count=1 newest={NOW - 500} oldest={NOW - 500}" in caplog.text


async def test_what_is_newer_than_what_is_owed_is_still_compared_after_an_interruption(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(comparing_module, "COMPARE_INTERVAL_S", 0.02)
    monkeypatch.setattr(source_module, "MAX_COME_BACK_S", 0.0)
    owed, respond = MissingRange(NOW - 5000, NOW - 4000), StoredComparison.respond
    wide, after_owed = list[ComparedScope](), list[ComparedScope]()

    async def refusing_what_is_wide(comparison: StoredComparison, message: bytes) -> bytes:
        is_owed = comparison.scope.lower == owed.lower
        (wide if not is_owed and not after_owed else after_owed).append(comparison.scope)
        if is_owed:
            return await respond(comparison, message)
        raise RequestRejected(Rejection.RATE_LIMITED, retry_after_s=0)

    async with (
        own(tmp_path / "source.db", SETTLED) as source,
        catching_up(tmp_path, source.enode, held=SETTLED, wanted=None) as catchup,
    ):
        await catchup.add_missed(30.0)
        await until(lambda: source.asked("reconcile") >= 1)
        monkeypatch.setattr(StoredComparison, "respond", refusing_what_is_wide)
        await until(lambda: len(wide) >= 1)
        await catchup.add(owed.lower, owed.upper)
        await until(lambda: len(after_owed) >= 4)

    assert {scope.upper for scope in after_owed[1:]} == {scope.upper for scope in wide} != {owed.upper}


async def test_more_seconds_with_too_much_than_are_passed_over_are_asked_page_by_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "mailserver.catchup")
    monkeypatch.setattr(engine, "MAX_IDS_OF_TOPICS", 3)
    monkeypatch.setattr(comparing_module, "MAX_PASSED_OVER", 1)
    many = [make_envelope(number, created=NOW - 500 - number // 10) for number in range(20)]
    async with (
        own(tmp_path / "source.db", many) as source,
        catching_up(tmp_path, source.enode, settings=ON_NEWS) as ours,
    ):
        await settled(ours)

    assert_stored(tmp_path, many)
    assert "source is asked page by page" in caplog.text


async def test_only_the_last_of_what_was_refused_is_remembered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(comparing_module, "COMPARE_INTERVAL_S", 0.02)
    monkeypatch.setattr(comparing_module, "MAX_REFUSED", 5)
    settings = settings_for(min_pow=1e6)
    async with own(tmp_path / "source.db", SETTLED[:20]) as source, open_store(tmp_path / STORE_FILE) as store:
        catchup = Catchup(store, tmp_path, replace(settings, sources=(source.enode,)), Clock())
        await catchup.add_missed(30.0)
        running = asyncio.create_task(catchup.run())
        await until(lambda: source.asked("fetch_items") >= 3)
        (progress,) = catchup.snapshot()
        catchup.stop()
        await asyncio.wait_for(running, DEADLINE_S)

    assert progress.fetched >= 20 + 15


async def test_what_other_settings_refused_is_fetched_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(comparing_module, "COMPARE_INTERVAL_S", 0.02)
    settings = settings_for(min_pow=1e6)
    async with (
        own(tmp_path / "source.db", SETTLED[:20]) as source,
        catching_up(tmp_path, source.enode, settings=settings, wanted=None) as catchup,
    ):
        await catchup.add_missed(30.0)
        await settled(catchup)
        assert catchup.snapshot()[0].stored == 0
        settings.acceptance.change(Requirements(0.0), NOW)
        await until(lambda: catchup.snapshot()[0].stored == 20)

    assert_stored(tmp_path, SETTLED[:20])
    assert source.asked("fetch_items") == 2


async def test_source_that_is_asked_too_much_is_left_until_it_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def too_many(*_: object) -> bytes:
        raise RequestRejected(Rejection.RATE_LIMITED, retry_after_s=7)

    async with own(tmp_path / "source.db", SETTLED) as source:
        with monkeypatch.context() as patched:
            patched.setattr(StoredComparison, "respond", too_many)
            async with catching_up(tmp_path, source.enode) as catchup:
                progress = await state_of(catchup, SourceState.WAITING)
                await until(lambda: bool(catchup.snapshot()[0].problem))
                progress = catchup.snapshot()[0]

    assert "come back in 7 s" in progress.problem


@ON_UVLOOP
@pytest.mark.parametrize("is_ours", [False, True])
async def test_source_that_cannot_compare_is_not_dialled_again_and_again_for_that(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_ours: bool
) -> None:
    monkeypatch.setattr(comparing_module, "COMPARE_INTERVAL_S", 0.01)
    asked: list[MissingRange] = []
    compare = CatchupSource.compare

    def compare_then(source: CatchupSource, part: MissingRange) -> None:
        asked.append(part)
        compare(source, part)

    monkeypatch.setattr(CatchupSource, "compare", compare_then)
    visits: Callable[[], float]
    async with contextlib.AsyncExitStack() as stack:
        if is_ours:
            mailserver = own(tmp_path / "source.db", SETTLED, network_topic="/waku/2/rs/1/5")
            source = await stack.enter_async_context(mailserver)
            enode, visits = source.enode, lambda: source.asked("open")
        else:
            server = await stack.enter_async_context(serving(Archive(SETTLED)))
            enode, visits = server.enode, lambda: float(server.visits)
        store = await stack.enter_async_context(open_store(tmp_path / STORE_FILE))
        catchup = Catchup(store, tmp_path, settings_for(enode), Clock())
        await catchup.add_missed(30.0)
        running = asyncio.create_task(catchup.run())
        await until(lambda: catchup.snapshot()[0].state is SourceState.DONE)
        before, times = visits(), len(asked)
        await until(lambda: len(asked) > times + 5)
        after = visits()
        catchup.stop()
        await asyncio.wait_for(running, DEADLINE_S)

    assert after == before == 1


async def test_source_that_is_silent_about_ids_is_asked_page_by_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def hang(*_: object) -> bytes:
        await asyncio.get_running_loop().create_future()
        raise AssertionError

    monkeypatch.setattr(id_client, "ANSWER_TIMEOUT_S", 0.2)
    monkeypatch.setattr(StoredComparison, "respond", hang)
    async with own(tmp_path / "source.db", SETTLED) as source, catching_up(tmp_path, source.enode) as catchup:
        (progress,) = await settled(catchup)

    assert_stored(tmp_path, SETTLED)
    assert progress.state is SourceState.DONE
