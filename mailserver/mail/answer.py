"""What may be in the answer to a history request (8/WAKU-MAIL "Receiving Historic Messages"): each envelope is compared
with what was asked for, and with those before it.

The order is newest first, by the second of creation: 10/WAKU-USAGE recommends it, and both this and the deployed
mailserver answer like that. Within a second they differ, so any order is right.
"""

from collections import Counter
from collections.abc import Sequence
from enum import Enum

from mailserver.mail.request import MailRequest
from mailserver.waku.envelope import MAX_U32, Envelope, EnvelopeHash

MAX_REMEMBERED = 100_000
"""How many envelopes back a double is noticed, over all pages. They take 12 MB."""


class AnswerFault(Enum):
    """What is wrong with an envelope of an answer."""

    OUT_OF_RANGE = "created outside of the range that was asked for"
    UNWANTED_TOPIC = "with a topic that was not asked for"
    TOO_MANY = "beyond the limit that was asked for"
    DOUBLE = "sent twice"
    OUT_OF_ORDER = "newer than the one before it"


class AnswerCheck:
    """Checks the pages of one answer. `faults` counts the envelopes that were wrong, by what was wrong with them."""

    def __init__(self) -> None:
        self.faults: Counter[AnswerFault] = Counter()
        self._first: dict[AnswerFault, EnvelopeHash] = {}
        self._remembered: dict[EnvelopeHash, None] = {}  # the oldest comes first
        self._request: MailRequest
        self._taken = 0
        self._previous: int | None = None

    def begin(self, request: MailRequest) -> None:
        """Another page is asked for. An `upper` of 0 stands for the mailserver's own present: any time is in range."""
        self._request = request
        self._taken = 0

    def right(self, envelopes: Sequence[Envelope]) -> list[Envelope]:
        """The envelopes that were asked for. One that is merely in the wrong place is among them, and counted."""
        return [envelope for envelope in envelopes if self._is_right(envelope)]

    def _is_right(self, envelope: Envelope) -> bool:
        request, envelope_hash = self._request, envelope.hash()
        self._taken += 1
        if not request.lower <= envelope.created <= (request.upper or MAX_U32):
            return self._note(AnswerFault.OUT_OF_RANGE, envelope_hash)
        if not request.interest.wants(envelope.topic):
            return self._note(AnswerFault.UNWANTED_TOPIC, envelope_hash)
        if envelope_hash in self._remembered:
            return self._note(AnswerFault.DOUBLE, envelope_hash)
        if request.limit and self._taken > request.limit:
            return self._note(AnswerFault.TOO_MANY, envelope_hash)
        if self._previous is not None and envelope.created > self._previous:
            self._note(AnswerFault.OUT_OF_ORDER, envelope_hash)
        self._previous = envelope.created
        self._remembered[envelope_hash] = None
        if len(self._remembered) > MAX_REMEMBERED:
            del self._remembered[next(iter(self._remembered))]
        return True

    def _note(self, fault: AnswerFault, envelope_hash: EnvelopeHash) -> bool:
        self.faults[fault] += 1
        self._first.setdefault(fault, envelope_hash)
        return False

    def __str__(self) -> str:
        """What was wrong, with one example of each."""
        return ", ".join(
            f"{count} {fault.value} ({'' if count == 1 else 'first: '}{self._first[fault].hex()})"
            for fault, count in self.faults.items()
        )
