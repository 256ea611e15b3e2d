"""When to ask a source again after it failed, and when there is no point in asking."""

import random

MIN_BACKOFF_S = 1.0
MAX_BACKOFF_S = 300.0
"""Shortest and longest wait before a failed source is asked again. It doubles with each failure, and is jittered."""

_MAX_DOUBLINGS = 16  # of a float; far beyond MAX_BACKOFF_S


class RetryPolicy:
    """Counts what went wrong with one source.

    `failures`: how often in a row. `is_hopeless`: the source has given the same final answer twice, and nothing came in
    between. A final answer is one that it will hardly change.
    """

    def __init__(self, give_up_after: int) -> None:
        """Begin without failures.

        Args:
            give_up_after: so many failures in a row end it, or one hopeless case; 0: nothing ever does.
        """
        self.failures = 0
        self.is_hopeless = False
        self._give_up_after = give_up_after
        self._postponed = 0  # windows, since the last one that was finished
        self._final_answer = ""

    @property
    def is_over(self) -> bool:
        """Whether the source is given up."""
        return self._give_up_after > 0 and (self.failures >= self._give_up_after or self.is_hopeless)

    def on_page(self) -> None:
        """A page has come."""
        self.failures = self._postponed  # fetching the same pages again and again is no success
        self.is_hopeless = False
        self._final_answer = ""

    def on_window_done(self) -> None:
        """A window is finished."""
        self.failures = self._postponed = 0

    def on_window_postponed(self) -> None:
        """The current window was postponed: another one is asked for first."""
        self._postponed += 1

    def on_failure(self, problem: str, *, is_final: bool) -> None:
        """Something went wrong. `is_final`: the source will hardly answer otherwise the next time."""
        self.failures += 1
        self.is_hopeless = is_final and problem == self._final_answer
        if is_final:
            self._final_answer = problem


def backoff_s(failures: int) -> float:
    """How long to wait after so many failures in a row: 1 to 2 s after the first, 2 to 4 s after the second."""
    longest = min(MIN_BACKOFF_S * 2 ** min(failures, _MAX_DOUBLINGS), MAX_BACKOFF_S)
    return random.uniform(longest / 2, longest)  # noqa: S311 - no secret
