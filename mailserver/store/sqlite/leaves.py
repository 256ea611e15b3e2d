"""Leaves of a table, read without SQLite: where their cells are, and what the records in these say.

A page is not trusted: whatever it says, reading it ends, with values or with BadRow.

Format: SQLite, "Database File Format", 1.6 (B-tree pages), 2.1 (records).
"""

from collections.abc import Iterator

from mailserver.errors import DecodeError

TABLE_LEAF = 0x0D
_LEAF_HEADER_BYTES = 8
_MIN_CELL_BYTES = 4
MAX_VARINT_BYTES = 9


class BadRow(DecodeError):
    """A row is not as SQLite writes it; `str()` says why."""


def is_leaf(content: bytes) -> bool:
    """Whether a page says that it is a leaf of a table."""
    return content[:1] == bytes([TABLE_LEAF])


def cells(content: bytes) -> list[int]:
    """Where the cells of a leaf begin, according to the leaf, which may be wrong."""
    count = int.from_bytes(content[3:5], "big")
    count = min(count, len(content) // _MIN_CELL_BYTES)
    places = content[_LEAF_HEADER_BYTES : _LEAF_HEADER_BYTES + 2 * count]
    return [int.from_bytes(places[at : at + 2], "big") for at in range(0, len(places) - 1, 2)]


def short_rows(content: bytes) -> Iterator[tuple[object, ...]]:
    """The rows of a leaf, all of which end in it.

    Raises:
        BadRow: one does not.
    """
    for cell in cells(content):
        _, at = varint(content, cell)
        _, at = varint(content, at)
        header_bytes, place = varint(content, at)
        start, values = at + header_bytes, []
        while place < at + header_bytes:
            kind, place = varint(content, place)
            end = start + column_bytes(kind)
            if end > len(content):
                raise BadRow("it does not end in its page")
            values.append(column_value(kind, content[start:end]))
            start = end
        yield tuple(values)


def varint(content: bytes, at: int) -> tuple[int, int]:
    """A number of one to nine bytes, and where it ends."""
    value = 0
    for n, byte in enumerate(content[at : at + MAX_VARINT_BYTES]):
        if n == MAX_VARINT_BYTES - 1:
            return value << 8 | byte, at + n + 1
        value = value << 7 | byte & 0x7F
        if byte < 0x80:
            return value, at + n + 1
    raise BadRow("a number does not end")


def column_bytes(kind: int) -> int:
    """How many bytes a column takes."""
    if kind >= 12:
        return (kind - 12) // 2
    return (0, 1, 2, 3, 4, 6, 8, 8, 0, 0, 0, 0)[kind]


def column_value(kind: int, content: bytes) -> object:
    if kind >= 12:
        return content if kind % 2 == 0 else content.decode(errors="replace")
    if kind in (8, 9):
        return kind - 8
    return int.from_bytes(content, "big", signed=True) if 1 <= kind <= 6 else None
