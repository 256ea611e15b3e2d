"""mailserver.limits.loop_scheduler, by itself and over mailserver.net.connection."""

import asyncio
import math
import time
from collections import Counter
from collections.abc import Hashable

import pytest

from mailserver.limits import loop_scheduler
from mailserver.limits.loop_scheduler import (
    FRAMES_AT_ONCE,
    FREE_FRAMES,
    MAX_ITERATION_S,
    RESUMED_PER_ITERATION,
    LoopScheduler,
    WorkBudget,
)
from mailserver.rlpx import p2p
from mailserver.waku.packets import PacketCode
from mailserver.waku.peer import P2PRequestReceived
from tests.net.wires import Running, Wires
from tests.raw_peer import RawPeer
from tests.waiting import DEADLINE_S, until
from tests.waiting import turns as iterations


async def test_waiting_tasks_have_their_turns_one_at_a_time_and_in_order() -> None:
    scheduler = LoopScheduler()
    had: list[tuple[str, int]] = []

    async def wait(name: str) -> None:
        await scheduler.wait_turn()
        had.append((name, rounds))

    rounds = 0
    tasks = [asyncio.create_task(wait(name)) for name in "abc"]
    while len(had) < len(tasks):
        rounds += 1
        await asyncio.sleep(0)

    assert [name for name, _ in had] == ["a", "b", "c"]
    assert len({number for _, number in had}) == len(had)


async def test_small_job_is_done_before_large_ones() -> None:
    scheduler = LoopScheduler()
    had: list[str] = []

    async def wait(name: str, work: int) -> None:
        await scheduler.wait_turn(work)
        had.append(name)

    async with asyncio.TaskGroup() as tasks:
        for number in range(5):
            tasks.create_task(wait(f"much {number}", 100))
        await iterations(1)
        tasks.create_task(wait("little", 10))

    assert had.index("little") <= 2  # one has its turn, one was given it
    assert [name for name in had if name != "little"] == [f"much {number}" for number in range(5)]


@pytest.mark.parametrize("moment", range(4))
async def test_cancelled_task_does_not_block_those_behind_it(moment: int) -> None:
    scheduler = LoopScheduler()
    had: list[str] = []

    async def wait(name: str) -> None:
        await scheduler.wait_turn()
        had.append(name)

    tasks = [asyncio.create_task(wait(name)) for name in "abcd"]
    await iterations(moment)
    for gone in (0, 2):
        tasks[gone].cancel()
    await asyncio.gather(*tasks, return_exceptions=True)

    assert [name for name in had if name in "bd"] == ["b", "d"]
    await asyncio.wait_for(scheduler.wait_turn(), DEADLINE_S)


async def test_many_small_jobs_at_once_do_not_block_the_loop() -> None:
    scheduler = LoopScheduler()
    done: list[tuple[int, int]] = []
    rounds = 0

    async def work(number: int) -> None:
        await WorkBudget(scheduler, free=8).take(1)
        until_s = time.perf_counter() + MAX_ITERATION_S / 8
        while time.perf_counter() < until_s:
            pass
        done.append((rounds, number))

    tasks = [asyncio.create_task(work(number)) for number in range(100)]
    while len(done) < len(tasks):
        rounds += 1
        await asyncio.sleep(0)

    assert [number for _, number in done] == list(range(100))
    assert max(Counter(number for number, _ in done).values()) <= 9


async def test_while_the_loop_is_busy_small_jobs_go_first() -> None:
    scheduler = LoopScheduler()
    had: list[str] = []

    async def come(name: str, size: int) -> None:
        await WorkBudget(scheduler, free=8).take(1, size)
        had.append(name)

    tasks = [asyncio.create_task(come(f"much {number}", 32_768)) for number in range(3 * RESUMED_PER_ITERATION)]
    tasks.append(asyncio.create_task(come("little", 1500)))
    await scheduler.yield_if_busy(1, "first")
    until_s = time.perf_counter() + MAX_ITERATION_S
    while time.perf_counter() < until_s:
        pass
    await asyncio.gather(*tasks)

    assert had.index("little") <= 1


async def test_task_cancelled_while_the_loop_is_busy_does_not_block_others() -> None:
    scheduler = LoopScheduler()
    had: list[int] = []

    async def come(number: int) -> None:
        await scheduler.yield_if_busy(1, number)
        had.append(number)

    tasks = [asyncio.create_task(come(number)) for number in range(3 * RESUMED_PER_ITERATION)]
    asyncio.get_running_loop().call_soon(tasks[0].cancel)
    await scheduler.yield_if_busy(1, "first")  # who comes first, and holds the loop up
    until_s = time.perf_counter() + MAX_ITERATION_S
    while time.perf_counter() < until_s:
        pass
    await asyncio.gather(*tasks, return_exceptions=True)

    assert tasks[0].cancelled()
    assert had == list(range(1, 3 * RESUMED_PER_ITERATION))


def requests(running: Running) -> int:
    """How many frames have come."""
    return sum(isinstance(event, P2PRequestReceived) for event in running.events)


