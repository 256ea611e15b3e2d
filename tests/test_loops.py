"""Slow steps of the event loops that tests run on."""

import asyncio

import pytest

from tests.loops import BOTH


@pytest.mark.parametrize("name", BOTH)
def test_steps_that_are_slow_on_a_busy_machine_are_not_logged_in_tests(
    name: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def step() -> None:
        asyncio.get_running_loop().slow_callback_duration = -1.0  # every step is a slow one
        await asyncio.sleep(0)
        await asyncio.sleep(0.001)  # by a timer

    with asyncio.Runner(debug=True, loop_factory=BOTH[name]) as runner:
        runner.run(step())

    assert caplog.messages == []
