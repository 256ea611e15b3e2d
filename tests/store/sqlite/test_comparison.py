"""mailserver.store.engine.comparison on real files: while rows come and go, and where the index is none or damaged."""

import asyncio
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mailserver.ids.muid import DEFAULT_NETWORK_TOPIC, sync_id
from mailserver.reconcile.sides import Differences, Initiator, Responder, run
from mailserver.reconcile.storage import MemoryStorage
from mailserver.reconcile.wire import INFINITY, MAX_MESSAGE_BYTES, MIN_FRAME_BYTES, FrameWriter, Mode, Range
from mailserver.store.engine import comparison, index_state, index_wait, snapshots, stored_ids, work
from mailserver.store.engine.index_state import IndexDamaged
from mailserver.store.engine.snapshots import SnapshotReader
from mailserver.store.interface import NewEnvelope, Payer
from mailserver.store.message_ids import ComparedScope, NotIndexedYet
from mailserver.store.retention import END_OF_TIME, Surplus
from mailserver.store.sqlite import writer
from mailserver.store.sqlite.repair.check import check_store
from mailserver.store.sqlite.schema import STORE_FILE
from mailserver.store.sqlite.store import SqliteStore, open_store
from mailserver.waku.bloom import Interest
from tests.properties import settings
from tests.reconcile.sets import Item, Talk, ids
from tests.store.samples import DAY, EVER, NEWS, SPORT, START, UNSHRUNK, change, make_store, stored
from tests.store.sqlite.ids import assert_all_is_indexed, ids_of, row
from tests.store.sqlite.test_message_ids import muid, nothing_is_indexed
from tests.store.test_comparison import EVERYTHING, OF_NEWS, Twin
from tests.waiting import DEADLINE_S, until

STEP = work.STATEMENT + snapshots.STEP_WORK
"""What a step is charged before it is done."""

NARROW = ComparedScope(START + DAY, START + 2 * DAY)


def some_rows(count: int, *, first: int = 0, span: int = 2 * DAY) -> list[NewEnvelope]:
    """Rows that were created within some days, in no order."""
    return [
        row(number, created=START + number * 7919 % span, topic=NEWS if number % 3 else SPORT)
        for number in range(first, first + count)
    ]


def items_in(path: Path, scope: ComparedScope = EVERYTHING) -> list[Item]:
    """What a scope has of the rows that are there."""
    topics = {each.created: each.topic for each in stored(path)} if scope.interest.topics is not None else {}
    return [
        (created, item_id)
        for created, item_id, _ in ids_of(path, DEFAULT_NETWORK_TOPIC, 2**63 - 1)
        if scope.lower <= created <= scope.upper and (not topics or topics[created] in (scope.interest.topics or ()))
    ]


async def prune(store: SqliteStore, most: int) -> None:
    await store.prune(Surplus(END_OF_TIME, most))


async def compare_all(store: SqliteStore, scope: ComparedScope = EVERYTHING) -> set[bytes]:
    """All that the store has of a scope."""
    held = Talk()
    await store.message_ids.comparison(scope).receive(bytes.fromhex("61 00 00 02 00"), held.learn)
    return held.have


async def differences(store: SqliteStore, others: Sequence[Item]) -> Talk:
    """What the store, which asks, finds out about others."""
    held = Talk()
    comparison = store.message_ids.comparison(EVERYTHING)
    other = Responder(MemoryStorage(others))
    message: bytes | None = await comparison.begin()
    while message is not None:
        message = await comparison.receive(run(other.respond(message)), held.learn)
    return held


actions = st.lists(
    st.one_of(
        st.tuples(st.just("put"), st.integers(0, 60)),
        st.tuples(st.just("prune"), st.integers(1, 80)),
        st.tuples(st.just("compare"), st.sampled_from([EVERYTHING, NARROW, OF_NEWS])),
    ),
    max_size=10,
)


@given(script=actions, sizes=st.sampled_from([(2000, 512, 256), (3, 2, 2)]))
@settings(max_examples=20, phases=UNSHRUNK)
async def test_what_is_compared_is_what_is_there_whatever_was_put_and_pruned(
    tmp_path_factory: pytest.TempPathFactory, script: list[tuple[str, int | ComparedScope]], sizes: tuple[int, int, int]
) -> None:
    path = tmp_path_factory.mktemp("comparison") / STORE_FILE
    first = 0
    with pytest.MonkeyPatch.context() as patch:
        for name, size in zip(("ROWS_AT_ONCE", "PIECE_IDS", "KEPT_PARTS"), sizes, strict=True):
            patch.setattr(stored_ids, name, size)
        async with open_store(path) as store:
            for action, detail in [("put", 60), *script, ("compare", EVERYTHING)]:
                if isinstance(detail, ComparedScope):
                    twin = Twin(store.message_ids.comparison(detail), items_in(path, detail))
                    other = MemoryStorage(items_in(path, detail)[::3])
                    answer = run(Responder(other).respond(await twin.begin()))
                    await twin.receive(answer, Talk())
                    await twin.respond(Initiator(other).begin())
                elif action == "put":
                    await store.put(some_rows(detail, first=first))
                    first += detail
                else:
                    await prune(store, detail)


