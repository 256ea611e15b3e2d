"""An event loop whose time passes only while it has nothing to do, and then at once.

With it, a test of something that takes seconds takes milliseconds, and can judge exact times. Sockets within the
process work as usual. Threads do not: the loop does not wait for them.
"""

import asyncio
import selectors
from collections.abc import Callable, Coroutine
from functools import wraps
from typing import Any, ParamSpec

MIN_STEP_S = 1e-6  # a wait must not become so short by rounding that the time does not change

P = ParamSpec("P")


class _SkippingSelector(selectors.DefaultSelector):
    """Never waits, but notes for how long it would have."""

    def __init__(self) -> None:
        super().__init__()
        self.skipped_s = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if not ready:
            assert timeout is not None, "every task waits for something that will never happen"
            if timeout > 0:
                self.skipped_s += max(timeout, MIN_STEP_S)
        return ready


class SimulatedLoop(asyncio.SelectorEventLoop):
    """A loop of this kind. Its time starts at 0."""

    def __init__(self) -> None:
        self._skipping = _SkippingSelector()
        super().__init__(self._skipping)

    def time(self) -> float:
        return self._skipping.skipped_s


def in_simulated_time(test: Callable[P, Coroutine[Any, Any, None]]) -> Callable[P, None]:
    """Run a test on a loop of this kind."""

    @wraps(test)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        with asyncio.Runner(debug=True, loop_factory=SimulatedLoop) as runner:
            runner.run(test(*args, **kwargs))

    return run


async def pass_time(seconds: float) -> None:
    """Let this much time pass, and run everything that is due in it."""
    await asyncio.sleep(seconds)
