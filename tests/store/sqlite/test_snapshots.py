"""mailserver.store.engine.snapshots: what is read at one moment, in steps; who waits for it, and for how long."""

import asyncio
import contextlib
import sqlite3
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from mailserver.errors import StoreError
from mailserver.store.engine import snapshots, work
from mailserver.store.engine.snapshots import STEP_WORK, SnapshotReader, Snapshots
from mailserver.store.interface import OURSELVES, Payer
from mailserver.store.message_ids import StoreBusy
from mailserver.store.retention import END_OF_TIME, Surplus
from mailserver.store.sqlite import log_bound
from mailserver.store.sqlite.failures import StoreFailures
from mailserver.store.sqlite.reader_pool import PaidReader, ReaderPool, open_readers
from mailserver.store.sqlite.snapshots import open_snapshots
from mailserver.store.sqlite.store import open_store
from tests.store.samples import EVERY_BYTE, change, make_store, new_envelopes, rows
from tests.waiting import turns, until

COUNT = "SELECT count(*) FROM envelopes"


class Opened:
    """A store that is open for reading at one moment."""

    def __init__(self, readers: ReaderPool, snapshots: Snapshots, failures: StoreFailures) -> None:
        self.readers = readers
        self.snapshots = snapshots
        self.failures = failures

    async def run(
        self,
        work: Callable[[SnapshotReader], object],
        payer: Payer = OURSELVES,
        after_step: Callable[[], None] = lambda: None,
    ) -> object:
        async with self.snapshots.seat(PaidReader(self.readers, payer)) as seat:
            return await seat.run(work, after_step)


@pytest.fixture
def of_three(path: Path) -> Path:
    """A store of three envelopes."""
    make_store(path, new_envelopes(3))
    return path


@contextlib.asynccontextmanager
async def opened(path: Path, count: int = 1) -> AsyncIterator[Opened]:
    failures = StoreFailures(path)
    async with open_readers(path, count, failures) as readers, open_snapshots(path, count, failures) as some:
        yield Opened(readers, some, failures)


def counted(reader: SnapshotReader) -> int:
    return int(reader.read(COUNT)[0])


class Held:
    """Work that goes on when it is told to."""

    def __init__(self) -> None:
        self.begun = threading.Event()
        self.go_on = threading.Event()

    def __call__(self, reader: SnapshotReader) -> tuple[int, int]:
        before = counted(reader)
        self.begun.set()
        self.go_on.wait()
        reader.pause()
        return before, counted(reader)


def endless(reader: SnapshotReader) -> None:
    while True:
        counted(reader)
        reader.pause()


async def test_all_is_of_one_moment_whatever_is_written_meanwhile(path: Path) -> None:
    held = Held()
    async with open_store(path) as store:
        await store.put(new_envelopes(5))
        async with opened(path) as reading:
            running = asyncio.create_task(reading.run(held))
            await until(held.begun.is_set)
            await store.put(new_envelopes(5, first=100))
            assert (await store.prune(Surplus(END_OF_TIME, EVERY_BYTE))).envelopes == 10
            await store.put(new_envelopes(2, first=200))
            held.go_on.set()

            assert await running == (5, 5)
            assert await reading.run(counted) == 2


async def test_others_read_between_two_steps(of_three: Path) -> None:
    order: list[str] = []

    def three_steps(reader: SnapshotReader) -> None:
        for _ in range(2):
            reader.spend(STEP_WORK)
            reader.pause()

    async with opened(of_three) as reading:

        async def read_others() -> None:
            for _ in range(3):
                await reading.readers.run(COUNT, (), payer=Payer("other"))
                order.append("other")

        await asyncio.gather(
            reading.run(three_steps, Payer("one"), after_step=lambda: order.append("step")), read_others()
        )

    assert sorted(order) == ["other"] * 3 + ["step"] * 3
    assert order[:4].count("other") == 2


async def test_step_ends_with_the_statement_that_is_too_much(of_three: Path) -> None:
    steps: list[int] = []
    many = 3 * STEP_WORK // work.QUERY

    def read_on(reader: SnapshotReader) -> str:
        for _ in range(many):
            counted(reader)
        return "done"

    async with opened(of_three) as reading:
        assert await reading.run(read_on, after_step=lambda: steps.append(1)) == "done"

    assert len(steps) in (3, 4)


