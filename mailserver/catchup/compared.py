"""What a comparison of a store with its archive has found, and how it is shown. It imports nothing of the archive."""

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Protocol

from mailserver.live.intake import Clock
from mailserver.waku.acceptance import Acceptance


@dataclass(frozen=True, slots=True)
class Compared:
    """How far a comparison is, newest first.

    `upper`, `lower`: what is to be compared, Unix seconds of creation, inclusive; `lower` is above `upper` if that is
    nothing. `reached`: all that was created in this second or later was compared. `archived`: envelopes of the archive
    there. `missing`: how many of them the store lacked. `stored`: how many of those it has now. `refused`: how many it
    has not, as the settings do not accept them. `unarchived`: envelopes of the store that the archive lacks.
    """

    lower: int
    upper: int
    reached: int
    archived: int = 0
    missing: int = 0
    stored: int = 0
    refused: int = 0
    unarchived: int = 0

    def as_json(self) -> dict[str, int]:
        """As a JSON object."""
        return asdict(self)

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> "Compared":
        """Read what `as_json` makes."""
        return cls(**{name: int(number) for name, number in value.items()})

    @property
    def is_complete(self) -> bool:
        """Whether the store has all that the archive has there and the settings accept."""
        return self.missing == self.stored + self.refused

    def overview(self) -> tuple[str, int, int]:
        """How far it is: in words, and as seconds of creation times, done and asked for."""
        text = f"{self.archived} envelopes of the archive, {self.missing} of them missing here"
        return text, max(0, self.upper + 1 - self.reached), max(1, self.upper + 1 - self.lower)

    def report(self, *, as_json: bool) -> str:
        """How it ended: a line, or a JSON object."""
        if as_json:
            return json.dumps(self.as_json())
        text = f"archive: {self.archived} envelopes compared, {self.missing} of them missing here, {self.stored} stored"
        if self.refused:
            text += f", {self.refused} dropped (not accepted by the settings)"
        return f"{text}; {self.unarchived} of the store's are not in the archive"


class CompareWithArchive(Protocol):
    """`catchup.archived.compare_with_archive` of a store and an archive."""

    async def __call__(
        self,
        acceptance: Acceptance,
        clock: Clock,
        *,
        since: int,
        until: int,
        takes: bool,
        show: Callable[[Compared], None],
    ) -> Compared:
        """Compare the two, and store what only the archive has."""
