"""mailserver.catchup.retry: what counts as failing, and for how long it is borne with."""

from mailserver.catchup.retry import MAX_BACKOFF_S, MIN_BACKOFF_S, RetryPolicy, backoff_s


def test_so_many_failures_in_a_row_are_borne() -> None:
    patience = RetryPolicy(3)

    for problem in ("one", "two"):
        patience.on_failure(problem, is_final=False)
    assert not patience.is_over
    patience.on_page()
    for problem in ("one", "one"):
        patience.on_failure(problem, is_final=False)
    assert not patience.is_over
    patience.on_failure("one", is_final=False)

    assert (patience.is_over, patience.is_hopeless) == (True, False)


def test_same_final_answer_twice_is_hopeless_unless_something_has_come_between() -> None:
    patience = RetryPolicy(6)

    for problem in ("no", "never"):
        patience.on_failure(problem, is_final=True)
        assert not patience.is_over
    patience.on_page()
    patience.on_failure("never", is_final=True)
    assert not patience.is_over
    patience.on_failure("cut", is_final=False)
    assert not patience.is_over
    patience.on_failure("never", is_final=True)

    assert (patience.is_over, patience.is_hopeless) == (True, True)


def test_pages_of_windows_that_are_put_off_again_and_again_are_no_success() -> None:
    patience = RetryPolicy(3)

    for _ in range(3):
        patience.on_window_postponed()
        patience.on_page()
    assert patience.is_over
    patience.on_window_paid()
    patience.on_page()

    assert patience.failures == 0


def test_nothing_is_too_much_for_who_does_not_give_up() -> None:
    patience = RetryPolicy(0)

    for _ in range(1000):
        patience.on_failure("no", is_final=True)

    assert patience.is_hopeless
    assert not patience.is_over


def test_waits_double_from_a_second_to_five_minutes_and_differ() -> None:
    waits = {failures: [backoff_s(failures) for _ in range(100)] for failures in (1, 2, 5, 8, 9, 20, 10**6)}

    for failures, some in waits.items():
        longest = min(2.0**failures, MAX_BACKOFF_S) if failures < 1000 else MAX_BACKOFF_S
        assert all(max(MIN_BACKOFF_S, longest / 2) <= wait <= longest for wait in some)
        assert len(set(some)) > 50
    assert (MIN_BACKOFF_S, MAX_BACKOFF_S) == (1.0, 300.0)
