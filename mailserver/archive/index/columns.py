"""Columns of the archive as numpy has them."""

import numpy as np
import pyarrow as pa

Numbers = np.ndarray[tuple[int], np.dtype[np.int64]]
Numbers32 = np.ndarray[tuple[int], np.dtype[np.uint32]]
Bytes = np.ndarray[tuple[int, int], np.dtype[np.uint8]]


def numbers_of(column: pa.Array | pa.ChunkedArray) -> Numbers:
    """A column of integers.

    Raises:
        ValueError: a value is missing.
    """
    if column.null_count:
        raise ValueError("a value is missing")
    numbers: Numbers = column.to_numpy(zero_copy_only=False).astype(np.int64)
    return numbers


def bytes_of(column: pa.Array | pa.ChunkedArray, width: int) -> Bytes:
    """A column of bytes, or of 0x and hex digits, as so many bytes a row.

    Raises:
        ValueError: a value is of another length or missing, or has no hex digits.
    """
    is_text = pa.types.is_string(column.type) or pa.types.is_large_string(column.type)
    width_there = 2 + 2 * width if is_text else width
    if column.null_count:
        raise ValueError("a value is missing")
    array = pa.chunked_array([column]) if isinstance(column, pa.Array) else column
    array = array.cast(pa.binary()).combine_chunks()
    count = len(array)
    _, offsets, data = array.buffers()
    if not count:
        return np.empty((0, width), np.uint8)
    starts = np.frombuffer(offsets, np.int32, count + 1, 4 * array.offset)
    if (np.diff(starts) != width_there).any():
        raise ValueError(f"a value is not {width_there} characters long")
    found = np.frombuffer(data, np.uint8, count * width_there, int(starts[0])).reshape(count, width_there)
    if not is_text:
        return found
    if (found[:, :2] != (ord("0"), ord("x"))).any():
        raise ValueError("a value does not begin with 0x")
    digits = found[:, 2:].tobytes().decode("ascii")
    return np.frombuffer(bytes.fromhex(digits), np.uint8).reshape(count, width)
