"""mailserver.store.sqlite.deletion on real files: what a batch deletes, what is counted after it, and the pages."""

import asyncio
import contextlib
import random
import sqlite3
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mailserver.store.interface import Deleted, NewEnvelope
from mailserver.store.retention import BATCH_BYTES, BATCH_ROWS, END_OF_TIME, Surplus
from mailserver.store.sqlite import deletion
from mailserver.store.sqlite.connections import open_writer, pragma
from mailserver.store.sqlite.deletion import delete_batch, give_back_pages
from mailserver.store.sqlite.schema import PAGE_BYTES, STORE_FILE
from mailserver.store.sqlite.worker import ConnectionThread
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
    make_store,
    new_envelope,
    new_envelopes,
    raws,
    rows,
    stored,
)

FIRST_DAY = START // DAY
ALL = Surplus(END_OF_TIME, 10**9)


@contextlib.asynccontextmanager
async def writing(path: Path) -> AsyncIterator[ConnectionThread]:
    worker = await open_writer(path)
    try:
        yield worker
    finally:
        await worker.close()


async def delete(worker: ConnectionThread, surplus: Surplus, archived: Mapping[int, int] | None = None) -> Deleted:
    return await worker.run(lambda connection: delete_batch(connection, surplus, archived, removing=lambda *_: None))


def received_at(*seconds: int, size: int = 40) -> list[NewEnvelope]:
    """Envelopes received at these seconds after START, in this order."""
    return [
        new_envelope(number, created=START + number, size=size)._replace(received=START + second)
        for number, second in enumerate(seconds)
    ]


async def delete_all(
    path: Path, surplus: Surplus = ALL, archived: Mapping[int, int] | None = None
) -> list[tuple[int, int]]:
    """Delete batch after batch; check all that is counted after each. Return what the batches deleted."""
    batches: list[tuple[int, int]] = []
    async with writing(path) as worker:
        while (deleted := await delete(worker, surplus, archived)).envelopes:
            assert_counts_are_right(path)
            batches.append(deleted)
    assert deleted == Deleted(0, 0)
    assert rows(path, "PRAGMA integrity_check") == [("ok",)]
    return batches


def left(path: Path) -> list[int]:
    """When the rest was received, in seconds after START, in order of reception."""
    return [envelope.received - START for envelope in stored(path)]


async def test_oldest_by_reception_go_first(path: Path) -> None:
    make_store(path, received_at(50, 10, 40, 20, 30))

    async with writing(path) as worker:
        assert await delete(worker, Surplus(END_OF_TIME, 2)) == Deleted(2, 80)

    assert left(path) == [50, 40, 30]
    assert_counts_are_right(path)


async def test_age_is_exact_to_the_second(path: Path) -> None:
    make_store(path, received_at(0, 99, 100, 101, DAY))

    await delete_all(path, Surplus(START + 100, 10**9))

    assert left(path) == [100, 101, DAY]


async def test_row_out_of_order_neither_blocks_others_nor_goes_early(path: Path) -> None:
    make_store(path, received_at(10 * DAY, 100, 5000, 200, 3 * DAY, 300, DAY + 5, 400))

    await delete_all(path, Surplus(START + 1000, 10**9))

    assert left(path) == [10 * DAY, 5000, 3 * DAY, DAY + 5]


