"""mailserver.app.worker_places: when each worker is started, told to reload and to stop; and the exit code."""

import signal

import pytest

from mailserver.app.worker_places import FIRST_RESTART_S, MAX_RESTART_S, STABLE_S, WorkerEnded, WorkerPlaces

NOW = 1000.0


def begun(count: int) -> WorkerPlaces:
    """So many workers that serve peers, whose process ids are 100 and on."""
    places = WorkerPlaces(count)
    for number in range(count):
        places.started(number, 100 + number, NOW)
    assert [places.ready(number) for number in range(count)] == [False] * (count - 1) + [True]
    return places


def test_others_start_once_the_first_serves_peers() -> None:
    places = WorkerPlaces(3)

    assert places.due(NOW) == [0]
    places.started(0, 100, NOW)
    assert (places.due(NOW), places.next_start()) == ([], None)
    assert not places.ready(0)
    assert places.due(NOW) == [1, 2]
    places.started(1, 101, NOW)
    places.started(2, 102, NOW)
    assert places.running == {0: 100, 1: 101, 2: 102}
    assert [places.ready(number) for number in (2, 0, 1, 1)] == [False, False, True, False]
    assert places.due(NOW) == []


def test_waits_double_and_begin_anew_after_a_worker_that_was_stable() -> None:
    places, now, waits = begun(2), NOW, []
    for _ in range(11):
        ended = places.ended(1, -signal.SIGKILL, now)
        assert ended is not None
        assert (ended.number, ended.cause) == (1, "SIGKILL")
        assert ended.restart_s is not None
        waits.append(ended.restart_s)
        assert places.due(now + ended.restart_s / 2) == []
        assert places.next_start() == now + ended.restart_s
        now += ended.restart_s
        assert places.due(now) == [1]
        places.started(1, 200, now)

    assert waits[:3] == [FIRST_RESTART_S, 2 * FIRST_RESTART_S, 4 * FIRST_RESTART_S]
    assert waits[-1] == MAX_RESTART_S
    places.ready(1)
    assert places.ended(1, 1, now + STABLE_S) == WorkerEnded(1, "exit code 1", FIRST_RESTART_S)


def test_first_worker_starts_again_beside_the_others() -> None:
    places = begun(3)

    assert places.ended(0, 1, NOW) == WorkerEnded(0, "exit code 1", FIRST_RESTART_S)

    assert places.due(NOW + FIRST_RESTART_S) == [0]
    assert places.running == {1: 101, 2: 102}


@pytest.mark.parametrize(("code", "exit_code"), [(1, 1), (2, 2), (0, 1), (-signal.SIGKILL, 137)])
def test_worker_that_ends_before_all_have_begun_ends_all(code: int, exit_code: int) -> None:
    places = WorkerPlaces(2)
    places.started(0, 100, NOW)
    places.ready(0)
    places.started(1, 101, NOW)

    ended = places.ended(1, code, NOW)

    assert ended is not None
    assert ended.restart_s is None
    assert (places.due(NOW + MAX_RESTART_S), places.to_stop(), places.has_stopped) == ([], [0], False)
    assert places.ended(0, 0, NOW) is None
    assert (places.has_stopped, places.exit_code) == (True, exit_code)


def test_first_worker_is_told_to_stop_when_the_others_have_gone_and_each_once() -> None:
    places = begun(3)
    assert places.to_stop() == []

    places.stop()

    assert (places.to_stop(), places.to_stop()) == ([1, 2], [])
    places.ended(2, 0, NOW)
    assert places.to_stop() == []
    places.ended(1, 0, NOW)
    assert (places.to_stop(), places.to_stop()) == ([0], [])
    places.ended(0, 0, NOW)
    assert (places.has_stopped, places.exit_code) == (True, 0)


def test_exit_code_is_that_of_the_first_that_did_not_stop_well() -> None:
    places = begun(3)
    places.stop()
    for number, code in ((1, -signal.SIGTERM), (2, 3), (0, 4)):
        assert places.ended(number, code, NOW) is None
    assert places.exit_code == 3


def test_worker_that_waits_for_its_start_is_not_started_once_all_stop() -> None:
    places = begun(2)
    places.ended(1, 1, NOW)
    places.stop()

    assert (places.due(NOW + MAX_RESTART_S), places.next_start(), places.to_stop()) == ([], None, [0])


def test_reload_is_told_to_each_once_and_to_one_that_is_starting_when_it_is_ready() -> None:
    places = begun(3)
    places.ended(1, 1, NOW)
    places.started(1, 201, NOW)

    places.reload()

    assert (places.to_reload(), places.to_reload()) == ([0, 2], [])
    places.ready(1)
    assert (places.to_reload(), places.to_reload()) == ([1], [])
