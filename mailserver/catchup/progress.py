"""How far catching up from a source is, as the log, the metrics and commands show it."""

import logging
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from enum import Enum
from typing import Any

from mailserver.catchup.page_rules import Wrong

log = logging.getLogger(__name__)


class SourceState(Enum):
    """What is going on with a source."""

    FETCHING = "fetching"
    WAITING = "waiting"
    SET_ASIDE = "left alone"
    DONE = "done"
    GIVEN_UP = "given up"


@dataclass(frozen=True, slots=True)
class SourceProgress:
    """How far catching up from one source is.

    `ranges` and `left_s`: how many ranges of creation times are to be asked for, and how many seconds they span.
    `fetched`: envelopes that came; `stored`: those that were missing here; `wrong`: those that were dropped.
    `seconds`: how long the source was connected or being dialled. `problem`: what went wrong last, if it still is;
    `failures`: how often in a row. `is_hopeless`: asking again soon would fail in the same way.
    """

    source: str
    state: SourceState
    ranges: int
    left_s: int
    pages: int
    fetched: int
    stored: int
    wrong: Mapping[Wrong, int]
    seconds: float
    problem: str
    failures: int
    is_hopeless: bool = False

    def since(self, before: "SourceProgress") -> "SourceProgress":
        """The same, counted from an earlier moment on."""
        wrong = Counter(self.wrong) - Counter(before.wrong)
        return replace(
            self,
            pages=self.pages - before.pages,
            fetched=self.fetched - before.fetched,
            stored=self.stored - before.stored,
            wrong=dict(wrong),
            seconds=self.seconds - before.seconds,
        )

    def log_state(self) -> None:
        """Log how far it is."""
        log.info(
            "catching up source=%s left_s=%d pages=%d fetched=%d stored=%d wrong=%d seconds=%.1f",
            self.source,
            self.left_s,
            self.pages,
            self.fetched,
            self.stored,
            sum(self.wrong.values()),
            self.seconds,
        )

    def log_end(self) -> None:
        """Log that the source has given everything."""
        log.info(
            "caught up source=%s pages=%d fetched=%d stored=%d wrong=%d seconds=%.1f",
            self.source,
            self.pages,
            self.fetched,
            self.stored,
            sum(self.wrong.values()),
            self.seconds,
        )

    def as_json(self) -> dict[str, Any]:
        """The same as a JSON object."""
        return asdict(self) | {
            "state": self.state.value,
            "wrong": {wrong.name.lower(): count for wrong, count in self.wrong.items()},
        }

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> "SourceProgress":
        """Read what `as_json` made.

        Raises:
            ValueError, KeyError, TypeError: it was not made by `as_json`.
        """
        wrong = {Wrong[name.upper()]: count for name, count in fields["wrong"].items()}
        return cls(**{**fields, "state": SourceState(fields["state"]), "wrong": wrong})
