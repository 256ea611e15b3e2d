"""When the writer indexes message ids, and who waits for that.

The writer learns that somebody waits, and whoever waits learns that the index has moved.
"""

import asyncio

MAX_UNINDEXED_ROWS = 100_000
"""Whoever looks for ids waits for as long as it takes to index these: some seconds, 5 on a busy machine. If there are
more, they are refused. For as long as ids are looked for, a batch is indexed after each group beyond this, although
envelopes wait for the disk."""

MAX_PUT_OFF_ROWS = 2_000_000
"""The same if nobody looks for ids. It is a flood of a minute. To index these takes half a minute, once it is over."""

WANTED_S = 120.0
"""For how long ids count as looked for: twice as long as somebody waits who is refused, and then comes back."""

FLOOD_ROWS = 2000
FLOOD_S = 1.0
"""So many envelopes in so many seconds are a flood: whoever sends them would wait for the processor that indexes. Of
fewer, the index takes a sixtieth of a processor. As long after the last of a flood, it goes on."""

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
        self._due = self._calm = 0.0
        self._wanted_until = 0.0
        self._rows, self._count_until = 0, 0.0

    @property
    def due(self) -> float:
        """When to index what envelopes there are while none wait for the disk, by the clock of the event loop."""
        return 0.0 if self._waiting else max(self._due, self._calm)

    def put_off(self, now: float) -> None:
        """The first envelope has come that is not indexed."""
        self._due = now + INDEX_DELAY_S

    def stored(self, rows: int, now: float) -> None:
        """So many envelopes were stored. As long as they are a flood, none are due, unless ids are looked for."""
        if now >= self._count_until:
            self._rows, self._count_until = 0, now + FLOOD_S
        self._rows += rows
        if self._rows >= FLOOD_ROWS and now >= self._wanted_until:
            self._calm = now + FLOOD_S

    def may_wait(self, now: float) -> int:
        """How many envelopes need not be indexed while others wait for the disk."""
        if self._waiting:
            return 0
        return MAX_UNINDEXED_ROWS if now < self._wanted_until else MAX_PUT_OFF_ROWS

    @property
    def is_awaited(self) -> bool:
        """Whether anybody waits: then a batch is indexed at once."""
        return self._waiting > 0

    async def next_move(self) -> None:
        """Wait until a batch was indexed, or could not be. For a while, no flood puts off the index any more."""
        self._wanted_until, self._calm = asyncio.get_running_loop().time() + WANTED_S, 0.0
        self._waiting += 1
        try:
            await self._moved.wait()
        finally:
            self._waiting -= 1

    def moved(self) -> None:
        """Wake all that wait."""
        self._moved.set()
        self._moved = asyncio.Event()
