"""Takes in the live envelopes that other mailservers on the same store have put into it.

What is left out because we are too slow, or because they could not be heard, is told to whoever reads the feed and the
store (`feed.LeftOut`).
"""

import asyncio
import logging
from collections.abc import Iterable

from mailserver.errors import DecodeError
from mailserver.live.feed import LeftOut
from mailserver.live.intake import Intake
from mailserver.metrics.registry import Metrics
from mailserver.store.others import Others
from mailserver.waku.envelope import Envelope, decode_envelope

log = logging.getLogger(__name__)


class OthersIntake:
    """Reads what others have put, and hands it to the intake. What they put while we are too slow is left out."""

    def __init__(self, others: Others, intake: Intake, left_out: LeftOut, metrics: Metrics) -> None:
        self._others = others
        self._intake = intake
        self._left_out = left_out
        self._metrics = metrics
        self._missed = self._outages = 0

    async def begin(self) -> None:
        """Listen to the others: whatever they put from now on is heard."""
        await self._others.begin()

    async def run(self) -> None:
        """Take in what they put, until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._others.run())
            while True:
                generation = self._intake.generation  # of before they are read: they were there then
                raws = await self._others.read()
                await self._intake.take_of_others(_decoded(raws), generation)
                self._note_missed()

    def _note_missed(self) -> None:
        missed, outages = self._others.missed - self._missed, self._others.outages - self._outages
        if missed or outages:
            self._left_out.note(missed)
            self._outages += outages
        if missed:
            self._missed += missed
            self._metrics.others_missed.inc(missed)
            log.warning("live envelopes of other mailservers missed count=%d", missed)


def _decoded(raws: Iterable[bytes]) -> list[Envelope]:
    """All that are envelopes: a row may be damaged, which whoever reads history finds out."""
    envelopes = []
    for raw in raws:
        try:
            envelopes.append(decode_envelope(raw))
        except DecodeError:
            continue
    return envelopes
