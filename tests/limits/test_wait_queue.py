"""mailserver.limits.wait_queue: in which order something is handed on, and what becomes of those who are gone."""

import asyncio

import pytest

from mailserver.limits.wait_queue import WaitQueue
from tests.waiting import turns


class Line:
    """A line, who got what, and what those who were gone had been handed."""

    def __init__(self) -> None:
        self.gone: list[int | None] = []
        self.got: list[tuple[str, int]] = []
        self.line: WaitQueue[int] = WaitQueue(self.gone.append)

    async def _wait(self, who: str, cost: int) -> None:
        self.got.append((who, await self.line.wait(who, cost)))

    async def wait(self, *whos: str, cost: int = 1) -> list[asyncio.Task[None]]:
        """Have somebody wait, one after the other."""
        tasks = [asyncio.create_task(self._wait(who, cost)) for who in whos]
        await turns(1)
        return tasks


async def test_each_is_handed_something_in_turn() -> None:
    line = Line()
    tasks = await line.wait("a", "b", "c")

    assert [line.line.wake_next(number) for number in range(4)] == [True, True, True, False]
    await asyncio.gather(*tasks)

    assert line.got == [("a", 0), ("b", 1), ("c", 2)]
    assert line.gone == []


async def test_who_costs_little_does_not_wait_for_all_of_who_costs_much() -> None:
    line = Line()
    tasks = [*await line.wait("much", "much", cost=10), *await line.wait("little", "little", cost=1)]

    for number in range(4):
        line.line.wake_next(number)
    await asyncio.gather(*tasks)

    assert [who for who, _ in line.got] == ["little", "much", "little", "much"]


async def test_nothing_is_handed_on_where_nobody_waits() -> None:
    line = Line()

    assert not line.line
    assert line.line.next_cost() is None
    assert not line.line.wake_next(1)


async def test_line_knows_what_its_next_costs() -> None:
    line = Line()
    tasks = [*await line.wait("a", cost=7), *await line.wait("a", cost=3)]

    assert line.line
    assert line.line.next_cost() == 7
    line.line.wake_next(0)
    assert line.line.next_cost() == 3
    line.line.wake_next(0)
    await asyncio.gather(*tasks)


@pytest.mark.parametrize("gone", [0, 1, 2])
async def test_who_is_gone_is_passed_over(gone: int) -> None:
    line = Line()
    tasks = await line.wait("a", "b", "c")

    tasks[gone].cancel()
    await asyncio.gather(tasks[gone], return_exceptions=True)
    handed = [line.line.wake_next(number) for number in range(3)]
    await asyncio.gather(*tasks, return_exceptions=True)

    assert handed == [True, True, False]
    assert [who for who, _ in line.got] == [who for number, who in enumerate("abc") if number != gone]
    assert line.gone == [None]


async def test_who_is_cancelled_and_does_not_know_it_yet_is_passed_over() -> None:
    line = Line()
    first, second = await line.wait("a", "b")

    first.cancel()
    assert line.line.wake_next(1)
    await asyncio.gather(first, second, return_exceptions=True)

    assert line.got == [("b", 1)]
    assert line.gone == [None]


async def test_what_is_handed_to_who_is_gone_at_the_same_moment_is_not_lost() -> None:
    line = Line()
    (task,) = await line.wait("a")

    assert line.line.wake_next(5)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)

    assert line.got == []
    assert line.gone == [5]


async def test_line_of_those_who_are_gone_is_empty() -> None:
    line = Line()
    tasks = await line.wait("a", "b")

    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)

    assert not line.line
    assert line.gone == [None, None]
