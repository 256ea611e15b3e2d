"""How long a source that fails is borne with: when it is asked again, and when that is of no use."""

import random

MIN_BACKOFF_S = 1.0
MAX_BACKOFF_S = 300.0
"""Least and longest wait before a source that failed is asked again: doubled with each failure, and by chance."""

_MAX_DOUBLINGS = 16  # of a float; far beyond MAX_BACKOFF_S


class RetryPolicy:
    """Counts what went wrong with one source.

    `failures`: how often in a row. `is_hopeless`: the last two answers of a kind that leaves no hope were the same,
    and nothing has come between.
    """

    def __init__(self, give_up_after: int) -> None:
        """Take how many failures in a row are borne, and that nothing hopeless is; 0: everything is, for ever."""
        self.failures = 0
        self.is_hopeless = False
        self._give_up_after = give_up_after
        self._postponed = 0  # windows since the last one that came to its end
        self._final_answer = ""

    @property
    def is_over(self) -> bool:
        """Whether the source is given up."""
        return self._give_up_after > 0 and (self.failures >= self._give_up_after or self.is_hopeless)

    def on_page(self) -> None:
        """A page has come."""
        self.failures = self._postponed  # to fetch the same pages again and again is no success
        self.is_hopeless = False
        self._final_answer = ""

    def on_window_paid(self) -> None:
        """A window has come to its end."""
        self.failures = self._postponed = 0

    def on_window_postponed(self) -> None:
        """Another window is asked for first."""
        self._postponed += 1

    def on_failure(self, problem: str, *, is_final: bool) -> None:
        """Something went wrong; `is_final`: the source will hardly say anything else the next time."""
        self.failures += 1
        self.is_hopeless = is_final and problem == self._final_answer
        if is_final:
            self._final_answer = problem


def backoff_s(failures: int) -> float:
    """How long to wait after so many failures in a row: 1 to 2 s after the first, 2 to 4 s after the second."""
    longest = min(MIN_BACKOFF_S * 2 ** min(failures, _MAX_DOUBLINGS), MAX_BACKOFF_S)
    return random.uniform(longest / 2, longest)  # noqa: S311 - no secret
