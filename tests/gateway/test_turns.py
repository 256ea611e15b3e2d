"""mailserver.gateway.turns, by a clock that the work moves."""

import asyncio
from collections.abc import Callable

from mailserver.gateway.turns import FORGIVEN_PER_SECOND, MAX_ITERATION_S, SECONDS_PER_BYTE, GatewayTurns, Turn
from tests.waiting import turns as let_run

LONG_S = 2 * MAX_ITERATION_S


class Clock:
    """The time, and what was done in which order."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.done: list[str] = []
        self.turns = GatewayTurns(lambda: self.now)

    def work(self, name: str, seconds: float = 0.0) -> Callable[[], None]:
        def act() -> None:
            self.now += seconds
            self.done.append(name)

        return act

    def turn(self) -> Turn:
        return Turn(self.turns)


async def test_work_is_done_at_once_while_there_is_time() -> None:
    clock = Clock()

    assert clock.turn().do(clock.work("a", MAX_ITERATION_S / 3), 100)
    assert clock.turn().do(clock.work("b", MAX_ITERATION_S / 3), 100)

    assert clock.done == ["a", "b"]


async def test_beyond_that_it_is_done_in_a_later_iteration() -> None:
    clock = Clock()
    clock.turn().do(clock.work("long", LONG_S), 100)

    assert not clock.turn().do(clock.work("later"), 100)
    assert clock.done == ["long"]
    await let_run(1)

    assert clock.done == ["long", "later"]


async def test_each_iteration_ends_when_its_time_is_up() -> None:
    clock = Clock()
    clock.turn().do(clock.work("0", LONG_S), 1)
    for name in "123":
        clock.turn().do(clock.work(name, LONG_S), 1)

    done = []
    for _ in range(4):
        await let_run(1)
        done.append("".join(clock.done))

    assert done == ["01", "012", "0123", "0123"]


async def test_while_somebody_waits_nobody_goes_first_by_coming_late() -> None:
    clock = Clock()
    clock.turn().do(clock.work("0", LONG_S), 1)
    for name in "12":
        clock.turn().do(clock.work(name, LONG_S), 1)
    await let_run(1)

    assert not clock.turn().do(clock.work("late"), 5000)
    await let_run(2)

    assert clock.done == ["0", "1", "2", "late"]


async def test_whoever_has_caused_least_work_goes_first() -> None:
    clock = Clock()
    busy, quiet = clock.turn(), clock.turn()
    busy.do(clock.work("busy", LONG_S), 1)

    busy.do(clock.work("busy again"), 1)
    quiet.do(clock.work("quiet"), 1000)
    await let_run(1)

    assert clock.done == ["busy", "quiet", "busy again"]


async def test_of_those_that_have_caused_none_the_smallest_piece_goes_first() -> None:
    clock = Clock()
    clock.turn().do(clock.work("0", LONG_S), 1)

    clock.turn().do(clock.work("large"), 1001)
    clock.turn().do(clock.work("small"), 1000)
    clock.turn().do(clock.work("small, too"), 1000)
    await let_run(1)

    assert clock.done == ["0", "small", "small, too", "large"]


async def test_work_that_was_long_ago_is_forgotten() -> None:
    clock = Clock()
    once_busy, other = clock.turn(), clock.turn()
    once_busy.do(clock.work("busy", LONG_S), 1)
    await let_run(2)
    clock.now += LONG_S / FORGIVEN_PER_SECOND
    clock.turn().do(clock.work("long", LONG_S), 1)

    other.do(clock.work("other"), 1000)
    once_busy.do(clock.work("once busy"), 999)
    await let_run(1)

    assert clock.done == ["busy", "long", "once busy", "other"]


async def test_work_that_fails_does_not_keep_the_rest_from_being_done() -> None:
    clock = Clock()
    told = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(repr(context["exception"])))

    def fail() -> None:
        raise KeyError("a bug")

    clock.turn().do(clock.work("long", LONG_S), 1)
    for number, work in enumerate((fail, clock.work("next", LONG_S), fail)):
        clock.turn().do(work, number)
    await let_run(4)
    clock.turn().do(clock.work("at once"), 1)

    assert clock.done == ["long", "next", "at once"]
    assert told == ["KeyError('a bug')"] * 2


async def test_what_was_not_looked_at_is_taken_for_so_much_work() -> None:
    clock = Clock()
    busy = clock.turn()
    busy.do(clock.work("busy", LONG_S), 1)

    busy.do(clock.work("busy again"), 0)
    clock.turn().do(clock.work("huge"), round(LONG_S / SECONDS_PER_BYTE) + 1000)
    await let_run(1)

    assert clock.done == ["busy", "busy again", "huge"]
