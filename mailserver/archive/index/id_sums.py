"""Sums of the ids of a period's envelopes, by minute and day of creation, in its index: how they are made, laid out,
and read.

A sum is of a set: two sets with the same count and the same sum, modulo 2^256, are taken for one, as in negentropy
(`mailserver.reconcile`). The ids are those of reconciliation, SHA-256 of the MUID, so they belong to a network topic,
which stands beside them. Envelopes without an id are in no sum.

    sums     head, minutes
    head     magic, version, flags, length of the network topic, number of days; the topic; a row for each day
    minutes  of each day one after the other: a row for each minute that has ids

The period's record says where the head is, and has its SHA-256; the head has a digest of each day's minutes. So one day
is read by seeking. The sums stand between the heads of the files and the directory, where readers of earlier versions
do not look.

A period in which an envelope may stand twice has no days, and says so: its sums would be of no set.
"""

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa

from mailserver.archive.errors import ArchiveFault
from mailserver.archive.index.columns import Numbers, numbers_of
from mailserver.archive.index.layout import DIGEST_BYTES, KEYS_ROW_BYTES, Head, Table
from mailserver.archive.manifest import SumsRecord
from mailserver.ids.muid import MAX_NETWORK_TOPIC_BYTES
from mailserver.units import SECONDS_PER_DAY
from mailserver.waku.envelope import HASH_BYTES, MAX_U32

Limbs = np.ndarray[tuple[int, int], np.dtype[Any]]
"""Sums, a row each, in parts of 32 bits, the lowest first."""

VERSION = 1

MINUTE_S = 60

MAX_SUMS_BYTES = 64 * 1024 * 1024
"""The longest head: a million days. Envelopes claim to be created on 49,711 days at most."""

_ID_BYTES = 32
_LIMBS = _ID_BYTES // 4
_LIMB_BITS = 32
_MINUTES_PER_DAY = SECONDS_PER_DAY // MINUTE_S

MINUTE = np.dtype([("minute", "<u4"), ("count", "<u4"), ("total", "<u4", _LIMBS)])
"""A minute: seconds since 1970 divided by 60; how many ids; their sum, in 32 bytes, little-endian."""

DAY = np.dtype(
    [
        ("day", "<u4"),
        ("minutes", "<u4"),
        ("count", "<u8"),
        ("total", "<u4", _LIMBS),
        ("digest", "u1", DIGEST_BYTES),
    ]
)
"""A day: seconds since 1970 divided by 86,400; how many rows its minutes have; how many ids; their sum; a digest of the
rows of its minutes."""

_HEAD = struct.Struct("<8sHHHHI4x")
_MAGIC = b"WMSIDSUM"
_HAS_DOUBLES = 1
_ALIGNED = 8


@dataclass(frozen=True, slots=True)
class DaySums:
    """The head of a period's sums: a row for each day (DAY), and where the minutes of each begin.

    `network_topic`: to which the ids belong. `each_once`: whether the period has each envelope once; if not, there are
    no days.
    """

    network_topic: str
    days: Table
    minutes_at: Sequence[int]
    each_once: bool

    @property
    def memory_bytes(self) -> int:
        """About how many bytes of memory this takes."""
        return 2 * self.days.nbytes + 1000

    def row_of(self, day: int) -> int | None:
        """Which row a day has; None if it has none."""
        row = int(np.searchsorted(self.days["day"], day))
        return row if row < len(self.days) and self.days["day"][row] == day else None


