"""A manifest: which tables a database has at the moment, and from which journal on its entries are in no table yet.

It is a journal, each record of which changes what those before it say. Spec: `doc/impl.md`, "Manifest"; the tags are
those of LevelDB's `db/version_edit.cc`.
"""

from dataclasses import dataclass, field
from enum import IntEnum
from typing import NamedTuple

from mailserver.errors import DecodeError
from mailserver.leveldb.entries import U32_BITS, U64_BITS, EntryOrder, decode_order, read_bytes, read_number

COMPARATOR = b"leveldb.BytewiseComparator"
"""Keys are in the order of their bytes. A Go mailserver's are in no other."""


class _Tag(IntEnum):
    COMPARATOR = 1
    JOURNAL = 2
    NEXT_FILE = 3
    LAST_SEQUENCE = 4
    COMPACT_POINTER = 5
    DELETED_TABLE = 6
    NEW_TABLE = 7
    PREVIOUS_JOURNAL = 9


class Table(NamedTuple):
    """A table: the number of its file, how long it is, and the place of its first entry."""

    number: int
    size: int
    first: EntryOrder


@dataclass(slots=True)
class Version:
    """What the records of a manifest say together."""

    comparator: bytes = b""
    journal: int = 0
    """The number of the first journal that is not in tables."""
    previous_journal: int = 0
    """That of one more, in databases of earlier versions of LevelDB; 0: none."""
    _tables: dict[tuple[int, int], Table] = field(default_factory=dict)

    @property
    def tables(self) -> list[Table]:
        """All tables."""
        return list(self._tables.values())

    def has_journal(self, number: int) -> bool:
        """Whether a journal has what is in no table."""
        return number >= self.journal or number == self.previous_journal != 0

    def apply(self, record: bytes) -> None:
        """Change it as a record says.

        Raises:
            DecodeError: it is something else. What it says may have been applied in part.
        """
        at = 0
        while at < len(record):
            tag, at = read_number(record, at, U32_BITS)
            match tag:
                case _Tag.COMPARATOR:
                    self.comparator, at = read_bytes(record, at)
                case _Tag.JOURNAL:
                    self.journal, at = read_number(record, at, U64_BITS)
                case _Tag.PREVIOUS_JOURNAL:
                    self.previous_journal, at = read_number(record, at, U64_BITS)
                case _Tag.NEXT_FILE | _Tag.LAST_SEQUENCE:
                    _, at = read_number(record, at, U64_BITS)
                case _Tag.COMPACT_POINTER:
                    _, at = read_number(record, at, U32_BITS)
                    _, at = read_bytes(record, at)
                case _Tag.DELETED_TABLE:
                    level, at = read_number(record, at, U32_BITS)
                    number, at = read_number(record, at, U64_BITS)
                    self._tables.pop((level, number), None)
                case _Tag.NEW_TABLE:
                    at = self._add(record, at)
                case _:
                    raise DecodeError("tag of a manifest is unknown", got=tag)

    def _add(self, record: bytes, at: int) -> int:
        level, at = read_number(record, at, U32_BITS)
        number, at = read_number(record, at, U64_BITS)
        size, at = read_number(record, at, U64_BITS)
        first, at = read_bytes(record, at)
        _, at = read_bytes(record, at)
        self._tables[level, number] = Table(number, size, decode_order(first))
        return at
