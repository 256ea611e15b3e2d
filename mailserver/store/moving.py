"""What moving a store's envelopes into another store needs of both, whichever engines they have.

The one that is moved from is read in the order of arrival, and a mailserver may be writing it meanwhile. How far that
has come is kept with the store that is moved to: whatever is restored or replaced, both go together.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import NamedTuple, NewType, Protocol

from mailserver.handoff.json_records import Record, count_of, field_of
from mailserver.store.message_ids import MessageIds, StoreWithIds

SourcePlace = NewType("SourcePlace", int)
"""A place in the order in which a source is read: a number of its own, above 0, that names a row."""

BEFORE_ALL = SourcePlace(0)

NEVER = -1
"""Up to when nothing was pruned, in Unix seconds of creation."""


class ReadRow(NamedTuple):
    """A row as the engine has it: received, created, topic, prefix of the hash, raw. Damaged ones may be anything.

    `why`: why it is none, if that is known already.
    """

    place: SourcePlace
    columns: Sequence[object]
    why: str = ""


class ReadRows(NamedTuple):
    """Rows in the order in which they are read. `is_all`: whether nothing follows at the moment."""

    rows: Sequence[ReadRow]
    is_all: bool


class MoveSource(Protocol):
    """A store that is moved from: it only reads. All methods raise StoreError."""

    @property
    def message_ids(self) -> MessageIds | None:
        """The ids of its envelopes; None if it keeps none, and its order is not that of arrival."""

    async def identity(self) -> str:
        """An identity that no other store has."""

    async def envelopes(self) -> int:
        """How many there are, as far as that is known; nothing is counted for it."""

    async def pruned_until(self) -> int:
        """Nothing that was created later than this was ever pruned, in Unix seconds; NEVER if nothing was."""

    async def after(self, place: SourcePlace, limit: int, max_bytes: int) -> ReadRows:
        """Read the first `limit` rows after a place; they end with the one that reaches `max_bytes`."""


@dataclass(frozen=True, slots=True)
class Moved:
    """How far a store was moved into another.

    `source`, `target`: their identities. `place`: all that arrived in the source up to there was looked at. `moved`:
    how many envelopes were put into the target. `there`: how many it had already. `set_aside`: how many rows are not
    what was stored. `adopted`: what the target was told that the source had pruned.
    """

    source: str
    target: str
    place: int = 0
    moved: int = 0
    there: int = 0
    set_aside: int = 0
    adopted: int = NEVER

    @property
    def looked_at(self) -> int:
        """How many rows."""
        return self.moved + self.there + self.set_aside

    def as_record(self) -> dict[str, object]:
        """As a JSON object."""
        return asdict(self)

    @classmethod
    def from_record(cls, record: Record) -> "Moved":
        """Read what `as_record` makes.

        Raises:
            ValueError: it is something else.
        """
        counts = {name: count_of(name, record.get(name)) for name in ("place", "moved", "there", "set_aside")}
        adopted = field_of(record, "adopted", int)
        return cls(field_of(record, "source", str), field_of(record, "target", str), **counts, adopted=adopted)


class MoveRecord(Protocol):
    """Where a store keeps how far another was moved into it."""

    async def read(self) -> Moved | None:
        """Read it; None if there is none.

        Raises:
            StoreError: it cannot be read.
        """

    async def write(self, moved: Moved) -> None:
        """Write it in place of the one before.

        Raises:
            StoreError: it cannot be written; what was there is still there.
        """


class MoveTarget(StoreWithIds, Protocol):
    """A store that another can be moved into: every engine's."""

    @property
    def move_record(self) -> MoveRecord:
        """How far another was moved into it."""

    async def note_pruned(self, until: int) -> int:
        """Note that what was created up to `until` (Unix seconds) may have been pruned; NEVER notes nothing.

        Returns:
            Up to when anything was pruned, whoever has done it.
        Raises:
            StoreError: it cannot be noted.
        """
