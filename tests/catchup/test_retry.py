"""mailserver.catchup.retry: what counts as failing, and for how long it is borne with."""

from mailserver.catchup.retry import MAX_BACKOFF_S, MIN_BACKOFF_S, RetryPolicy, backoff_s


def test_so_many_failures_in_a_row_are_borne() -> None:
    policy = RetryPolicy(3)

    for problem in ("one", "two"):
        policy.on_failure(problem, is_final=False)
    assert not policy.is_over
    policy.on_page()
    for problem in ("one", "one"):
        policy.on_failure(problem, is_final=False)
    assert not policy.is_over
    policy.on_failure("one", is_final=False)

    assert (policy.is_over, policy.is_hopeless) == (True, False)


def test_same_final_answer_twice_is_hopeless_unless_something_has_come_between() -> None:
    policy = RetryPolicy(6)

    for problem in ("no", "never"):
        policy.on_failure(problem, is_final=True)
        assert not policy.is_over
    policy.on_page()
    policy.on_failure("never", is_final=True)
    assert not policy.is_over
    policy.on_failure("cut", is_final=False)
    assert not policy.is_over
    policy.on_failure("never", is_final=True)

    assert (policy.is_over, policy.is_hopeless) == (True, True)


def test_pages_of_windows_that_are_put_off_again_and_again_are_no_success() -> None:
    policy = RetryPolicy(3)

    for _ in range(3):
        policy.on_window_postponed()
        policy.on_page()
    assert policy.is_over
    policy.on_window_done()
    policy.on_page()

    assert policy.failures == 0


def test_nothing_is_too_much_for_who_does_not_give_up() -> None:
    policy = RetryPolicy(0)

    for _ in range(1000):
        policy.on_failure("no", is_final=True)

    assert policy.is_hopeless
    assert not policy.is_over


def test_waits_double_from_a_second_to_five_minutes_and_differ() -> None:
    waits = {failures: [backoff_s(failures) for _ in range(100)] for failures in (1, 2, 5, 8, 9, 20, 10**6)}

    for failures, some in waits.items():
        longest = min(2.0**failures, MAX_BACKOFF_S) if failures < 1000 else MAX_BACKOFF_S
        assert all(max(MIN_BACKOFF_S, longest / 2) <= wait <= longest for wait in some)
        assert len(set(some)) > 50
    assert (MIN_BACKOFF_S, MAX_BACKOFF_S) == (1.0, 300.0)
