"""Asks an archive as a daemon does."""

import pytest

from mailserver.archive.reading.source import ArchiveSource
from mailserver.errors import StoreError
from mailserver.store.interface import OURSELVES, Query
from tests.store.engines import EVERYTHING
from tests.store.samples import EVERY_BYTE


class Asking:
    """Somebody who asks a source."""

    source: ArchiveSource

    async def answer(self, query: Query = EVERYTHING) -> list[bytes]:
        """What it answers, envelope by envelope."""
        found = await self.source.find(query, 1000, above=None, payer=OURSELVES)
        page = self.source.page(found.matches, query, OURSELVES)
        read: list[bytes] = []
        while page.left:
            read += (await page.read(10, EVERY_BYTE)).split()
        return read

    async def refusal(self, query: Query = EVERYTHING) -> str:
        """Why it does not answer."""
        with pytest.raises(StoreError) as refused:
            await self.answer(query)
        return str(refused.value)
