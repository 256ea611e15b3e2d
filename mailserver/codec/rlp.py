"""RLP, strict: every length, depth and count is checked before anything is built from it.

One walk over the item headers refuses what is not canonical, nests too deep or holds too many items. The `rlp` package
would take two to four times as long, a second walk for these bounds, as it recurses once per level, and 17 MB more.
Tests compare this module with it.
Spec: Ethereum Yellow Paper, appendix B; the vectors are in `tests/vectors/rlptest.json`.
"""

from collections.abc import Sequence
from typing import TypeAlias

from mailserver.errors import DecodeError

Item: TypeAlias = "bytes | list[Item]"
"""What decoding gives: byte strings, and lists of items."""

Encodable: TypeAlias = "bytes | Sequence[Encodable]"

MAX_DEPTH = 8
"""Deepest list within a list that is decoded; the deepest packet of Waku v1 (Message Response) needs 4."""

MAX_ITEMS = 20_000
"""Most items, lists included, in one decoded value; a topic interest of 10,000 topics needs 10,004."""


def encode(item: Encodable) -> bytes:
    """Encode byte strings and (nested) sequences of them. Integers go through `encode_uint` first."""
    if isinstance(item, bytes):
        return item if len(item) == 1 and item[0] < 0x80 else _prefix(0x80, len(item)) + item
    body = b"".join(map(encode, item))
    return list_prefix(len(body)) + body


def encode_strings(strings: Sequence[bytes]) -> bytes:
    """Encode a list of byte strings as `encode` does; in a seventh of the time, if all have the same length."""
    lengths = {*map(len, strings)}
    if len(lengths) != 1 or lengths == {1}:
        return encode(strings)
    prefix = _prefix(0x80, lengths.pop())
    body = prefix + prefix.join(strings)
    return list_prefix(len(body)) + body


def list_prefix(length: int) -> bytes:
    """What stands before the items of a list, if these take so many bytes."""
    return _prefix(0xC0, length)


def encode_uint(value: int) -> bytes:
    """The big-endian bytes of an unsigned integer without leading zeros: the payload of its RLP string."""
    return value.to_bytes((value.bit_length() + 7) // 8, "big")


def decode(data: bytes, *, max_items: int = MAX_ITEMS) -> Item:
    """Decode exactly one item that fills `data`.

    Raises:
        DecodeError: not canonical, truncated, bytes left over, deeper than MAX_DEPTH, or more than `max_items`.
    """
    item, end = _read(data, max_items)
    if end != len(data):
        raise DecodeError("RLP item is followed by other bytes", got=len(data), limit=end)
    return item


def decode_first(data: bytes, *, max_items: int = MAX_ITEMS) -> Item:
    """Decode the item at the start of `data` and ignore what follows it (EIP-8).

    Raises:
        DecodeError: as `decode`, but for what follows.
    """
    return _read(data, max_items)[0]


def decode_list(data: bytes, *, max_items: int = MAX_ITEMS) -> list[Item]:
    """Decode one item that must be a list.

    Raises:
        DecodeError: as `decode`, or the item is a string.
    """
    return as_list(decode(data, max_items=max_items))


def as_list(item: Item) -> list[Item]:
    """Return the item if it is a list.

    Raises:
        DecodeError: it is a string.
    """
    if isinstance(item, bytes):
        raise DecodeError("expected an RLP list", got="a string")
    return item


def as_bytes(item: Item, length: int | None = None) -> bytes:
    """Return the item if it is a string, of `length` bytes if that is given.

    Raises:
        DecodeError: it is a list, or of another length.
    """
    if not isinstance(item, bytes):
        raise DecodeError("expected an RLP string", got="a list")
    if length is not None and len(item) != length:
        raise DecodeError("RLP string has the wrong length", got=len(item), limit=length)
    return item


def as_uint(item: Item, max_bytes: int) -> int:
    """Return the item as an unsigned integer of at most `max_bytes`, in its shortest form.

    Raises:
        DecodeError: a list, too long, or with leading zeros.
    """
    data = as_bytes(item)
    if len(data) > max_bytes:
        raise DecodeError("RLP integer is too long", got=len(data), limit=max_bytes)
    if data[:1] == b"\x00":
        raise DecodeError("RLP integer has leading zeros")
    return int.from_bytes(data, "big")


def header(data: bytes | bytearray, at: int, end: int) -> tuple[bool, int, int]:
    """Read one item header: whether it is a list, and where its payload starts and ends.

    Args:
        at: where the item starts.
        end: where the list around the item ends; at most `len(data)`.
    Raises:
        DecodeError: truncated, longer than the list around it, or not in its shortest form.
    """
    if at >= end:
        raise DecodeError("RLP item is truncated")
    prefix = data[at]
    if prefix < 0x80:  # a byte that is its own encoding
        return False, at, at + 1
    is_list = prefix >= 0xC0
    length = prefix - (0xC0 if is_list else 0x80)
    start = at + 1
    if length > 55:  # the length itself follows, in 1 to 8 bytes
        width = length - 55
        if start + width > end:
            raise DecodeError("RLP item is truncated")
        length = int.from_bytes(data[start : start + width], "big")
        if length < 56 or data[start] == 0:
            raise DecodeError("RLP length is not in its shortest form")
        start += width
    stop = start + length
    if stop > end:
        raise DecodeError("RLP item is longer than what holds it", got=length, limit=end - start)
    if length == 1 and not is_list and data[start] < 0x80:
        raise DecodeError("RLP string of one byte is not in its shortest form")
    return is_list, start, stop


def equal_strings(data: bytes, at: int, end: int) -> list[bytes] | None:
    """Read the items of a list, from `at` to `end`, if they are byte strings of one length, from 2 to 55 bytes.

    It takes a third of the time of `decode`: one comparison finds all their headers. None: they are something else, or
    there are none.
    """
    length = data[at] - 0x80 if at < end else 0
    count, rest = divmod(end - at, length + 1) if 1 < length < 56 else (0, 0)
    if not count or rest or data[at : end : length + 1] != data[at : at + 1] * count:
        return None
    return [data[start : start + length] for start in range(at + 1, end, length + 1)]


def _prefix(kind: int, length: int) -> bytes:
    """What stands before a payload of this length; `kind` is 0x80 for a string and 0xC0 for a list."""
    if length < 56:
        return bytes((kind + length,))
    size = encode_uint(length)
    return bytes((kind + 55 + len(size),)) + size


def _read(data: bytes, max_items: int) -> tuple[Item, int]:
    """Read the first item with all that it holds; return it, and where it ends."""
    is_list, at, first_end = header(data, 0, len(data))
    if not is_list:
        return data[at:first_end], first_end
    first: list[Item] = []
    holder, end = first, first_end
    around: list[tuple[list[Item], int]] = []  # the lists around this one, and where they end
    items = 1
    while at < end or around:
        if at == end:
            holder, end = around.pop()
            continue
        is_list, start, stop = header(data, at, end)
        items += 1
        if items > max_items:
            raise DecodeError("RLP value holds too many items", limit=max_items)
        if is_list:
            if len(around) + 1 >= MAX_DEPTH:
                raise DecodeError("RLP value is nested too deep", limit=MAX_DEPTH)
            within: list[Item] = []
            holder.append(within)
            around.append((holder, end))
            holder, at, end = within, start, stop
        else:
            holder.append(data[start:stop])
            at = stop
    return first, first_end
