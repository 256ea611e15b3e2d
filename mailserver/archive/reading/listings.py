"""Looks which periods there are, once for all who ask at the same time.

What has been deleted from the store is in the archive, but only a listing that begins afterwards is sure to have it. So
nobody is given one that had begun before he asked: whoever asks while one goes on shares the next one with all others
who do. One goes on at a time, so that however many ask, they take one thread, and on S3 one request. It is read at no
payer's expense, or a payer for whom much was done would keep all others waiting; what it costs is shared.
"""

import asyncio
from collections.abc import Callable
from typing import NamedTuple

from mailserver.archive.errors import ArchiveError
from mailserver.archive.reading.catalog import Listing
from mailserver.archive.reading.reads import LISTED_RECORD, STEP, ArchiveReads
from mailserver.store.interface import Payer

_LISTINGS = Payer("listings")


class Listed(NamedTuple):
    """What there is, or why that cannot be told, and how much work that was for each who shares it."""

    listing: Listing | ArchiveError
    work: int


class Listings:
    """The listings of one archive. Only the event loop's thread uses it."""

    def __init__(self, list_all: Callable[[], Listing], reads: ArchiveReads) -> None:
        """List by `list_all`, which is called in one of the threads of `reads`."""
        self._list_all = list_all
        self._reads = reads
        self._sharers = 0
        self._current: asyncio.Task[Listed] | None = None
        self._next: asyncio.Task[Listed] | None = None

    async def newest(self) -> Listed:
        """Look what there is, from now on. If nobody waits for it any more, it goes on all the same."""
        if self._next is None:
            self._next = asyncio.create_task(self._list(self._current))
            self._next.add_done_callback(_retrieve)
        self._sharers += 1
        return await asyncio.shield(self._next)

    def close(self) -> None:
        """List nothing more."""
        for listing in (self._current, self._next):
            if listing is not None:
                listing.cancel()

    async def _list(self, before: asyncio.Task[Listed] | None) -> Listed:
        if before is not None:
            await asyncio.wait([before])
        self._current, self._next = self._next, None
        sharers, self._sharers = self._sharers, 0
        try:
            listing = await self._reads.run(STEP, _LISTINGS, self._list_all)
        except ArchiveError as error:  # not raised here: each who shares it raises one of his own
            return Listed(error, STEP)
        return Listed(listing, STEP + LISTED_RECORD * listing.looked_at // sharers)


def _retrieve(listing: asyncio.Task[Listed]) -> None:
    if not listing.cancelled():
        listing.exception()  # a fault of ours is raised by who waits for it: perhaps nobody does any more