def sums_of(created: pa.Array | pa.ChunkedArray, muids: pa.Array | pa.ChunkedArray) -> Table:
    """The sums of some envelopes, each of which is there once: MINUTE, in order.

    Args:
        created: Unix seconds.
        muids: null where an envelope has no id.
    Raises:
        ValueError: an envelope has an id, and a time of creation that none with an id can have.
    """
    seconds = numbers_of(created)
    if muids.null_count:
        seconds, muids = seconds[muids.is_valid().to_numpy(zero_copy_only=False)], muids.drop_null()
    if len(seconds) and not 0 < seconds.min() <= seconds.max() <= MAX_U32:
        raise ValueError("an envelope has an id, and an impossible time of creation")
    ids = b"".join([sha256(name).digest() for name in muids.to_pylist()])
    limbs = np.frombuffer(ids, "<u4").reshape(len(seconds), _LIMBS).astype(np.uint64)
    return _by(seconds // MINUTE_S, np.ones(len(seconds), np.uint64), limbs)


def together(parts: Iterable[Table]) -> Table:
    """The sums of sets that have nothing in common: MINUTE, in order."""
    joined = np.concatenate([np.empty(0, MINUTE), *parts])
    return _by(joined["minute"].astype(np.int64), joined["count"].astype(np.uint64), joined["total"].astype(np.uint64))


def total_of(row: np.void) -> int:
    """The sum of a row, MINUTE or DAY, as a number."""
    return int.from_bytes(row["total"].tobytes(), "little")


def encode_sums(network_topic: str, minutes: Table, *, each_once: bool) -> tuple[bytes, bytes]:
    """The head of a period's sums, and the minutes, which follow it."""
    if not each_once:
        minutes = minutes[:0]
    of_days = minutes["minute"] // _MINUTES_PER_DAY
    starts = _starts(of_days.astype(np.int64))
    ends = [*starts.tolist(), len(minutes)][1:]
    counts, totals = minutes["count"].astype(np.uint64), minutes["total"].astype(np.uint64)
    days = np.zeros(len(starts), DAY)
    days["day"] = of_days[starts]
    days["minutes"] = np.array(ends, np.int64) - starts
    if len(starts):
        days["count"] = np.add.reduceat(counts, starts)
        days["total"] = _carried(np.add.reduceat(totals, starts, axis=0))
    for row, (start, end) in enumerate(zip(starts.tolist(), ends, strict=True)):
        days["digest"][row] = np.frombuffer(_digest(minutes[start:end].tobytes()), np.uint8)
    topic = network_topic.encode()
    flags = 0 if each_once else _HAS_DOUBLES
    head = _HEAD.pack(_MAGIC, VERSION, flags, len(topic), 0, len(days))
    return head + topic + bytes(-len(topic) % _ALIGNED) + days.tobytes(), minutes.tobytes()


def read_days(file: BinaryIO, record: SumsRecord) -> DaySums:
    """The head of a period's sums.

    Raises:
        ArchiveFault: it is not the one that the record names, is of a later version, or contradicts itself.
        OSError: it cannot be read.
    """
    if record.bytes > MAX_SUMS_BYTES:
        raise ArchiveFault("the sums of ids have too many days")
    content = _read_at(file, record.at, record.bytes)
    if sha256(content).hexdigest() != record.sha256:
        raise ArchiveFault("the sums of ids are damaged: the digest does not match")
    if len(content) < _HEAD.size:
        raise ArchiveFault("the sums of ids were cut off")
    magic, version, flags, topic_bytes, _, count = _HEAD.unpack_from(content)
    if magic != _MAGIC:
        raise ArchiveFault("there are no sums of ids")
    if version != VERSION:
        raise ArchiveFault(f"the sums of ids have version {version}, this program knows {VERSION}")
    at = _HEAD.size + topic_bytes + -topic_bytes % _ALIGNED
    if topic_bytes > MAX_NETWORK_TOPIC_BYTES or at + count * DAY.itemsize != len(content):
        raise ArchiveFault("the sums of ids contradict themselves")
    days = np.frombuffer(content, DAY, count, at)
    if (np.diff(days["day"].astype(np.int64)) <= 0).any() or (days["minutes"] == 0).any():
        raise ArchiveFault("the sums of ids contradict themselves")
    ends = np.cumsum(days["minutes"], dtype=np.int64) * MINUTE.itemsize + record.at + record.bytes
    starts = [record.at + record.bytes, *ends.tolist()]
    topic = content[_HEAD.size : _HEAD.size + topic_bytes].decode("utf-8", "replace")
    return DaySums(topic, days, starts, not flags & _HAS_DOUBLES)


def read_minutes(file: BinaryIO, sums: DaySums, row: int) -> Table:
    """The minutes of a day, by its row: MINUTE, in order.

    Raises:
        ArchiveFault: they are damaged, or not those of the day.
        OSError: they cannot be read.
    """
    day = sums.days[row]
    content = _read_at(file, sums.minutes_at[row], int(day["minutes"]) * MINUTE.itemsize)
    if _digest(content) != day["digest"].tobytes():
        raise ArchiveFault("the sums of ids are damaged: the digest of a day does not match")
    minutes = np.frombuffer(content, MINUTE)
    numbers = minutes["minute"].astype(np.int64)
    if (np.diff(numbers) <= 0).any() or (numbers // _MINUTES_PER_DAY != day["day"]).any():
        raise ArchiveFault("the sums of ids contradict themselves")
    return minutes


class EachOnce:
    """Whether a period has each envelope once: add its files by their paths, in order.

    Files of one directory are nearly always apart by (topic, created). Only of those that are not, the beginnings of
    the hashes are kept: 8 bytes a row, until a file comes that is apart from them.
    """

    def __init__(self) -> None:
        self._has_doubles = False
        self._directory = ""
        self._last = -1, -1
        self._hashes: list[Table] = []

    @property
    def holds(self) -> bool:
        """Whether it does, of what was added so far."""
        return not (self._has_doubles or _has_doubles(self._hashes))

    def add(self, path: str, head: Head, fragment: bytes) -> None:
        """Add a file, whose own rows are each there once (`FragmentWriter` has checked that)."""
        directory, topics = path.partition("/")[0], head.topics
        first = int(topics["topic"][0]), int(topics["created_min"][0])
        last = int(topics["topic"][-1]), int(topics["created_max"][-1])
        if directory != self._directory or first > self._last:
            self._has_doubles = not self.holds
            self._directory, self._last, self._hashes = directory, last, []
        self._last = max(last, self._last)
        self._hashes.append(_hash_beginnings(head, fragment))


def _has_doubles(files: Sequence[Table]) -> bool:
    """Whether a hash is in more than one of these files, each of which has its own hashes once."""
    if len(files) < 2:
        return False
    hashes = np.sort(np.concatenate(files))
    return bool((hashes[1:] == hashes[:-1]).any())


def _hash_beginnings(head: Head, fragment: bytes) -> Table:
    """The first 8 bytes of the hash of each row."""
    parts = []
    at = head.head_bytes + head.keys_at
    for rows in head.groups["rows"].tolist():
        hashes = np.frombuffer(fragment, np.uint8, rows * HASH_BYTES, at + rows * (KEYS_ROW_BYTES - HASH_BYTES))
        parts.append(np.ascontiguousarray(hashes.reshape(rows, HASH_BYTES)[:, :8]).view("<u8").ravel())
        at += rows * KEYS_ROW_BYTES
    return np.concatenate(parts)


def _by(minutes: Numbers, counts: Table, limbs: Limbs) -> Table:
    """Add up what belongs to the same minute."""
    order = np.argsort(minutes, kind="stable")
    minutes = minutes[order]
    starts = _starts(minutes)
    table = np.zeros(len(starts), MINUTE)
    if len(starts):
        table["minute"] = minutes[starts]
        table["count"] = np.add.reduceat(counts[order], starts)
        table["total"] = _carried(np.add.reduceat(limbs[order], starts, axis=0))
    return table


def _starts(numbers: Numbers) -> Numbers:
    """Where in an ordered column each number stands first."""
    return np.flatnonzero(np.diff(numbers, prepend=-1))


def _carried(limbs: Limbs) -> Limbs:
    """Numbers whose limbs have more than 32 bits, with 32 bits a limb, modulo 2^256."""
    carry = np.zeros(len(limbs), np.uint64)
    table = np.empty((len(limbs), _LIMBS), "<u4")
    for limb in range(_LIMBS):
        carry = limbs[:, limb] + carry
        table[:, limb] = carry & np.uint64((1 << _LIMB_BITS) - 1)
        carry = carry >> np.uint64(_LIMB_BITS)
    return table


def _digest(content: bytes) -> bytes:
    return sha256(content).digest()[:DIGEST_BYTES]


def _read_at(file: BinaryIO, at: int, size: int) -> bytes:
    file.seek(at)
    content = file.read(size)
    if len(content) != size:
        raise ArchiveFault("the sums of ids were cut off")
    return content
