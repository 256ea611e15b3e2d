"""A page of an answer: it knows where its envelopes are in the archive, and reads them a part at a time."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from mailserver.archive.errors import ArchiveError
from mailserver.archive.reading.paid import SharedArchive
from mailserver.archive.reading.reader import PaidReader
from mailserver.archive.reading.row_groups import FileGone, RowGroup
from mailserver.archive.reading.scan import Match, WantedMatches
from mailserver.archive.reading.search import ATTEMPTS
from mailserver.errors import StoreError
from mailserver.store.interface import Place, Raws

WINDOW_BYTES = 1024 * 1024
"""A page reads this many bytes ahead, or one envelope if it is longer. A thousand usual envelopes fit. To read one
envelope of a row group takes as long as to read all of them. The cache that all requests share keeps what was read
ahead. So a client that reads slowly takes no memory of its own; its envelopes may have to be read again."""

_RAW_BYTES = 41
"""Memory that an envelope which was read ahead takes in addition to its bytes."""

SearchAgain = Callable[[Sequence[Place]], Awaitable[list[Match]]]
"""Finds envelopes again by their places, in the same order: their files were replaced, or what the search has read was
dropped from the cache."""


@dataclass(frozen=True, slots=True)
class _Window:
    """Envelopes of a page that were read ahead. `first`: the number of the first one on the page."""

    first: int
    raws: list[bytes]


class ArchivePage:
    """The envelopes that a search has found, in order. It reads them."""

    def __init__(
        self,
        found: Sequence[Match],
        archive: SharedArchive,
        reader: PaidReader,
        *,
        again: SearchAgain,
        failed: Callable[[ArchiveError], StoreError],
    ) -> None:
        """Make a page of what was found.

        Args:
            again: called if files were replaced, or what the search has read is not in the cache any more.
            failed: called with the error if the archive cannot be read; returns the error to raise.
        """
        self._found = WantedMatches.of(found)
        self._archive = archive
        self._reader = reader
        self._again = again
        self._failed = failed
        self._at = 0
        self._key = object()

    @property
    def left(self) -> int:
        """How many envelopes are left to read."""
        return len(self._found) - self._at

    def place(self, number: int) -> Place:
        """The place of an envelope that was found, by its number."""
        return self._found.place(number)

    async def read(self, count: int, max_bytes: int) -> Raws:
        """Read the next envelopes, at most `count`; see `store.interface.Page`.

        Raises:
            StoreError: the archive cannot be read.
        """
        window = self._archive.kept(self._key, _Window)
        if window is None or not window.first <= self._at < window.first + len(window.raws):
            try:
                window = await self._read_ahead()
            except ArchiveError as error:
                raise self._failed(error) from error
            self._archive.keep(self._key, window, sum(map(len, window.raws)) + _RAW_BYTES * len(window.raws))
        raws: list[bytes] = []
        total = 0
        for raw in window.raws[self._at - window.first :][:count]:
            if raws and total + len(raw) > max_bytes:
                break
            raws.append(raw)
            total += len(raw)
        self._at += len(raws)
        if not self.left:
            self._archive.forget(self._key)
        return Raws(b"".join(raws), [*map(len, raws)], len(raws))

    async def _read_ahead(self) -> _Window:
        end = self._at + 1
        total = self._found.sizes[self._at]
        while end < len(self._found) and total + self._found.sizes[end] <= WINDOW_BYTES:
            total += self._found.sizes[end]
            end += 1
        some = self._found.some(self._at, end)
        attempts = ATTEMPTS
        while True:
            if some is not None:
                try:
                    return _Window(self._at, await self._raws(some))
                except FileGone:  # its period was replaced, and its files have no second names
                    attempts -= 1
                    if not attempts:
                        raise
            again = await self._again([self._found.place(at) for at in range(self._at, len(self._found))])
            self._found = self._found.found_again(self._at, again)
            some = again[: end - self._at]

    async def _raws(self, some: Sequence[Match]) -> list[bytes]:
        of_groups: dict[RowGroup, list[Match]] = {}
        for match in some:
            of_groups.setdefault(match.group, []).append(match)
        raws = await self._reader.raws(of_groups)
        return [raws[match.hash] for match in some]
