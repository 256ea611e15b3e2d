"""mailserver.catchup.pace: how far apart requests are."""

import asyncio
from itertools import pairwise

from mailserver.catchup.pace import MAX_APART_S, QUICKEN_AFTER, RequestPace
from tests.simulated_time import in_simulated_time, pass_time


async def ask(pace: RequestPace, allowed_every_s: float, answers: int) -> tuple[list[float], int]:
    """Ask as a Go mailserver allows it: when it has answered, and how often it has refused."""
    now = asyncio.get_running_loop().time
    answered: list[float] = []
    refused = 0
    while len(answered) < answers:
        await pace.keep()
        if answered and now() < answered[-1] + allowed_every_s:
            assert pace.on_refusal()
            refused += 1
        else:
            answered.append(now())
            pace.on_answer()
    return answered, refused


@in_simulated_time
async def test_requests_to_one_that_refuses_none_do_not_wait() -> None:
    answered, refused = await ask(RequestPace(), 0.0, 1000)

    assert (answered[-1] - answered[0], refused) == (0.0, 0)


@in_simulated_time
async def test_pace_of_a_source_is_found_and_kept() -> None:
    answered, refused = await ask(RequestPace(), 10.0, 400)

    gaps = [after - before for before, after in pairwise(answered)]
    assert all(10.0 <= gap <= 40.0 for gap in gaps)
    assert refused <= 5 + 400 / QUICKEN_AFTER
    assert sum(gaps) / len(gaps) < 20.0


@in_simulated_time
async def test_source_that_allows_more_is_asked_faster_after_a_while() -> None:
    pace = RequestPace()
    await ask(pace, 30.0, 3)

    answered, _ = await ask(pace, 0.0, 20 * QUICKEN_AFTER)

    assert answered[-1] == answered[-QUICKEN_AFTER]


@in_simulated_time
async def test_slowest_pace_is_bounded() -> None:
    pace = RequestPace()
    now = asyncio.get_running_loop().time

    while pace.on_refusal():
        await pace.keep()
    await pace.keep()
    before = now()
    await pace.keep()

    assert now() - before == MAX_APART_S


@in_simulated_time
async def test_time_since_the_last_request_counts() -> None:
    pace = RequestPace()
    now = asyncio.get_running_loop().time
    await pace.keep()
    pace.on_refusal()
    await pass_time(5.0)

    await pace.keep()

    assert now() == 5.0
