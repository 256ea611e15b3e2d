"""Takes in the live envelopes that other mailservers on the same store have put into it."""

import asyncio
import logging
from collections.abc import Iterable

from mailserver.errors import DecodeError
from mailserver.live.intake import Intake
from mailserver.metrics.registry import Metrics
from mailserver.store.others import Others
from mailserver.waku.envelope import Envelope, decode_envelope

log = logging.getLogger(__name__)


class OthersIntake:
    """Reads what others have put, and hands it to the intake. What they put while we are too slow is left out."""

    def __init__(self, others: Others, intake: Intake, metrics: Metrics) -> None:
        self._others = others
        self._intake = intake
        self._metrics = metrics
        self._missed = 0

    async def begin(self) -> None:
        """Listen to the others: whatever they put from now on is heard."""
        await self._others.begin()

    async def run(self) -> None:
        """Take in what they put, until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._others.run())
            while True:
                raws = await self._others.read()
                self._count_missed()
                await self._intake.take_of_others(_decoded(raws))

    def _count_missed(self) -> None:
        missed = self._others.missed - self._missed
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
