"""What one source has given: each envelope is judged, and stored if it is right and missing here."""

import asyncio
from collections import Counter
from collections.abc import Hashable, Sequence

from mailserver.catchup.page_rules import Judge, JudgedPage, Lie, SourceLies, Wrong
from mailserver.catchup.ranges import MissingRange
from mailserver.live.intake import Clock
from mailserver.store.interface import Store
from mailserver.waku.acceptance import Acceptance
from mailserver.waku.envelope import Envelope

MAX_WRONG = 100
"""How many wrong envelopes a source may give before we say that it lies: another clock or setting explains some."""

_JUDGED_TOGETHER = 256  # takes 2 ms


class Taking:
    """Takes envelopes of one source.

    `pages`: how many answers brought them; `fetched`: how many came; `stored`: how many of them were missing here;
    `wrong`: how many were dropped, by kind.
    """

    def __init__(self, store: Store, acceptance: Acceptance, clock: Clock, source: Hashable) -> None:
        self._store = store
        self._acceptance = acceptance
        self._clock = clock
        self._source = source
        self._judge = Judge(acceptance.requirements)
        self._lies = 0
        self.pages = self.fetched = self.stored = 0
        self.wrong: Counter[Wrong] = Counter()

    def judge(self) -> Judge:
        """The rules that are in force now."""
        requirements = self._acceptance.requirements
        if requirements is not self._judge.requirements:
            self._judge = Judge(requirements)
        return self._judge

    async def take(
        self, envelopes: Sequence[Envelope], judge: Judge, asked: MissingRange, *, announced_pow: float
    ) -> JudgedPage:
        """Store the envelopes that are right and missing here.

        Args:
            judge: the rules by which they were asked for.
            asked: the range that the source was asked for.
            announced_pow: the proof of work that the source asks of envelopes.
        Raises:
            SourceLies: there have been too many wrong envelopes.
            StoreError: the envelopes are not on disk, or not all of them.
        """
        judged = JudgedPage(judge, asked, self._clock())
        for at in range(0, len(envelopes), _JUDGED_TOGETHER):
            if at:
                await asyncio.sleep(0)  # others get their turn
            judged.add(envelopes[at : at + _JUDGED_TOGETHER])
        self._count_wrong(judged.wrong, judge, announced_pow)
        missing = await self._store.missing(list(judged.right.values()))
        if missing:
            await self._store.put(missing, source=self._source)
        self.pages += 1
        self.fetched += len(envelopes)
        self.stored += len(missing)
        if self._lies > MAX_WRONG:
            raise SourceLies(Lie.WRONG_ENVELOPES)
        return judged

    def forgive(self) -> None:
        """Count lies anew."""
        self._lies = 0

    def _count_wrong(self, wrong: Counter[Wrong], judge: Judge, announced_pow: float) -> None:
        self.wrong += wrong
        # An honest source that asks its peers for less work than we do has such envelopes, and a request cannot say
        # what work or length we want.
        honest = {Wrong.OVERSIZE} | ({Wrong.LOW_POW} if announced_pow < judge.requirements.min_pow else set())
        self._lies += sum(count for kind, count in wrong.items() if kind not in honest)
