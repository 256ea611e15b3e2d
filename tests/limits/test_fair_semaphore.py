"""mailserver.limits.fair_semaphore: who is next where many want to work and few can."""

import asyncio

from mailserver.limits.fair_semaphore import FairSemaphore


async def settle() -> None:
    """Let whatever can go on do so."""
    for _ in range(5):
        await asyncio.sleep(0)


async def seated(semaphore: FairSemaphore, order: list[str], name: str, *, group: str = "", work: int = 1) -> None:
    await semaphore.acquire(group or name, name, work)
    order.append(name)


async def test_no_more_than_the_count_acquire_at_once() -> None:
    semaphore, order = FairSemaphore(2), list[str]()
    tasks = [asyncio.create_task(seated(semaphore, order, name)) for name in "abc"]
    await settle()

    assert order == ["a", "b"]
    semaphore.release()
    await settle()

    assert order == ["a", "b", "c"]
    await asyncio.gather(*tasks)


async def test_source_with_less_work_is_next() -> None:
    semaphore, order = FairSemaphore(1), list[str]()
    await semaphore.acquire("other", "other", 1)
    waiting = [("heavy", 100), ("heavy", 100), ("light", 1)]
    tasks = [asyncio.create_task(seated(semaphore, order, name, work=work)) for name, work in waiting]
    await settle()
    for _ in waiting:
        semaphore.release()
        await settle()

    assert order.index("light") < 2
    await asyncio.gather(*tasks)


async def test_group_gets_no_more_by_having_more_members() -> None:
    semaphore, order = FairSemaphore(1), list[str]()
    await semaphore.acquire("other", "other", 1)
    many = [asyncio.create_task(seated(semaphore, order, f"m{number}", group="many", work=10)) for number in range(6)]
    one = [asyncio.create_task(seated(semaphore, order, "one", work=10)) for _ in range(2)]
    await settle()
    for _ in range(4):
        semaphore.release()
        await settle()

    assert order.count("one") == 2
    for _ in range(4):
        semaphore.release()
    await asyncio.gather(*many, *one)


async def test_cancelled_task_does_not_acquire() -> None:
    semaphore, order = FairSemaphore(1), list[str]()
    await semaphore.acquire("a", "a", 1)
    gone = asyncio.create_task(seated(semaphore, order, "gone"))
    there = asyncio.create_task(seated(semaphore, order, "there"))
    await settle()

    gone.cancel()
    semaphore.release()
    await there

    assert order == ["there"]


async def test_task_cancelled_as_it_acquires_releases() -> None:
    semaphore, order = FairSemaphore(1), list[str]()
    await semaphore.acquire("a", "a", 1)
    gone = asyncio.create_task(seated(semaphore, order, "gone"))
    await settle()

    semaphore.release()
    gone.cancel()
    await settle()
    await seated(semaphore, order, "there")

    assert order == ["there"]