async def test_work_is_charged_before_each_step_and_corrected_after(of_three: Path) -> None:
    charges: list[int] = []

    def two_steps(reader: SnapshotReader) -> None:
        reader.spend(500)
        reader.pause()
        counted(reader)

    async with opened(of_three) as reading:
        await reading.run(two_steps, Payer("one", charge=charges.append))

    most = work.STATEMENT + STEP_WORK
    assert charges == [most, 500 - STEP_WORK, most, work.QUERY - STEP_WORK]


async def test_whoever_has_read_more_waits_longer(of_three: Path) -> None:
    order: list[str] = []

    def much(reader: SnapshotReader) -> None:
        for _ in range(5):
            reader.spend(STEP_WORK)
            reader.pause()

    async with opened(of_three) as reading:

        async def read(name: str, what: Callable[[SnapshotReader], object], times: int) -> None:
            for _ in range(times):
                await reading.run(what, Payer(name))
                order.append(name)

        await asyncio.gather(
            *(read("crowd", much, 3) for _ in range(4)), read("phone", counted, 5), read("other", much, 4)
        )

    assert order[:10].count("phone") == 5
    assert order[:16].count("other") == 4


# The log


async def test_wal_stays_short_beside_snapshots_that_never_leave_it_alone(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_bound, "MAX_WAL_BYTES", 2_000_000)
    monkeypatch.setattr(log_bound, "WAL_STEP_BYTES", 1_000_000)
    number = 0

    def for_a_while(reader: SnapshotReader) -> None:
        counted(reader)
        began = number
        while number < began + 3:  # as many commits
            reader.pause()

    async with open_store(path) as store:
        await store.put(new_envelopes(1000))
        readers = PaidReader(store.message_ids.readers)

        async def read_over_and_over() -> None:
            while True:
                async with store.message_ids.snapshots.seat(readers) as seat:
                    await seat.run(for_a_while, lambda: None)

        reading = [asyncio.create_task(read_over_and_over()) for _ in range(4)]
        for number in range(1, 60):
            await store.put(new_envelopes(1000, first=1000 * number, size=560))
        for task in reading:
            task.cancel()
        await asyncio.wait(reading)

        assert all(task.cancelled() for task in reading)
        assert path.with_name(f"{path.name}-wal").stat().st_size < 30_000_000  # of nearly 60 MB written


async def test_none_begins_while_way_is_made(of_three: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshots, "WAIT_S", 0.05)
    held = Held()
    async with opened(of_three, 2) as reading:
        reading.snapshots.make_way()  # none is open, so others are in the way
        assert await reading.run(counted) == 3
        running = asyncio.create_task(reading.run(held))
        await until(held.begun.is_set)
        reading.snapshots.make_way()

        with pytest.raises(StoreBusy, match="no turn"):
            await reading.run(counted)

        reading.snapshots.go_on()
        assert await reading.run(counted) == 3
        held.go_on.set()
        await running


async def test_way_is_made_for_no_longer_than_the_bound(of_three: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshots, "MAKE_WAY_S", 0.05)
    held = Held()
    async with opened(of_three, 2) as reading:
        running = asyncio.create_task(reading.run(held))
        await until(held.begun.is_set)
        reading.snapshots.make_way()

        assert await reading.run(counted) == 3

        held.go_on.set()
        await running


async def test_who_has_waited_for_a_connection_waits_for_the_way_too(of_three: Path) -> None:
    held = Held()
    async with opened(of_three) as reading:
        running = asyncio.create_task(reading.run(held))
        await until(held.begun.is_set)
        waiting = asyncio.create_task(reading.run(counted))
        await asyncio.sleep(0)
        reading.snapshots.make_way()
        held.go_on.set()
        await running
        await turns(20)

        assert not waiting.done()
        reading.snapshots.go_on()
        assert await waiting == 3


# Ends


async def test_who_gives_up_frees_the_connection_and_stays_charged(of_three: Path) -> None:
    charges: list[int] = []
    async with opened(of_three) as reading:
        for _ in range(3):
            held = Held()
            running = asyncio.create_task(reading.run(held, Payer("one", charge=charges.append)))
            await until(held.begun.is_set)
            running.cancel()
            await asyncio.wait([running])
            assert running.cancelled()
            held.go_on.set()

        assert await reading.run(counted) == 3

    assert charges == [work.STATEMENT + STEP_WORK] * 3


async def test_who_gives_up_between_two_steps_frees_the_connection(of_three: Path) -> None:
    async with opened(of_three) as reading:
        for _ in range(3):
            stepped = asyncio.Event()
            running = asyncio.create_task(reading.run(endless, after_step=stepped.set))
            await stepped.wait()
            running.cancel()
            await asyncio.wait([running])

        assert await reading.run(counted) == 3
        change(of_three, "DELETE FROM envelopes")
        assert await reading.run(counted) == 0  # the transaction is over, too


