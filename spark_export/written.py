"""What was found in a period's directory when it was read."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from mailserver.archive.fingerprint import MODULUS, Fingerprint
from mailserver.archive.manifest import FileRecord
from mailserver.units import SECONDS_PER_DAY

_HASH_CHARS = 66
_WORD_CHARS = slice(2, 18)
"""Of a hash as text: what the checksum of a fingerprint is made of."""


@dataclass(frozen=True, slots=True)
class Written:
    """What files of one period have. `days` and `created` go by the day of reception; `created` is the first and the
    last time of creation, Unix seconds."""

    days: dict[int, Fingerprint]
    created: dict[int, tuple[int, int]]
    files: tuple[FileRecord, ...]


def contents(rows: pa.Table) -> tuple[dict[int, Fingerprint], dict[int, tuple[int, int]]]:
    """`days` and `created` of Written, from rows that were read, in one chunk.

    Raises:
        ValueError: a hash is not 0x and 64 hex digits.
    """
    days, created = rows.column("received").to_numpy() // SECONDS_PER_DAY, rows.column("created").to_numpy()
    sizes, words = pc.binary_length(rows.column("raw")).to_numpy(), _words(rows.column("hash").combine_chunks())
    found = {}
    spans = {}
    for day in np.unique(days):
        of_day = days == day
        checksum = int(words[of_day].sum(dtype=np.uint64)) % MODULUS
        found[int(day)] = Fingerprint(int(of_day.sum()), int(sizes[of_day].sum(dtype=np.int64)), checksum)
        spans[int(day)] = int(created[of_day].min()), int(created[of_day].max())
    return found, spans


def together(parts: Sequence[Written]) -> Written:
    """What several parts of a period have together; no two have a row in common."""
    days: dict[int, Fingerprint] = {}
    created: dict[int, tuple[int, int]] = {}
    for part in parts:
        for day, fingerprint in part.days.items():
            days[day] = days.get(day, Fingerprint()) + fingerprint
            first, last = created.get(day, part.created[day])
            created[day] = min(first, part.created[day][0]), max(last, part.created[day][1])
    files = sorted((file for part in parts for file in part.files), key=lambda file: file.path)
    return Written(days, created, tuple(files))


def _words(hashes: pa.Array) -> np.ndarray[tuple[int], np.dtype[np.uint64]]:
    """The first eight bytes of each hash, as a number."""
    _, offsets, data = hashes.buffers()
    ends = np.frombuffer(offsets, np.int32, len(hashes) + 1, 4 * hashes.offset)
    if (np.diff(ends) != _HASH_CHARS).any():
        raise ValueError(f"a hash does not have {_HASH_CHARS} characters")
    text = np.frombuffer(data, np.uint8, len(hashes) * _HASH_CHARS, int(ends[0])).reshape(-1, _HASH_CHARS)
    digits = text[:, _WORD_CHARS].tobytes().decode("ascii")
    return np.frombuffer(bytes.fromhex(digits), ">u8").astype(np.uint64)
