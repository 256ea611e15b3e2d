"""What lives through kills, and what was found wrong with it."""

from collections import Counter
from collections.abc import Iterable


class Judged:
    """Something that is looked at after each kill.

    `broken` says what was found wrong, with the round that led to it; `figures` counts what was hit.
    """

    def __init__(self, name: str) -> None:
        self.broken: list[str] = []
        self.figures: Counter[str] = Counter()
        self._name = name
        self._round = 0

    def blame(self, found: Iterable[str]) -> None:
        """Take down what is wrong."""
        self.broken += [f"{self._name}, round {self._round}: {text}" for text in found]

    def begin_round(self) -> None:
        """What is found from now on is of the next round."""
        self._round += 1