async def test_set_stays_the_same_while_a_message_is_worked_on(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begun, go_on = threading.Event(), threading.Event()
    pause = SnapshotReader.pause

    def held(self: SnapshotReader) -> None:
        begun.set()
        go_on.wait()
        pause(self)

    async with open_store(path) as store:
        await store.put(some_rows(3000))
        before = ids(items_in(path))
        await compare_all(store)
        monkeypatch.setattr(SnapshotReader, "pause", held)
        comparing = asyncio.create_task(compare_all(store))
        await until(begun.is_set)
        for number in range(4):
            await store.put(some_rows(100, first=5000 + 100 * number))
            await prune(store, 200)
        go_on.set()

        assert await comparing == before
        monkeypatch.undo()
        assert await compare_all(store) == ids(items_in(path)) != before


async def test_cancelled_comparison_frees_its_connection(path: Path) -> None:
    found: list[Differences] = []
    async with open_store(path) as store:
        await store.put(some_rows(6000))
        for _ in range(4):
            comparing = asyncio.create_task(
                store.message_ids.comparison(EVERYTHING).receive(bytes.fromhex("61 00 00 02 00"), found.append)
            )
            await until(lambda: bool(found))
            comparing.cancel()
            await asyncio.wait([comparing])
            assert comparing.cancelled()
            found.clear()

        assert await compare_all(store) == ids(items_in(path))


async def test_whoever_compares_lets_others_read_between_two_steps(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshots, "STEP_WORK", 500)
    monkeypatch.setattr(comparison, "STEP_WORK", 500)
    charges: list[int] = []
    async with open_store(path) as store:
        await store.put(some_rows(3000))
        one = store.message_ids.comparison(EVERYTHING, payer=Payer("one", charge=charges.append))
        comparing = asyncio.create_task(one.receive(bytes.fromhex("61 00 00 02 00"), lambda _: None))
        read = 0
        while not comparing.done():
            await store.oldest_reception()
            read += 1

    assert read > 20
    assert len(charges) > 40


async def test_rows_of_topics_are_put_into_memory_some_at_a_time(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(comparison, "ITEMS_AT_ONCE", 10)
    charges: list[int] = []
    async with open_store(path) as store:
        await store.put(some_rows(100))
        items = items_in(path, OF_NEWS)
        payer = Payer(charge=charges.append)

        await Twin(store.message_ids.comparison(OF_NEWS, payer=payer), items).respond(b"\x61")

    assert charges.count(STEP) == len(items) // 10 + 1


async def test_sides_pause_whatever_the_ids_are_read_from(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(comparison, "ITEMS_AT_ONCE", 10**6)
    charges: list[int] = []
    async with open_store(path) as store:
        await store.put(some_rows(4000))
        one = store.message_ids.comparison(OF_NEWS, payer=Payer(charge=charges.append))

        await one.respond(bytes.fromhex("61 00 00 02 00"))

    assert charges.count(STEP) == 2  # 2048 ids, and the rest


async def test_message_that_takes_too_long_is_ended_and_the_next_ones_do_the_rest(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_store(path) as store:
        await store.put(some_rows(4000))
        items = items_in(path)
        frame = FrameWriter(MAX_MESSAGE_BYTES)
        frame.add([Range((START + 60 * n).to_bytes(8, "big"), Mode.FINGERPRINT, bytes(16)) for n in range(1, 1000)])
        one = store.message_ids.comparison(EVERYTHING)
        whole = await one.respond(frame.message())
        monkeypatch.setattr(comparison, "ANSWER_S", 0.0)

        ended = await one.respond(frame.message())
        held = await differences(store, items[::2])

    assert 100 < len(ended) < len(whole) / 2
    assert (held.have, held.need) == (ids(items[1::2]), set())


# What the index lacks


async def test_what_was_stored_before_is_indexed_first(path: Path) -> None:
    async with open_store(path) as store:
        for number in range(5):
            await store.put(some_rows(30, first=30 * number))

            assert await compare_all(store) == ids(items_in(path))


async def test_store_that_is_indexed_for_the_first_time_says_so(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index_state, "MAX_UNINDEXED_ROWS", 20)
    monkeypatch.setattr(index_state, "INDEX_WAIT_S", 3600.0)  # it says so at once
    envelopes = some_rows(30)
    make_store(path, envelopes)
    async with nothing_is_indexed(path, monkeypatch) as store, asyncio.timeout(DEADLINE_S):
        comparison = store.message_ids.comparison(EVERYTHING)
        differs = b"\x61\x00\x00\x01" + bytes(16)
        for asked in (comparison.begin(), comparison.respond(b"\x61"), comparison.receive(differs, lambda _: None)):
            with pytest.raises(NotIndexedYet, match="30 envelopes"):
                await asked

        assert await compare_all(store, OF_NEWS) == ids(items_in(path, OF_NEWS))  # its rows are read


async def test_index_that_is_given_up_before_it_is_read_is_not_taken_for_whole(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_store(path) as store:
        await store.put(some_rows(30))
        await compare_all(store)
        until_indexed = index_state.IndexState.until_indexed

        async def given_up(*arguments: object) -> int:
            goal = await until_indexed(*arguments)  # type: ignore[arg-type]
            change(path, "UPDATE id_index SET network_topic = '', until_seq = 0")
            return goal

        monkeypatch.setattr(index_state.IndexState, "until_indexed", given_up)
        with pytest.raises(NotIndexedYet):
            await compare_all(store)


async def test_ids_are_those_of_the_network_topic(path: Path) -> None:
    async with open_store(path) as store:
        await store.put(some_rows(30))
        assert await compare_all(store) == ids(items_in(path))

    other = "/waku/2/rs/1/5"
    theirs = {item_id for _, item_id, _ in ids_of(path, other, 2**63 - 1)}
    async with open_store(path, other, reindex=True) as store:
        assert await compare_all(store) == theirs
        news = ComparedScope(*EVER, Interest(topics=frozenset({NEWS})))
        assert await compare_all(store, news) < theirs


# Damage


def break_sums(path: Path, span: int) -> None:
    """Let the first sum of a span be another."""
    change(
        path,
        f"""
        UPDATE id_sums SET sum = zeroblob(32)
        WHERE span = {span} AND bucket = (SELECT min(bucket) FROM id_sums WHERE span = {span})
        """,
    )


@pytest.mark.parametrize("span", [60, 3600, 86_400])
async def test_wrong_sum_is_noticed_where_it_is_looked_into_and_the_store_indexed_anew(path: Path, span: int) -> None:
    async with open_store(path) as store:
        await store.put(some_rows(500))
        await compare_all(store)
        break_sums(path, span)

        assert f"of {span} s is wrong" in str(check_store(path, lambda *_: None).shown)
        assert await compare_all(store, NARROW) == ids(items_in(path, NARROW))  # that is elsewhere
        one, held = store.message_ids.comparison(EVERYTHING), Talk()
        with pytest.raises(IndexDamaged, match="index of message ids is damaged"):
            await one.receive(bytes.fromhex("61 00 00 02 00"), held.learn)

        await one.receive(bytes.fromhex("61 00 00 02 00"), held.learn)
        assert held.have == ids(items_in(path))

    assert_all_is_indexed(path, DEFAULT_NETWORK_TOPIC)


async def test_wrong_sum_of_a_day_ends_the_comparison_that_it_misleads(path: Path) -> None:
    async with open_store(path) as store:
        await store.put(some_rows(500))
        await compare_all(store)
        change(path, "UPDATE id_sums SET sum = zeroblob(32) WHERE span = 86400")
        comparison = store.message_ids.comparison(EVERYTHING)
        theirs = MemoryStorage(items_in(path))
        frame = FrameWriter(MIN_FRAME_BYTES)
        frame.add([Range(INFINITY, Mode.FINGERPRINT, theirs.fingerprint(0, len(theirs)))])

        with pytest.raises(IndexDamaged):  # it looks for what differs
            await comparison.respond(frame.message())


async def test_wrong_sum_below_one_that_is_right_does_not_matter(path: Path) -> None:
    async with open_store(path) as store:
        await store.put(some_rows(500))
        await compare_all(store)
        change(path, "UPDATE id_sums SET sum = zeroblob(32) WHERE span < 86400")
        theirs = MemoryStorage(items_in(path))
        frame = FrameWriter(MIN_FRAME_BYTES)
        frame.add([Range(INFINITY, Mode.FINGERPRINT, theirs.fingerprint(0, len(theirs)))])

        assert await store.message_ids.comparison(EVERYTHING).respond(frame.message()) == b"\x61"


async def test_comparison_waits_for_nothing_that_came_after_its_first_message(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = some_rows(200)
    items = [(each.created, sync_id(muid(each))) for each in rows]
    other = Responder(MemoryStorage(items[50:]))
    held = Talk()
    async with open_store(path) as store:
        await store.put(rows[:100])
        comparing = store.message_ids.comparison(EVERYTHING)
        message: bytes | None = await comparing.begin()
        monkeypatch.setattr(index_wait, "INDEX_DELAY_S", 3600.0)
        monkeypatch.setattr(writer, "INDEX_INTERVAL_S", 3600.0)

        await store.put(rows[100:])
        async with asyncio.timeout(DEADLINE_S):
            while message is not None:
                message = await comparing.receive(run(other.respond(message)), held.learn)

    assert held.have == {item_id for _, item_id in items[:50]}
    assert held.need <= {item_id for _, item_id in items[100:]}
