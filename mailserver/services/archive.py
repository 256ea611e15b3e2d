"""Received envelope -> judged -> stored -> reported: the archive side of a mailserver."""

from collections import Counter
from collections.abc import Callable, Sequence

from mailserver.store.envelopes import EnvelopeStore
from mailserver.store.writer import NewEnvelope
from mailserver.waku.acceptance import Acceptance, Verdict
from mailserver.waku.envelope import Envelope
from mailserver.waku.packets import EnvelopeError, MessageResponse

Clock = Callable[[], float]
"""Returns the present in Unix seconds."""


class Archive:
    """Takes live envelopes into the store."""

    def __init__(self, store: EnvelopeStore, acceptance: Acceptance, clock: Clock) -> None:
        self._store = store
        self._acceptance = acceptance
        self._clock = clock
        self.verdicts: Counter[Verdict] = Counter()

    def judge(self, envelopes: Sequence[Envelope]) -> tuple[list[NewEnvelope], list[EnvelopeError]]:
        """Tell which envelopes of a packet are to be stored, and what to say about the others."""
        now = self._clock()
        received = int(now)
        accepted, errors = [], []
        judge = self._acceptance.judge
        for envelope in envelopes:
            verdict = judge(envelope, now)
            if verdict is Verdict.ACCEPTED:
                accepted.append(NewEnvelope(received, envelope.created, envelope.topic, envelope.hash(), envelope.raw))
            elif verdict.code is not None:
                errors.append(EnvelopeError(envelope.hash(), verdict.code, verdict.value))
            self.verdicts[verdict] += 1
        return accepted, errors

    async def take(self, envelopes: Sequence[Envelope], batch_hash: bytes) -> MessageResponse:
        """Store what is acceptable of a Messages packet; return its confirmation once all of that is on disk.

        Raises:
            StoreError: it is not on disk, or not all: the packet must not be confirmed.
        """
        accepted, errors = self.judge(envelopes)
        if accepted:
            await self._store.put(accepted)
        return MessageResponse(batch_hash, tuple(errors))
