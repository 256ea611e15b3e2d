"""When the writer indexes message ids, and who waits for that.

The writer learns that somebody waits, and whoever waits learns that the index has moved.
"""

import asyncio

MAX_UNINDEXED_ROWS = 100_000
"""Beyond this, message ids are indexed although envelopes wait for the disk: a batch after each group. It is a flood of
half a minute. What looks for ids waits for as long as it takes to index these: some seconds, 5 on a busy machine."""

INDEX_DELAY_S = 10.0
"""How long the first envelope waits that is not indexed yet: a transaction for each of few would be a sync of the disk
more for each. What compares ids leaves out the last minute."""

INDEX_INTERVAL_S = 0.5
"""After all is indexed, whoever looks for ids waits up to this long for what has come since: each batch is a sync of
the disk, for which nobody is charged who asks again and again."""

INDEX_RETRY_S = 10.0
"""How long to wait after ids could not be indexed. The envelopes are stored; nothing is lost."""


class IndexWait:
    """What waits for the next batch of the index."""

    def __init__(self) -> None:
        self._waiting = 0
        self._moved = asyncio.Event()
        self._due = 0.0

    @property
    def due(self) -> float:
        """When to index what few envelopes there are, by the clock of the event loop."""
        return 0.0 if self._waiting else self._due

    def put_off(self, now: float) -> None:
        """The first envelope has come that is not indexed."""
        self._due = now + INDEX_DELAY_S

    @property
    def is_awaited(self) -> bool:
        """Whether anybody waits: then a batch is indexed although envelopes wait for the disk."""
        return self._waiting > 0

    async def next_move(self) -> None:
        """Wait until a batch was indexed, or could not be."""
        self._waiting += 1
        try:
            await self._moved.wait()
        finally:
            self._waiting -= 1

    def moved(self) -> None:
        """Wake all that wait."""
        self._moved.set()
        self._moved = asyncio.Event()
