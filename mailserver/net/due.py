"""Calls at a moment, and never before it."""

import asyncio
from collections.abc import Callable
from typing import Any

ROUNDING_S = 0.0005
"""uvloop rounds moments to the millisecond, so that its `call_at` may be early by half of one."""


def call_when_due(due: float, call: Callable[..., object], *arguments: Any) -> asyncio.TimerHandle:
    """Have the running loop call something when its time is `due` or later.

    A machine that is called too early finds nothing due, and its timer is set again, to fire at once. With `call_at` of
    uvloop, that happened 125 times for each timer on average until the moment came.
    """
    return asyncio.get_running_loop().call_at(due + ROUNDING_S, call, *arguments)
