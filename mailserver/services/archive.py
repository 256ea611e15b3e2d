"""Received envelope -> judged -> stored -> reported: the archive side of a mailserver."""

import asyncio
from collections.abc import Callable, Sequence

from mailserver.store.envelopes import EnvelopeStore
from mailserver.store.writer import NewEnvelope
from mailserver.waku.acceptance import Acceptance, Verdict
from mailserver.waku.envelope import Envelope
from mailserver.waku.packets import EnvelopeError, MessageResponse

_JUDGED_TOGETHER = 256  # takes 2 ms; a packet may hold many more

Clock = Callable[[], float]
"""Returns the present in Unix seconds."""


class Archive:
    """Takes live envelopes into the store."""

    def __init__(self, store: EnvelopeStore, acceptance: Acceptance, clock: Clock) -> None:
        self._store = store
        self._acceptance = acceptance
        self._clock = clock

    async def take(self, envelopes: Sequence[Envelope], batch_hash: bytes) -> MessageResponse:
        """Store what is acceptable of a Messages packet; return its confirmation once all of that is on disk.

        Raises:
            StoreError: it is not on disk, or not all: the packet must not be confirmed.
        """
        accepted: list[NewEnvelope] = []
        errors: list[EnvelopeError] = []
        for at in range(0, len(envelopes), _JUDGED_TOGETHER):
            if at:
                await asyncio.sleep(0)  # others' turn
            self._judge(envelopes[at : at + _JUDGED_TOGETHER], accepted, errors)
        if accepted:
            await self._store.put(accepted)
        return MessageResponse(batch_hash, tuple(errors))

    def _judge(self, envelopes: Sequence[Envelope], accepted: list[NewEnvelope], errors: list[EnvelopeError]) -> None:
        now = self._clock()
        received = int(now)
        for envelope in envelopes:
            verdict = self._acceptance.judge(envelope, now)
            if verdict is Verdict.ACCEPTED:
                accepted.append(NewEnvelope(received, envelope.created, envelope.topic, envelope.hash(), envelope.raw))
            elif verdict.code is not None:
                errors.append(EnvelopeError(envelope.hash(), verdict.code, verdict.value))
