"""What one history request asked for and how it ended: its metrics, and its line in the log.

The line says which peer asked, and for how much, but not for what: topics are counted, not named. It has no address.
"""

import logging
from dataclasses import dataclass

from mailserver.codec.keys import NodeId
from mailserver.errors import Rejection
from mailserver.mail.request import MailRequest, RequestId
from mailserver.metrics.labels import Outcome, RequestKind
from mailserver.metrics.registry import Metrics
from mailserver.waku.bloom import FULL_INTEREST, Interest

log = logging.getLogger(__name__)


@dataclass(slots=True)
class RequestRecord:
    """One request. Times are monotonic seconds.

    `found_at`, `first_at`: when the page was found, and when its first envelopes were handed to the connection.
    `lower`, `upper`: the bounds in force, Unix seconds. `topics`: how many, 0 for a bloom filter. `is_clear`: the
    request came without an envelope. `follows_cursor`: it asks for a further page. `is_counted`: it counts against the
    limits of its peer and address, which also limits how many such lines there are. `work`: how much the source worked
    for it. `is_early`: the search ended before the page was full or everything was searched. `archived`: how many of
    its envelopes came from the archive.
    """

    peer: NodeId
    began: float
    request_id: RequestId
    kind: RequestKind = RequestKind.UNREADABLE
    is_counted: bool = True
    is_clear: bool = False
    follows_cursor: bool = False
    lower: int = 0
    upper: int = 0
    topics: int = 0
    limit: int = 0
    found_at: float | None = None
    first_at: float | None = None
    work: int = 0
    is_early: bool = False
    envelopes: int = 0
    archived: int = 0
    bytes: int = 0
    outcome: Outcome = Outcome.LOST
    rejection: Rejection | None = None
    cause: str = ""

    def asks(self, request: MailRequest, *, lower: int, upper: int, limit: int) -> None:
        """Note what it asks for, once it was decoded."""
        self.kind = _kind(request.interest)
        self.follows_cursor = request.cursor is not None
        self.lower, self.upper, self.limit = lower, upper, limit
        self.topics = len(request.interest.topics or ())

    def sent(self, count: int, size: int, now: float, *, archived: int = 0) -> None:
        """Note a packet that was sent: its envelopes, its bytes, and how many of its envelopes came from the
        archive."""
        if self.first_at is None:
            self.first_at = now
        self.envelopes += count
        self.archived += archived
        self.bytes += size

    def refused(self, rejection: Rejection, cause: str) -> None:
        """Note why it was refused; `cause` is for the log."""
        self.rejection, self.cause = rejection, cause

    def end(self, metrics: Metrics, now: float) -> None:
        """Count the request, which has ended, and log its line."""
        labels = self.kind.value, self.outcome.value
        metrics.requests.labels(*labels).inc()
        if self.rejection is not None:
            metrics.requests_rejected[self.rejection].inc()
        metrics.search_work.labels(self.kind.value).inc(max(0, self.work))
        metrics.pages_ended_early.inc(self.is_early)
        metrics.delivery_duration.labels(*labels).observe(now - self.began)
        if self.first_at is not None:
            metrics.delivery_first_packet.labels(*labels).observe(self.first_at - self.began)
            metrics.delivered.labels(*labels).inc(self.envelopes)
            metrics.delivered_bytes.labels(*labels).inc(self.bytes)
            metrics.delivered_archived.inc(self.archived)
        log.log(
            self._level,
            "request outcome=%s id=%s peer=%s kind=%s form=%s lower=%d upper=%d topics=%d limit=%d cursor=%s"
            " work=%d early=%s envelopes=%d archived=%d bytes=%d find_ms=%s first_ms=%s ms=%s cause=%r",
            self.outcome.value,
            self.request_id.hex()[:8],
            self.peer.hex()[:8],
            self.kind.value,
            "clear" if self.is_clear else "sealed",
            self.lower,
            self.upper,
            self.topics,
            self.limit,
            "yes" if self.follows_cursor else "no",
            self.work,
            "yes" if self.is_early else "no",
            self.envelopes,
            self.archived,
            self.bytes,
            self._ms(self.found_at),
            self._ms(self.first_at),
            self._ms(now),
            self.cause,
        )

    @property
    def _level(self) -> int:
        if self.outcome is Outcome.FAILED:
            return logging.ERROR
        # A stranger can send any number of requests that do not count, so these are below the default level.
        return logging.INFO if self.is_counted and self.rejection is not Rejection.RATE_LIMITED else logging.DEBUG

    def _ms(self, moment: float | None) -> float | str:
        return "-" if moment is None else round((moment - self.began) * 1000, 1)


def _kind(interest: Interest) -> RequestKind:
    if interest.topics is not None:
        return RequestKind.TOPICS
    return RequestKind.EVERYTHING if interest == FULL_INTEREST else RequestKind.BLOOM
