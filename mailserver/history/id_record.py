"""What one question about message ids asked for and how it ended: its metrics, and its line in the log.

Like a history request's line, it says which peer asked, and for how much, but not for what.
"""

import logging
from dataclasses import dataclass

from mailserver.codec.keys import NodeId
from mailserver.errors import Rejection
from mailserver.metrics.labels import IdRequestKind, Outcome
from mailserver.metrics.registry import Metrics

log = logging.getLogger(__name__)


@dataclass(slots=True)
class IdRecord:
    """One question. Times are monotonic seconds.

    `lower`, `upper`: the bounds that it names, Unix seconds. `topics`: how many, 0 for all or a bloom filter. `asked`:
    how many ids it has. `is_counted`: as in `RequestRecord`. `work`: how much store and archive worked for
    it. `ids`, `envelopes`, `bytes`: what it was given. `archived`: how many of the envelopes came from the archive.
    """

    peer: NodeId
    began: float
    request_id: int
    kind: IdRequestKind = IdRequestKind.UNREADABLE
    is_counted: bool = True
    lower: int = 0
    upper: int = 0
    topics: int = 0
    asked: int = 0
    work: int = 0
    ids: int = 0
    envelopes: int = 0
    archived: int = 0
    bytes: int = 0
    outcome: Outcome = Outcome.LOST
    rejection: Rejection | None = None
    cause: str = ""

    def refused(self, rejection: Rejection, cause: str) -> None:
        """Note why it was refused; `cause` is for the log."""
        self.rejection, self.cause = rejection, cause

    def end(self, metrics: Metrics, now: float) -> None:
        """Count the question, which has ended, and log its line."""
        metrics.id_requests.labels(self.kind.value, self.outcome.value).inc()
        if self.rejection is not None:
            metrics.requests_rejected[self.rejection].inc()
        metrics.id_work.labels(self.kind.value).inc(max(0, self.work))
        metrics.id_duration.labels(self.kind.value).observe(now - self.began)
        metrics.listed_ids.inc(self.ids)
        metrics.envelopes_by_id.inc(self.envelopes)
        metrics.delivered_archived.inc(self.archived)
        log.log(
            self._level,
            "ids outcome=%s id=%d peer=%s kind=%s lower=%d upper=%d topics=%d asked=%d work=%d ids=%d envelopes=%d"
            " archived=%d bytes=%d ms=%s cause=%r",
            self.outcome.value,
            self.request_id,
            self.peer.hex()[:8],
            self.kind.value,
            self.lower,
            self.upper,
            self.topics,
            self.asked,
            self.work,
            self.ids,
            self.envelopes,
            self.archived,
            self.bytes,
            round((now - self.began) * 1000, 1),
            self.cause,
        )

    @property
    def _level(self) -> int:
        if self.outcome is Outcome.FAILED:
            return logging.ERROR
        return logging.INFO if self.is_counted and self.rejection is not Rejection.RATE_LIMITED else logging.DEBUG
