"""How a move has ended, as it is shown."""

from collections.abc import Sequence
from dataclasses import dataclass

from mailserver.ids.muid import Muid


@dataclass(frozen=True, slots=True)
class StoreDifference:
    """Envelopes that only one of the stores has. `is_all`: whether these are all, as far as they have ids."""

    muids: Sequence[Muid]
    is_all: bool

    @property
    def count(self) -> int:
        """How many were found."""
        return len(self.muids)

    def as_json(self) -> dict[str, object]:
        """As a JSON object with all of them."""
        return {"count": self.count, "is_all": self.is_all, "ids": [muid.hex() for muid in self.muids]}


@dataclass(frozen=True, slots=True)
class MoveReport:
    """What was done, in this run and those before that it went on with.

    `moved`: envelopes that were put into the target. `there`: those that it had. `set_aside`: rows that are not what
    was stored. `missing`: envelopes of the source that the target lacks, in spite of all. `pruned`: how many more it
    lacks that are not newer than what it has pruned by itself. `more`: what only the target has; None: it
    was not looked for. `compared`: how many envelopes the source had at the end.
    """

    moved: int
    there: int
    set_aside: int
    missing: StoreDifference
    pruned: int
    more: StoreDifference | None
    compared: int

    @property
    def is_whole(self) -> bool:
        """Whether all that the source has is in the target."""
        return not self.set_aside and not self.missing.count
