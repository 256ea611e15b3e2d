"""What each task of a run writes: a piece of a period, from ranges of stores and files of the archive.

A piece is read, sorted and written in memory, so it has about PIECE_BYTES. It gets one file in each directory that its
rows belong to. A usual day is one piece.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from typing import NamedTuple

import numpy as np

from mailserver.archive.days import day_name
from mailserver.archive.manifest import FileRecord, PeriodRecord
from mailserver.archive.paths import directory_of
from mailserver.waku.envelope import HASH_BYTES
from spark_export.places import address_of
from spark_export.store import StoreSnapshot

PIECE_BYTES = 96 * 1024 * 1024
"""About how many bytes of envelopes a task holds. Some of them it holds three times."""

HALVED_BYTES = PIECE_BYTES // 4
"""A smaller piece is not halved: that would cost more, in files and row groups, than a core that waits."""

Seqs = np.ndarray[tuple[int], np.dtype[np.int64]]
TopicTime = tuple[str, int]
"""Topic and time of creation."""


class Batch(NamedTuple):
    """Rows with `first_seq <= seq <= last_seq` that one store received on one day, to be read by one statement.
    `rows`: how many there are; `bytes`: of their envelopes."""

    first_seq: int
    last_seq: int
    rows: int
    bytes: int


@dataclass(frozen=True, slots=True)
class StoreRows:
    """Batches of rows that one store received on one day, but for those in `left_out`, sorted. `store_id`: the id of
    the store; `address`: its path, or the URL of its database, not to be shown."""

    store: int
    store_id: str
    address: str
    day: int
    batches: tuple[Batch, ...]
    left_out: Seqs


@dataclass(frozen=True, slots=True)
class FileRows:
    """Rows of a file of the archive.

    `name`: relative to the archive. `sha256`: the digest of its bytes, "" if that is not known. `groups`: only these
    row groups. `span`: only rows from the first key on, and before the second; None for no bound.
    """

    name: str
    sha256: str = ""
    groups: tuple[int, ...] | None = None
    span: tuple[TopicTime | None, TopicTime | None] = (None, None)


PieceSource = StoreRows | FileRows


@dataclass(frozen=True, slots=True)
class Piece:
    """What a task writes. `number`: within the period."""

    period: str
    number: int
    sources: tuple[PieceSource, ...]


@dataclass(frozen=True, slots=True)
class GroupSpan:
    """A row group: its file, its number there, how many bytes its envelopes have, and its ranges of topics and times of
    creation, inclusive."""

    file: str
    number: int
    bytes: int
    topics: tuple[str, str]
    created: tuple[int, int]

    @property
    def first(self) -> TopicTime:
        """No row of it is before this key."""
        return self.topics[0], self.created[0]

    @property
    def last(self) -> TopicTime:
        """No row of it is after this key."""
        return self.topics[1], self.created[1]


def piece_counts(sizes: Mapping[int, int]) -> dict[int, int]:
    """Into how many pieces to cut each day of a group; the days with the largest pieces come first.

    A day has one piece, or an even number. So has a group of days, so that both cores of a small machine begin and end
    together: if it had an odd number, the largest day of one piece is halved, if that is worth it.

    Args:
        sizes: by day, how many bytes of envelopes it will have.
    """
    counts = {day: max(1, -(-size // PIECE_BYTES)) for day, size in sizes.items()}
    counts = {day: count if count == 1 else count + count % 2 for day, count in counts.items()}
    whole = [day for day, count in counts.items() if count == 1]
    if len(whole) % 2 and len(counts) > 1:
        largest = max(whole, key=lambda day: (sizes[day], day))
        counts[largest] += sizes[largest] >= HALVED_BYTES
    return {day: counts[day] for day in sorted(counts, key=lambda day: (-sizes[day] / counts[day], day))}


def pieces_of_day(
    day: int,
    count: int,
    stores: Sequence[StoreSnapshot],
    batches: Mapping[int, Sequence[Batch]],
    left_out: Mapping[int, Seqs],
    before: PeriodRecord | None,
) -> list[Piece]:
    """Cut a day into so many pieces, which have about as many bytes each. Fewer, if there are too few batches.

    Args:
        batches: of each store by its number, what to read, by `seq`.
        left_out: of each store by its number, rows that do not go into the archive, sorted.
        before: what the archive has of the day, which is written again.
    """
    sources: list[list[PieceSource]] = [[] for _ in range(count)]
    for number, of_store in batches.items():
        store, without = stores[number], left_out.get(number, np.array([], np.int64))
        for into, some in zip(sources, _even(of_store, without, count), strict=True):
            if some:
                first, last = np.searchsorted(without, (some[0].first_seq, some[-1].last_seq + 1))
                rows = StoreRows(number, store.id, address_of(store.place), day, tuple(some), without[first:last])
                into.append(rows)
    for number, file in enumerate(before.files if before is not None else ()):
        sources[number % count].append(file_rows(day_name(day), file))
    return [Piece(day_name(day), number, tuple(of_piece)) for number, of_piece in enumerate(sources) if of_piece]


def file_rows(period: str, file: FileRecord) -> FileRows:
    """All rows of a file of a period."""
    return FileRows(f"{directory_of(period)}/{file.path}", file.sha256)


def path_in_period(name: str) -> str:
    """The path of a file as its period's record has it, from its name."""
    return "/".join(name.split("/")[-2:])


