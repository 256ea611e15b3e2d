"""Decisions read from the fuzzer's bytes: the same bytes, the same decisions, with or without a fuzzer."""

from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")


class Choices:
    """Reads decisions one after the other. Where the bytes have ended, each is 0, the first, or empty."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    @property
    def more(self) -> bool:
        """Whether bytes are left."""
        return self._at < len(self._data)

    def rest(self) -> bytes:
        """All that is left."""
        return self.fixed(len(self._data) - self._at)

    def fixed(self, count: int) -> bytes:
        """So many bytes, or as many as are left."""
        taken = self._data[self._at : self._at + count]
        self._at += len(taken)
        return taken

    def below(self, bound: int) -> int:
        """A number from 0 to `bound` - 1; it takes as many bytes as the largest needs."""
        width = ((bound - 1).bit_length() + 7) // 8
        return int.from_bytes(self.fixed(width), "big") % bound

    def flag(self) -> bool:
        """Yes or no."""
        return bool(self.below(256) & 1)

    def pick(self, options: Sequence[T]) -> T:
        """One of these."""
        return options[self.below(len(options))]

    def take(self, most: int) -> bytes:
        """At most so many bytes; how many stands before them."""
        return self.fixed(self.below(most + 1))
