"""mailserver.store.sqlite.writer on real files: what is stored, in which groups, and when it is durable."""

import asyncio
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mailserver.store.engine.put_queue import ANSWERED_AT_ONCE, MAX_GROUP_ROWS
from mailserver.store.interface import NewEnvelope
from mailserver.store.sqlite import writer as writer_module
from mailserver.store.sqlite.schema import HASH_PREFIX_BYTES, STORE_FILE
from mailserver.waku.envelope import EnvelopeHash
from tests.properties import settings
from tests.store.samples import (
    DAY,
    NEWS,
    SPORT,
    START,
    UNSHRUNK,
    assert_counts_are_right,
    change,
    copy_as_on_disk,
    new_envelope,
    new_envelopes,
    plain,
    raws,
    rows,
    stored,
)
from tests.store.sqlite.writing import (
    FOREVER,
    connected,
    put_each,
    running,
    work_is_done,
)
from tests.waiting import turns

# What is stored


async def test_envelope_is_stored_as_it_is(path: Path) -> None:
    envelope = NewEnvelope(START + 7, START, SPORT, EnvelopeHash(bytes(range(32))), bytes(range(256)))

    async with running(path) as (writer, *_):
        await writer.put([envelope])

    assert stored(path) == [envelope._replace(hash=EnvelopeHash(envelope.hash[:HASH_PREFIX_BYTES]))]


async def test_sequence_follows_the_order_of_arrival(path: Path) -> None:
    newest_first = new_envelopes(7)[::-1]

    async with running(path) as (writer, *_):
        await writer.put(newest_first[:3])
        await asyncio.gather(*put_each(writer, newest_first[3:]))

    assert raws(stored(path)) == raws(newest_first)
    assert rows(path, "SELECT seq FROM envelopes ORDER BY seq") == [(seq,) for seq in range(1, 8)]


@pytest.mark.parametrize("count", [1, 9, 10, 11, 99, 100, 101, 123])
async def test_any_number_of_envelopes_is_stored_once_and_in_order(path: Path, count: int) -> None:
    envelopes = new_envelopes(count)

    async with running(path) as (writer, *_):
        await writer.put(envelopes)

    assert raws(stored(path)) == raws(envelopes)
    assert_counts_are_right(path)


async def test_nothing_is_stored_at_once(path: Path) -> None:
    async with connected(path) as (writer, _, statements, *_):
        await writer.put([])  # and waits for no one

        assert statements == []


async def test_put_of_more_than_a_group_goes_into_several_transactions(path: Path) -> None:
    envelopes = new_envelopes(2 * MAX_GROUP_ROWS + 1)

    async with running(path) as opened:
        await opened.writer.put(envelopes)
        assert raws(stored(path)) == raws(envelopes)

        assert opened.commits() == 3
    assert_counts_are_right(path)


@given(
    st.lists(
        st.lists(
            st.builds(
                lambda number, day, received, topic: new_envelope(
                    number, created=START + day * DAY, topic=topic, size=9 + number
                )._replace(received=START + received),
                st.integers(0, 12),
                st.integers(0, 2),
                st.integers(0, 2 * DAY),
                st.sampled_from([NEWS, SPORT]),
            ),
            max_size=12,
        ),
        max_size=6,
    )
)
@settings(max_examples=8, phases=UNSHRUNK)
async def test_counts_of_days_and_topics_are_right_whatever_is_put(
    tmp_path_factory: pytest.TempPathFactory, puts: list[list[NewEnvelope]]
) -> None:
    path = tmp_path_factory.mktemp("counts") / STORE_FILE

    async with running(path) as (writer, *_):
        await asyncio.gather(*(writer.put(envelopes) for envelopes in puts[::2]))
        for envelopes in puts[1::2]:
            await writer.put(envelopes)

    distinct = {(envelope.created, envelope.hash) for envelopes in puts for envelope in envelopes}
    assert len(stored(path)) == len(distinct)
    assert_counts_are_right(path)


async def test_sequence_number_is_never_used_twice(path: Path) -> None:
    async with running(path) as (writer, *_):
        await writer.put(new_envelopes(3))
        change(path, "DELETE FROM envelopes WHERE seq = 3")
        await writer.put(new_envelopes(1, first=10))
        assert rows(path, "SELECT seq FROM envelopes") == [(1,), (2,), (4,)]

    change(path, "DELETE FROM envelopes", "DELETE FROM days", "DELETE FROM day_topics", "DELETE FROM reception_days")
    async with running(path) as (writer, *_):
        await writer.put(new_envelopes(2, first=20))

    assert rows(path, "SELECT seq FROM envelopes") == [(5,), (6,)]
    assert_counts_are_right(path)


# Durability


async def test_envelope_can_be_read_by_others_once_put_returns(path: Path) -> None:
    async with running(path) as (writer, *_):
        with plain(path) as reader:
            for envelope in new_envelopes(5):
                await writer.put([envelope])

                newest = reader.execute("SELECT raw FROM envelopes ORDER BY seq DESC LIMIT 1").fetchall()
                assert newest == [(envelope.raw,)]