def pieces_of_files(record: PeriodRecord) -> list[Piece]:
    """Cut a period into pieces of whole files."""
    pieces: list[list[PieceSource]] = []
    room = 0
    for file in record.files:
        if file.bytes > room:
            pieces.append([])
            room = PIECE_BYTES
        pieces[-1].append(file_rows(record.period, file))
        room -= file.bytes
    return [Piece(record.period, number, tuple(sources)) for number, sources in enumerate(pieces)]


def large_partitions(parts: Sequence[PeriodRecord]) -> dict[str, list[FileRows]]:
    """The files of each directory that may be too large for one task when these periods become one, by directory.

    A file is about as large as its envelopes, which are ciphertext. But anybody may post zeros, which compress to a
    thousandth, and no record says which directory they are in: it may be any.
    """
    saved = sum(map(_saved_bytes, parts))
    return {
        partition: [source for source, _ in files]
        for partition, files in _by_partition(parts).items()
        if sum(size for _, size in files) + saved > PIECE_BYTES
    }


def _saved_bytes(part: PeriodRecord) -> int:
    """How many bytes compression may have saved of the envelopes of a period.

    What files have besides envelopes must not hide that: the hash of each row does not compress, nor does the one in
    its message id, if it has one.
    """
    hashes = part.fingerprint.rows * (1 if part.network_topic is None else 2)
    return max(0, part.fingerprint.bytes + hashes * HASH_BYTES - sum(file.bytes for file in part.files))


def pieces_of_month(
    month: str, parts: Sequence[PeriodRecord], groups: Mapping[str, Sequence[GroupSpan]]
) -> list[Piece]:
    """Cut a month that these periods are merged into.

    Each directory gets as few files as possible, one after another by (topic, created).

    Args:
        groups: of each directory in `large_partitions`, the row groups that its files have.
    """
    pieces: list[tuple[PieceSource, ...]] = []
    held: list[PieceSource] = []
    room = 0
    for partition, files in sorted(_by_partition(parts).items()):
        if partition in groups:
            pieces += _cut(groups[partition])
            continue
        size = sum(file_bytes for _, file_bytes in files)
        if size > room:
            pieces.append(tuple(held))
            held, room = [], PIECE_BYTES
        held += [source for source, _ in files]
        room -= size
    pieces.append(tuple(held))
    return [Piece(month, number, sources) for number, sources in enumerate(filter(None, pieces))]


def _even(batches: Sequence[Batch], left_out: Seqs, count: int) -> list[list[Batch]]:
    """Deal batches to so many pieces, one after another. Of a batch, only what is not left out has a size."""
    ends = np.searchsorted(left_out, [(batch.first_seq, batch.last_seq + 1) for batch in batches])
    sizes = [
        batch.bytes * max(0, batch.rows - int(end - start)) / batch.rows
        for batch, (start, end) in zip(batches, ends, strict=True)
    ]
    whole = sum(sizes)
    dealt: list[list[Batch]] = [[] for _ in range(count)]
    for batch, size, until in zip(batches, sizes, accumulate(sizes), strict=True):
        dealt[min(int((until - size / 2) * count / whole), count - 1) if whole else 0].append(batch)
    return dealt


def _by_partition(parts: Iterable[PeriodRecord]) -> dict[str, list[tuple[FileRows, int]]]:
    found: dict[str, list[tuple[FileRows, int]]] = defaultdict(list)
    for part in parts:
        for file in part.files:
            source = file_rows(part.period, file)
            found[file.path.partition("/")[0]].append((source, file.bytes))
    return found


def _cut(groups: Sequence[GroupSpan]) -> list[tuple[PieceSource, ...]]:
    """Ranges of keys that have about PIECE_BYTES each, and what each is read from."""
    ordered = sorted(groups, key=lambda group: (group.first, group.file, group.number))
    sizes = accumulate(group.bytes for group in ordered)
    starts: dict[int, TopicTime] = {}
    for group, size in zip(ordered, sizes, strict=True):
        starts.setdefault((size - group.bytes) // PIECE_BYTES, group.first)
    bounds: list[TopicTime | None] = [None, *sorted(set(list(starts.values())[1:])), None]
    cut: list[tuple[PieceSource, ...]] = []
    for lower, upper in pairwise(bounds):
        numbers: dict[str, list[int]] = defaultdict(list)
        for group in ordered:
            if (lower is None or group.last >= lower) and (upper is None or group.first < upper):
                numbers[group.file].append(group.number)
        sources = [FileRows(file, groups=tuple(sorted(of_file))) for file, of_file in sorted(numbers.items())]
        cut.append(tuple(replace(source, span=(lower, upper)) for source in sources))
    return cut
