"""Waits until something becomes true, no longer than needed, with a deadline."""

import asyncio
import time
from collections.abc import Callable

DEADLINE_S = 15.0
"""How long a test waits before it gives up: far longer than anything takes on a busy machine."""


async def until(condition: Callable[[], bool], deadline_s: float = DEADLINE_S) -> None:
    """Wait until something holds."""
    async with asyncio.timeout(deadline_s):
        while True:
            if condition():
                return
            await asyncio.sleep(0.001)


def wait_until(condition: Callable[[], bool]) -> None:
    """Wait until something that threads do holds."""
    give_up = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < give_up
        time.sleep(0.001)


async def turns(count: int = 5) -> None:
    """Let every task that is ready run, this many times."""
    for _ in range(count):
        await asyncio.sleep(0)