async def test_days_before_the_last_go_as_a_whole(path: Path) -> None:
    make_store(path, received_at(*range(0, 3 * DAY, DAY // 4)))

    batches = await delete_all(path, Surplus(START + 2 * DAY + DAY // 2, 10**9))

    assert left(path) == [2 * DAY + DAY // 2, 2 * DAY + 3 * DAY // 4]
    assert [envelopes for envelopes, _ in batches] == [4, 4, 2]  # a batch lies within one day


async def test_store_can_be_emptied(path: Path) -> None:
    make_store(path, new_envelopes(1000))

    batches = await delete_all(path)

    assert sum(envelopes for envelopes, _ in batches) == 1000
    for table in ("envelopes", "days", "day_topics", "reception_days"):
        assert rows(path, f"SELECT * FROM {table}") == []


async def test_batch_has_at_most_so_many_rows(path: Path) -> None:
    make_store(path, new_envelopes(2 * BATCH_ROWS + 1))

    batches = await delete_all(path)

    assert [envelopes for envelopes, _ in batches] == [BATCH_ROWS, BATCH_ROWS, 1]


async def test_batch_of_large_envelopes_ends_at_so_many_bytes(path: Path) -> None:
    make_store(path, new_envelopes(7, size=BATCH_BYTES // 3 + 1))

    batches = await delete_all(path)

    assert [envelopes for envelopes, _ in batches] == [3, 3, 1]


async def test_envelope_beyond_the_bytes_of_a_batch_goes_alone(path: Path) -> None:
    make_store(path, new_envelopes(2, size=BATCH_BYTES + 1))

    assert await delete_all(path) == [(1, BATCH_BYTES + 1)] * 2


async def test_topic_stays_as_long_as_an_envelope_of_that_day_has_it(path: Path) -> None:
    envelopes = [
        new_envelope(0, created=START, topic=NEWS),
        new_envelope(1, created=START, topic=SPORT),
        new_envelope(2, created=START + DAY, topic=NEWS),
        new_envelope(3, created=START + 1, topic=NEWS),
    ]
    make_store(path, envelopes)

    async with writing(path) as worker:
        await delete(worker, Surplus(END_OF_TIME, 3))

    assert rows(path, "SELECT day, topic FROM day_topics") == [(FIRST_DAY, NEWS)]
    assert rows(path, "SELECT day FROM days") == [(FIRST_DAY,)]


@pytest.mark.parametrize("between", [1, 999, 1000, 1001, 3000])
async def test_first_row_of_a_day_is_found_beyond_any_number_of_another(path: Path, between: int) -> None:
    make_store(path, received_at(0, *[DAY] * between, 1, 2))

    async with writing(path) as worker:
        await delete(worker, Surplus(END_OF_TIME, 1))

    days = rows(path, "SELECT first_seq, last_seq FROM reception_days WHERE day = ?", FIRST_DAY)
    assert days == [(between + 2, between + 3)]
    assert_counts_are_right(path)


async def test_last_row_that_is_deleted_is_still_the_last_of_its_day(path: Path) -> None:
    make_store(path, received_at(50, 60, 10))

    async with writing(path) as worker:
        await delete(worker, Surplus(END_OF_TIME, 1))

    assert rows(path, "SELECT first_seq, last_seq FROM reception_days") == [(1, 3)]


# What is archived


async def test_day_that_is_not_archived_stays(path: Path) -> None:
    make_store(path, received_at(0, DAY, 2 * DAY))

    await delete_all(path, archived={FIRST_DAY: 1, FIRST_DAY + 2: 3})

    assert left(path) == [DAY]


async def test_row_that_came_after_the_run_stays(path: Path) -> None:
    make_store(path, received_at(0, 10, 20, 5))

    await delete_all(path, archived={FIRST_DAY: 2})

    assert left(path) == [20, 5]


async def test_record_of_a_day_says_nothing_of_another(path: Path) -> None:
    make_store(path, received_at(0, 1, DAY, DAY + 1))

    await delete_all(path, archived={FIRST_DAY + 1: 4})

    assert left(path) == [0, 1]


@pytest.mark.parametrize("archived", [{}, {FIRST_DAY: 0}, {FIRST_DAY - 1: 100}, {FIRST_DAY + 1: 100}])
async def test_nothing_archived_is_nothing_deleted(path: Path, archived: dict[int, int]) -> None:
    make_store(path, received_at(0, 1))

    assert await delete_all(path, archived=archived) == []

    assert left(path) == [0, 1]


@given(
    st.lists(st.tuples(st.integers(0, 3 * DAY), st.integers(0, 3), st.sampled_from([NEWS, SPORT])), max_size=30),
    st.integers(0, 3 * DAY),
    st.none() | st.dictionaries(st.integers(FIRST_DAY, FIRST_DAY + 3), st.integers(0, 31)),
    st.integers(1, 5),
)
@settings(max_examples=15, phases=UNSHRUNK)
async def test_what_is_left_is_what_a_plain_model_leaves(
    tmp_path_factory: pytest.TempPathFactory,
    whole: Sequence[tuple[int, int, bytes]],
    before: int,
    archived: dict[int, int] | None,
    at_once: int,
) -> None:
    path = tmp_path_factory.mktemp("model") / STORE_FILE
    envelopes = [
        new_envelope(
            number, created=START + day * DAY, topic=NEWS if topic == NEWS else SPORT, size=9 + number
        )._replace(received=START + second)
        for number, (second, day, topic) in enumerate(whole)
    ]
    make_store(path, envelopes)

    await delete_all(path, Surplus(START + before, at_once), archived)

    kept = [
        envelope
        for seq, envelope in enumerate(envelopes, start=1)
        if envelope.received >= START + before
        or (archived is not None and seq > archived.get(envelope.received // DAY, 0))
    ]
    assert raws(stored(path)) == raws(kept)


# Crashes and failures


async def test_batch_that_is_killed_is_all_there_or_not_at_all(path: Path, tmp_path: Path) -> None:
    make_store(path, received_at(*range(20)))
    copies: list[Path] = []

    def copy(_: str) -> None:
        copies.append(copy_as_on_disk(path, tmp_path / f"killed at {len(copies)}"))

    async with writing(path) as worker:
        await worker.run(lambda connection: connection.set_trace_callback(copy))
        await delete(worker, Surplus(END_OF_TIME, 5))
        await worker.run(lambda connection: connection.set_trace_callback(None))

    for copied in copies:
        assert len(stored(copied)) in (15, 20)
        assert_counts_are_right(copied)
    assert len(copies) > 5


async def test_batch_that_fails_deletes_nothing_and_the_next_goes_on(path: Path) -> None:
    make_store(path, received_at(*range(20)))
    change(path, "CREATE TRIGGER fail BEFORE UPDATE ON days BEGIN SELECT RAISE(ABORT, 'no'); END")

    async with writing(path) as worker:
        with pytest.raises(sqlite3.IntegrityError, match="no"):
            await delete(worker, ALL)
        assert not await worker.run(lambda connection: connection.in_transaction)
        assert_counts_are_right(path)
        assert len(stored(path)) == 20

        await worker.run(lambda connection: connection.execute("DROP TRIGGER fail"))
        assert await delete(worker, Surplus(END_OF_TIME, 5)) == Deleted(5, 200)

    assert_counts_are_right(path)


async def test_no_statement_looks_at_the_whole_table(path: Path) -> None:
    envelopes = [new_envelope(n, created=START + n // 10, topic=random.choice([NEWS, SPORT])) for n in range(5000)]
    make_store(path, envelopes)
    steps = [0]

    def count() -> int:
        steps[0] += 1
        return 0

    async with writing(path) as worker:
        await delete(worker, Surplus(END_OF_TIME, 1))
        await worker.run(lambda connection: connection.set_progress_handler(count, 1))
        await delete(worker, Surplus(END_OF_TIME, 10))
        ten = steps[0]
        await worker.run(lambda connection: connection.set_progress_handler(None, 1))

    assert 0 < ten < 2500


# Pages


def pages(path: Path) -> int:
    return path.stat().st_size // PAGE_BYTES


async def test_pages_beyond_the_reserve_are_given_back_a_few_at_once(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deletion, "RESERVE_PAGES", 10)
    make_store(path, new_envelopes(4000, size=1000))
    change(path, "PRAGMA wal_checkpoint(TRUNCATE)")
    before = pages(path)
    await delete_all(path, Surplus(END_OF_TIME, 10**9))

    given_back = []
    async with writing(path) as worker:
        free = await worker.run(lambda connection: pragma(connection, "freelist_count"))
        while count := await worker.run(give_back_pages):
            given_back.append(count)
        await worker.run(lambda connection: connection.execute("PRAGMA wal_checkpoint(TRUNCATE)"))

    assert sum(given_back) == free - 10
    assert max(given_back) == deletion.VACUUM_PAGES
    assert pages(path) == before - sum(given_back)
    assert rows(path, "PRAGMA integrity_check") == [("ok",)]


async def test_reserve_is_kept_for_what_comes_next(path: Path) -> None:
    make_store(path, new_envelopes(4000, size=1000))
    await delete_all(path)

    async with writing(path) as worker:
        assert await worker.run(give_back_pages) == 0


async def test_file_that_cannot_shrink_is_left_as_it_is(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deletion, "RESERVE_PAGES", 0)
    make_store(path, new_envelopes(1000, size=1000))
    change(path, "PRAGMA auto_vacuum = NONE", "VACUUM")
    await delete_all(path)

    async with writing(path) as worker:
        assert await asyncio.wait_for(worker.run(give_back_pages), 15) == 0