async def test_envelope_is_on_disk_once_put_returns(path: Path, tmp_path: Path) -> None:
    envelopes = new_envelopes(5)

    async with running(path) as (writer, *_):
        for number, envelope in enumerate(envelopes):
            await writer.put([envelope])

            killed = copy_as_on_disk(path, tmp_path / f"killed after {number}")
            assert raws(stored(killed)) == raws(envelopes[: number + 1])
            assert_counts_are_right(killed)


async def test_transaction_that_is_killed_leaves_all_of_it_or_nothing(path: Path, tmp_path: Path) -> None:
    first, second = new_envelopes(5), new_envelopes(120, first=3, size=2000)
    copies: list[Path] = []

    def copy(_: str) -> None:
        copies.append(copy_as_on_disk(path, tmp_path / f"killed at {len(copies)}"))

    async with running(path) as (writer, worker, *_):
        await writer.put(first)
        await worker.run(lambda connection: connection.set_trace_callback(copy))
        await writer.put(second)
        await worker.run(lambda connection: connection.set_trace_callback(None))

    assert len(copies) > 5
    for copied in copies:
        assert raws(stored(copied)) == raws(first)
        assert_counts_are_right(copied)
        assert rows(copied, "PRAGMA integrity_check") == [("ok",)]
    assert len(stored(path)) == 123


async def test_put_does_not_return_before_its_transaction_is_committed(path: Path) -> None:
    async with running(path) as opened:
        for number in range(3):
            await opened.writer.put([new_envelope(number)])

            assert opened.statements[-1] == "COMMIT"
            assert opened.commits() == number + 1


# Groups


async def test_what_arrives_together_is_committed_together(path: Path) -> None:
    async with running(path) as opened:
        await asyncio.gather(*put_each(opened.writer, new_envelopes(200)))

        assert opened.commits() == 1
    assert len(stored(path)) == 200


async def test_no_transaction_holds_more_than_a_group(path: Path) -> None:
    part = MAX_GROUP_ROWS // 2 - 1

    async with running(path) as opened:
        puts = [opened.writer.put(new_envelopes(part, first=number * part)) for number in range(5)]
        await asyncio.gather(*puts)

        assert opened.commits() == 3  # two parts fit, three do not
    assert len(stored(path)) == 5 * part


async def test_group_is_filled_to_the_last_row(path: Path) -> None:
    half = MAX_GROUP_ROWS // 2

    async with running(path) as opened:
        await asyncio.gather(*(opened.writer.put(new_envelopes(half, first=number * half)) for number in range(4)))

        assert opened.commits() == 2


async def test_lone_put_waits_for_nothing(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer_module, "GROUP_INTERVAL_S", FOREVER)

    async with running(path) as (writer, *_):
        await turns()
        await writer.put([new_envelope(1)])

        assert len(stored(path)) == 1


async def test_second_put_waits_until_the_interval_is_over(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer_module, "GROUP_INTERVAL_S", FOREVER)

    async with running(path) as opened:
        await opened.writer.put([new_envelope(1)])
        second = asyncio.create_task(opened.writer.put([new_envelope(2)]))
        await turns()
        await work_is_done(opened.worker)
        assert not second.done()
        assert opened.commits() == 1
        third = asyncio.create_task(opened.writer.put([new_envelope(3)]))
        await turns()
    await asyncio.gather(second, third)

    assert opened.commits() == 2  # what had waited together, when the writer was closed
    assert len(stored(path)) == 3


async def test_interval_ends_by_itself(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer_module, "GROUP_INTERVAL_S", 0.05)

    async with running(path) as opened:
        await opened.writer.put([new_envelope(1)])
        await opened.writer.put([new_envelope(2)])

        assert opened.commits() == 2


async def test_others_have_their_turn_while_thousands_are_told_that_they_are_stored(path: Path) -> None:
    count = MAX_GROUP_ROWS
    async with running(path) as opened, asyncio.TaskGroup() as tasks:
        puts = [tasks.create_task(opened.writer.put([envelope])) for envelope in new_envelopes(count)]
        done = [0]
        while done[-1] < count:
            await asyncio.sleep(0)
            done.append(sum(put.done() for put in puts))

    told = [after - before for before, after in pairwise(done) if after > before]
    assert max(told) <= ANSWERED_AT_ONCE
    assert len(rows(path, "SELECT seq FROM envelopes")) == count


async def test_full_group_waits_for_no_interval(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer_module, "GROUP_INTERVAL_S", FOREVER)

    async with running(path) as opened:
        await opened.writer.put([new_envelope(0)])
        early = asyncio.create_task(opened.writer.put([new_envelope(1)]))
        await turns()
        await opened.writer.put(new_envelopes(MAX_GROUP_ROWS - 1, first=2))
        await early

        assert opened.commits() == 2
        await opened.writer.put(new_envelopes(MAX_GROUP_ROWS, first=2000))
        assert opened.commits() == 3
        lone = asyncio.create_task(opened.writer.put([new_envelope(5000)]))
        await turns()
        await work_is_done(opened.worker)
        assert opened.commits() == 3  # it waits again
    await lone
