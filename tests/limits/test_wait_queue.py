"""mailserver.limits.wait_queue: in which order tasks are woken, and what becomes of cancelled ones."""

import asyncio

import pytest

from mailserver.limits.wait_queue import WaitQueue
from tests.waiting import turns


class Waiting:
    """A queue, what each task was woken with, and what cancelled tasks had been woken with."""

    def __init__(self) -> None:
        self.cancelled: list[int | None] = []
        self.got: list[tuple[str, int]] = []
        self.queue: WaitQueue[int] = WaitQueue(self.cancelled.append)

    async def _wait(self, who: str, cost: int) -> None:
        self.got.append((who, await self.queue.wait(who, cost)))

    async def wait(self, *whos: str, cost: int = 1) -> list[asyncio.Task[None]]:
        """Have tasks wait, one after the other."""
        tasks = [asyncio.create_task(self._wait(who, cost)) for who in whos]
        await turns(1)
        return tasks


async def test_tasks_are_woken_in_their_order() -> None:
    waiting = Waiting()
    tasks = await waiting.wait("a", "b", "c")

    assert [waiting.queue.wake_next(number) for number in range(4)] == [True, True, True, False]
    await asyncio.gather(*tasks)

    assert waiting.got == [("a", 0), ("b", 1), ("c", 2)]
    assert waiting.cancelled == []


async def test_cheap_source_does_not_wait_for_all_of_an_expensive_one() -> None:
    waiting = Waiting()
    tasks = [*await waiting.wait("much", "much", cost=10), *await waiting.wait("little", "little", cost=1)]

    for number in range(4):
        waiting.queue.wake_next(number)
    await asyncio.gather(*tasks)

    assert [who for who, _ in waiting.got] == ["little", "much", "little", "much"]


async def test_no_task_is_woken_where_none_waits() -> None:
    waiting = Waiting()

    assert not waiting.queue
    assert waiting.queue.next_cost() is None
    assert not waiting.queue.wake_next(1)


async def test_queue_tells_the_cost_of_its_next_task() -> None:
    waiting = Waiting()
    tasks = [*await waiting.wait("a", cost=7), *await waiting.wait("a", cost=3)]

    assert waiting.queue
    assert waiting.queue.next_cost() == 7
    waiting.queue.wake_next(0)
    assert waiting.queue.next_cost() == 3
    waiting.queue.wake_next(0)
    await asyncio.gather(*tasks)


@pytest.mark.parametrize("gone", [0, 1, 2])
async def test_cancelled_task_is_passed_over(gone: int) -> None:
    waiting = Waiting()
    tasks = await waiting.wait("a", "b", "c")

    tasks[gone].cancel()
    await asyncio.gather(tasks[gone], return_exceptions=True)
    handed = [waiting.queue.wake_next(number) for number in range(3)]
    await asyncio.gather(*tasks, return_exceptions=True)

    assert handed == [True, True, False]
    assert [who for who, _ in waiting.got] == [who for number, who in enumerate("abc") if number != gone]
    assert waiting.cancelled == [None]


async def test_task_that_is_being_cancelled_is_passed_over() -> None:
    waiting = Waiting()
    first, second = await waiting.wait("a", "b")

    first.cancel()
    assert waiting.queue.wake_next(1)
    await asyncio.gather(first, second, return_exceptions=True)

    assert waiting.got == [("b", 1)]
    assert waiting.cancelled == [None]


async def test_value_for_a_task_that_is_cancelled_as_it_is_woken_is_not_lost() -> None:
    waiting = Waiting()
    (task,) = await waiting.wait("a")

    assert waiting.queue.wake_next(5)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)

    assert waiting.got == []
    assert waiting.cancelled == [5]


async def test_queue_of_cancelled_tasks_is_empty() -> None:
    waiting = Waiting()
    tasks = await waiting.wait("a", "b")

    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)

    assert not waiting.queue
    assert waiting.cancelled == [None, None]