async def heard(running: Running, count: int) -> None:
    """Wait until so many frames have come."""
    await until(lambda: requests(running) == count)


def flood(raw: RawPeer, count: int) -> None:
    """Send so many frames at once."""
    raw.write(*(raw.packet(PacketCode.P2P_REQUEST, b"") for _ in range(count)))


async def test_all_frames_are_opened_a_few_at_once() -> None:
    wires = Wires()
    running, raw = await wires.open()
    most = 0
    session = running.connection._session  # noqa: SLF001 - nobody else knows
    receive = session.receive_data

    def watched(data: bytes, now: float, *, max_frames: float) -> None:
        nonlocal most
        before = session.opened_frames
        receive(data, now, max_frames=max_frames)
        most = max(most, session.opened_frames - before)

    session.receive_data = watched  # type: ignore[method-assign, assignment]
    flood(raw, 100)

    await until(lambda: requests(running) == 100)

    assert most == FRAMES_AT_ONCE
    await wires.close()


async def test_single_frame_is_opened_between_those_of_a_peer_that_sends_many() -> None:
    wires, scheduler = Wires(), LoopScheduler()
    many, many_raw = await wires.open(opening=scheduler)
    few, few_raw = await wires.open(opening=scheduler)
    flood(many_raw, 400)
    few_raw.say(PacketCode.P2P_REQUEST, b"")

    await until(lambda: requests(few) == 1)

    assert requests(many) < 400
    await until(lambda: requests(many) == 400)
    await wires.close()


async def test_pings_of_a_flood_are_all_answered() -> None:
    wires = Wires()
    _, raw = await wires.open()
    raw.write(*(raw.frame(p2p.MessageId.PING, p2p.EMPTY_PAYLOAD) for _ in range(50)))

    for _ in range(50):
        assert (await raw.hear()).message_id == p2p.MessageId.PONG
    await wires.close()


async def test_what_is_beyond_the_budget_is_done_one_in_each_iteration(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop_scheduler, "MAX_ITERATION_S", math.inf)  # however long the machine takes for one
    scheduler = LoopScheduler()
    budgets = [WorkBudget(scheduler, 100) for _ in range(5)]
    rounds, done = 0, []

    async def work(name: int) -> None:
        await budgets[name].take(99)
        done.append((name, rounds))
        await budgets[name].take(1)
        done.append((name, rounds))

    tasks = [asyncio.create_task(work(name)) for name in range(5)]
    while len(done) < 10:
        await asyncio.sleep(0)
        rounds += 1
    await asyncio.gather(*tasks)

    free, turned = done[:5], done[5:]
    assert [name for name, _ in free] == [name for name, _ in turned] == list(range(5))
    assert len({number for _, number in free}) == 1
    assert len({number for _, number in turned}) == 5


async def test_source_that_has_had_little_is_next_however_many_want_much() -> None:
    scheduler = LoopScheduler()
    done: list[str] = []
    amid_it = asyncio.Event()

    async def work(name: str, size: int, times: int) -> None:
        budget = WorkBudget(scheduler, 10)
        for _ in range(times):
            await budget.take(size)
            done.append(name)
            if len(done) == 150:
                amid_it.set()

    async with asyncio.TaskGroup() as tasks:
        for number in range(20):
            tasks.create_task(work(f"much {number}", 100, 20))
        await amid_it.wait()
        before = len(done)
        tasks.create_task(work("little", 20, 5))

    places = [at for at, name in enumerate(done) if name == "little"]
    assert places[0] <= before + 5  # of 20; it takes some rounds of the loop to begin
    assert places[-1] <= before + 30  # five times 20 is what each of the others had once


async def test_budget_is_full_again_after_a_turn_and_after_a_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    now, waited = 0.0, 0
    monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: now)

    class Counted(LoopScheduler):
        async def wait_turn(self, work: int = 1, source: Hashable = None) -> None:
            nonlocal waited
            waited += 1

    budget = WorkBudget(Counted(), 100)
    steps = [
        (60, 1.0, 0),
        (39, 1.9, 0),
        (1, 1.9, 1),
        (99, 1.9, 1),
        (1, 1.9, 2),
        (99, 2.5, 2),
        (99, 3.5, 2),
        (100, 3.6, 3),
    ]
    for work, at, turns in steps:
        now = at
        await budget.take(work)
        assert waited == turns


async def test_peer_that_sends_few_frames_waits_for_a_turn_only_with_its_handshake() -> None:
    waited = 0

    class Counted(LoopScheduler):
        async def wait_turn(self, work: int = 1, source: Hashable = None) -> None:
            nonlocal waited
            waited += 1

    wires = Wires()
    running, raw = await wires.open(opening=Counted())
    for count in range(1, FREE_FRAMES - 1):  # Hello and Status came before
        raw.say(PacketCode.P2P_REQUEST, b"")
        await heard(running, count)
    assert waited == 1

    flood(raw, 100)
    await until(lambda: requests(running) > 100)

    assert waited >= 100 / FRAMES_AT_ONCE - 2
    await wires.close()
