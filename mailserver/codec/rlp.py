"""RLP, strict: every length, depth and count is checked before anything is built from it.

The `rlp` package encodes and decodes. Before it sees a peer's bytes, one walk over the item headers refuses
what is not canonical, nests too deep or holds too many items: `rlp` recurses once per level, and its optional
Rust backend, which it picks by itself where it is installed, crashes the process on deep nesting.
Spec: Ethereum Yellow Paper, appendix B; the vectors are in `tests/vectors/rlptest.json`.
"""

from collections.abc import Sequence
from typing import TypeAlias

import rlp  # the package, not this module

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
    return bytes(rlp.encode(item, infer_serializer=False))


def encode_uint(value: int) -> bytes:
    """The big-endian bytes of an unsigned integer without leading zeros: the payload of its RLP string."""
    return value.to_bytes((value.bit_length() + 7) // 8, "big")


def decode(data: bytes, *, max_items: int = MAX_ITEMS) -> Item:
    """Decode exactly one item that fills `data`.

    Raises:
        DecodeError: not canonical, truncated, bytes left over, deeper than MAX_DEPTH, or more than `max_items`.
    """
    end = _check(data, max_items)
    if end != len(data):
        raise DecodeError("RLP item is followed by other bytes", got=len(data), limit=end)
    return _build(data)


def decode_first(data: bytes, *, max_items: int = MAX_ITEMS) -> Item:
    """Decode the item at the start of `data` and ignore what follows it (EIP-8).

    Raises:
        DecodeError: as `decode`, but for what follows.
    """
    return _build(data[: _check(data, max_items)])


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
    """Return the item if it is a string, and of `length` bytes if that is given.

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


def header(data: bytes, at: int, end: int) -> tuple[bool, int, int]:
    """Read one item header: whether it is a list, and where its payload starts and ends.

    Args:
        at: where the item starts.
        end: where the bytes that belong to the item's surroundings end; at most `len(data)`.
    Raises:
        DecodeError: truncated, longer than its surroundings, or not in its shortest form.
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


def _check(data: bytes, max_items: int) -> int:
    """Walk the first item with all that it holds; return where it ends."""
    is_list, at, first_end = header(data, 0, len(data))
    if not is_list:
        return first_end
    ends = [first_end]  # where each open list ends, outermost first
    items = 1
    while ends:
        if at == ends[-1]:
            ends.pop()
            continue
        is_list, start, stop = header(data, at, ends[-1])
        items += 1
        if items > max_items:
            raise DecodeError("RLP value holds too many items", limit=max_items)
        if is_list:
            if len(ends) >= MAX_DEPTH:
                raise DecodeError("RLP value is nested too deep", limit=MAX_DEPTH)
            ends.append(stop)
            at = start
        else:
            at = stop
    return first_end


def _build(data: bytes) -> Item:
    item: Item = rlp.decode(data)  # never refuses what `_check` let through, see tests/codec/test_rlp.py
    return item
