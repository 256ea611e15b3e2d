"""Attacks with connections: many of them, half of a handshake, bytes that come slowly, or are not what they say."""

import asyncio
import contextlib
from collections.abc import Mapping

from bench.wire import connect
from mailserver.errors import ConnectionLost
from tests.faults.peers.attacker import Target, address
from tests.faults.peers.harness import Scenario
from tests.faults.peers.usage import usage
from tests.faults.report import Figure

_IDLE = 2000


async def idle(target: Target) -> Mapping[str, Figure]:
    """Connections from many addresses that do their handshake, answer pings, and say nothing."""
    before = usage(target.pid)
    refused = 0
    async with contextlib.AsyncExitStack() as stack:
        for number in range(100 if target.is_quick else _IDLE):
            try:
                await stack.enter_async_context(connect(target.enode, trusting=True, source=address(number)))
            except (ConnectionLost, OSError):
                refused += 1
        during = usage(target.pid)
        await asyncio.sleep(target.seconds)
    held = during.open_files - before.open_files
    return {"held": held, "refused": refused, "kb_each": (during.memory_bytes - before.memory_bytes) / 1000 / held}


SCENARIOS = (Scenario("idle", idle),)
