"""Which received envelopes are accepted: time, size, proof of work, topic (6/WAKU1, as in the deployed node)."""

from collections import deque
from dataclasses import dataclass
from enum import Enum

from mailserver.waku.bloom import FULL_INTEREST, Interest
from mailserver.waku.envelope import Envelope
from mailserver.waku.packets import MAX_PACKET_BYTES, EnvelopeErrorCode

MAX_AHEAD_S = 10
"""How many seconds in our future an envelope may be created: clocks differ."""

MAX_EXPIRED_S = 20
"""An envelope that expired at most this long ago is just late. If it is longer, the clock of its sender is wrong."""

GRACE_PERIOD_S = 10.0
"""How long envelopes that meet the former requirements are accepted after a change: peers learn of it late."""

MAX_FORMER = 16
"""Most former requirements that are accepted at a time. If they change more often, the grace period is shorter."""

MAX_ENVELOPE_BYTES = MAX_PACKET_BYTES - 4
"""The longest envelope that fits alone into a packet, whose list header takes 4 bytes. A longer one could not be
delivered: deployed clients disconnect above MAX_PACKET_BYTES."""


class Verdict(Enum):
    """Whether a received envelope is accepted, or why not. `code`: what its sender is told, None for nothing."""

    ACCEPTED = "accepted"
    EXPIRED = "expired"
    VERY_OLD = "expired too long ago"
    FROM_THE_FUTURE = "created in the future"
    FORGED_TIME = "ttl is longer than the time since 1970"
    OVERSIZE = "envelope is too long"
    LOW_POW = "proof of work is too low"
    UNWANTED_TOPIC = "topic is not wanted here"
    TOPIC_LIMIT = "topic is over its rate limit"

    @property
    def code(self) -> EnvelopeErrorCode | None:
        """The error code for Message Response; an accepted or late envelope has none."""
        return _CODES.get(self)


_CODES = {
    Verdict.VERY_OLD: EnvelopeErrorCode.TIME_SYNC,
    Verdict.FROM_THE_FUTURE: EnvelopeErrorCode.TIME_SYNC,
    Verdict.FORGED_TIME: EnvelopeErrorCode.INVALID,
    Verdict.OVERSIZE: EnvelopeErrorCode.INVALID,
    Verdict.LOW_POW: EnvelopeErrorCode.INVALID,
    Verdict.UNWANTED_TOPIC: EnvelopeErrorCode.INVALID,
    Verdict.TOPIC_LIMIT: EnvelopeErrorCode.INVALID,
}


@dataclass(frozen=True, slots=True)
class Requirements:
    """What an envelope must have to be accepted.

    It needs a proof of work of at least `min_pow`, and a topic of `interest`; both are announced to peers. It has at
    most `max_envelope_bytes`, which is up to MAX_ENVELOPE_BYTES, and is not announced: Status has no option for it.
    """

    min_pow: float
    interest: Interest = FULL_INTEREST
    max_envelope_bytes: int = MAX_ENVELOPE_BYTES


class Acceptance:
    """Judges envelopes by the requirements in force and those that were in force in the last GRACE_PERIOD_S.

    The length has no grace period: peers never learn of it. Times are Unix seconds: they are compared with what
    envelopes claim.
    """

    def __init__(self, requirements: Requirements) -> None:
        self._current = requirements
        self._former: deque[tuple[Requirements, float]] = deque(maxlen=MAX_FORMER)  # with the times of their change

    @property
    def requirements(self) -> Requirements:
        """The requirements in force."""
        return self._current

    def change(self, requirements: Requirements, now: float) -> None:
        """Put new requirements in force."""
        if requirements != self._current:
            self._former.append((self._current, now))
        self._current = requirements

    def judge(self, envelope: Envelope, now: float) -> Verdict:
        """Judge one envelope. The cheap rules come first; the proof of work, which takes a hash, comes last."""
        seconds = int(now)
        raw, expiry, ttl, topic = envelope[:4]
        created = expiry - ttl
        if created > seconds + MAX_AHEAD_S:
            return Verdict.FROM_THE_FUTURE
        if expiry < seconds:
            return Verdict.VERY_OLD if expiry < seconds - MAX_EXPIRED_S else Verdict.EXPIRED
        if created < 0:
            return Verdict.FORGED_TIME
        current = self._current
        if len(raw) > current.max_envelope_bytes:
            return Verdict.OVERSIZE
        while self._former and abs(now - self._former[0][1]) >= GRACE_PERIOD_S:  # even if the clock was set back
            self._former.popleft()
        if (
            current.interest is not FULL_INTEREST
            and not current.interest.wants(topic)
            and not any(former.interest.wants(topic) for former, _ in self._former)
        ):
            return Verdict.UNWANTED_TOPIC
        min_pow = current.min_pow
        for former, _ in self._former:
            min_pow = min(min_pow, former.min_pow)
        # With no leading zero bit, the proof of work is 1 / (size * ttl). For an envelope from the future, ttl counts
        # as longer, by the seconds ahead and one more. If so little is enough, as for most envelopes with a short ttl,
        # no hash can fail. This bound is lower still, as the envelope is longer than its counted size.
        least_pow = 1 / len(raw) / (ttl + MAX_AHEAD_S + 1)
        if least_pow < min_pow and envelope.pow(max(created - seconds, 0)) < min_pow:
            return Verdict.LOW_POW
        return Verdict.ACCEPTED
