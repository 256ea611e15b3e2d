"""Waiting for something to become true: with a deadline, and never longer than it takes."""

import asyncio
from collections.abc import Callable

DEADLINE_S = 15.0
"""How long anything may take before a test gives up: far more than it does on a busy machine."""


async def until(condition: Callable[[], bool], deadline_s: float = DEADLINE_S) -> None:
    """Wait until something holds."""
    async with asyncio.timeout(deadline_s):
        while True:
            if condition():
                return
            await asyncio.sleep(0.001)


async def turns(count: int = 5) -> None:
    """Let everything that is ready have its turn, so many times."""
    for _ in range(count):
        await asyncio.sleep(0)
