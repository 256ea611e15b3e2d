"""mailserver.net.due: calls come when they are due, and not before, whatever loop makes them."""

import asyncio
import random

from mailserver.net.due import call_when_due


async def test_no_call_is_early() -> None:
    loop = asyncio.get_running_loop()
    rng = random.Random(1)

    async def early_by(delay: float) -> float:
        called: asyncio.Future[float] = loop.create_future()
        due = loop.time() + delay
        call_when_due(due, lambda: called.set_result(loop.time()))
        return due - await called

    early = await asyncio.gather(*(early_by(rng.uniform(0.001, 0.05)) for _ in range(200)))

    assert max(early) <= 0


async def test_call_gets_its_arguments_and_can_be_cancelled() -> None:
    called = asyncio.Event()
    heard = []

    def call(*arguments: int) -> None:
        heard.append(arguments)
        called.set()

    now = asyncio.get_running_loop().time()
    call_when_due(now, call, 1, 2).cancel()
    call_when_due(now, call, 3, 4)
    await called.wait()

    assert heard == [(3, 4)]