async def test_who_never_reads_frees_the_connection(of_three: Path) -> None:
    async with opened(of_three) as reading:
        for _ in range(3):
            with pytest.raises(KeyError):
                async with reading.snapshots.seat(PaidReader(reading.readers)):
                    raise KeyError

        assert await reading.run(counted) == 3


async def test_snapshot_is_held_no_longer_than_the_bound(of_three: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshots, "SNAPSHOT_S", 0.05)
    async with opened(of_three) as reading:
        for _ in range(2):
            with pytest.raises(StoreBusy, match=r"longer than 0\.05 s"):
                await reading.run(endless)

    with contextlib.closing(sqlite3.connect(of_three, isolation_level=None)) as connection:
        assert connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0] == 0


async def test_time_out_of_another_kind_is_not_the_store_s(of_three: Path) -> None:
    async with opened(of_three) as reading:
        with pytest.raises(TimeoutError):
            async with reading.snapshots.seat(PaidReader(reading.readers)):
                raise TimeoutError


async def test_nobody_waits_for_a_turn_longer_than_the_bound(of_three: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshots, "WAIT_S", 0.05)
    held = Held()
    async with opened(of_three) as reading:
        running = asyncio.create_task(reading.run(held))
        await until(held.begun.is_set)

        with pytest.raises(StoreBusy, match=r"no turn .* within 0\.05 s"):
            await reading.run(counted)

        held.go_on.set()
        await running
        assert await reading.run(counted) == 3


async def test_no_more_of_an_address_wait_than_the_bound(of_three: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshots, "MAX_WAITING", 2)
    held = Held()
    async with opened(of_three) as reading:
        running = asyncio.create_task(reading.run(held))
        await until(held.begun.is_set)
        waiting = [asyncio.create_task(reading.run(counted, Payer("crowd", number))) for number in range(2)]
        lone = asyncio.create_task(reading.run(counted, Payer("lone")))
        await asyncio.sleep(0)

        with pytest.raises(StoreBusy, match="2 of the same address wait"):
            await reading.run(counted, Payer("crowd", 2))

        held.go_on.set()
        await running
        assert await asyncio.gather(lone, *waiting) == [3, 3, 3]
        assert await reading.run(counted, Payer("crowd", 2)) == 3
        assert not reading.snapshots._waiting  # noqa: SLF001 - an address that comes once takes no memory for ever


async def test_work_that_fails_says_so_and_others_go_on(of_three: Path) -> None:
    def wrong(reader: SnapshotReader) -> None:
        reader.read("SELECT * FROM missing")

    def raises(reader: SnapshotReader) -> None:
        raise KeyError("what")

    async with opened(of_three) as reading:
        with pytest.raises(StoreError, match="cannot read the store: no such table"):
            await reading.run(wrong)
        with pytest.raises(KeyError):
            await reading.run(raises)
        assert "no such table" in reading.failures.damage
        assert await reading.run(counted) == 3


async def test_closing_ends_what_is_read_and_what_waits(of_three: Path) -> None:
    stepped = asyncio.Event()
    async with opened(of_three) as reading:
        running = asyncio.create_task(reading.run(endless, after_step=stepped.set))
        await stepped.wait()
        waiting = asyncio.create_task(reading.run(counted))
        await asyncio.sleep(0)
        reading.snapshots.close()

        for task in (running, waiting):
            with pytest.raises(StoreError, match="closing"):
                await task


async def test_seat_that_was_taken_before_the_end_is_not_used_after_it(of_three: Path) -> None:
    async with opened(of_three) as reading, reading.snapshots.seat(PaidReader(reading.readers)) as seat:
        reading.snapshots.close()

        with pytest.raises(StoreError, match="closing"):
            await seat.run(counted, lambda: None)


async def test_connections_only_read(of_three: Path) -> None:
    def write(reader: SnapshotReader) -> None:
        reader.read("DELETE FROM envelopes RETURNING 1")

    async with opened(of_three) as reading:
        with pytest.raises(StoreError, match="readonly"):
            await reading.run(write)

    assert rows(of_three, COUNT) == [(3,)]
    with pytest.raises(StoreError, match="there is none"):
        async with open_snapshots(of_three.with_name("missing.db"), 1, StoreFailures(of_three)):
            pass
