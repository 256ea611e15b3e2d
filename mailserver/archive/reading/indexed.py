"""Finds the row groups of a period by its index: which of them have wanted topics, in which rows, and their keys.

A footer says only the first and the last topic of a row group. Without an index, the keys have to be decoded to see
whether a topic is there. The index says in which rows each topic is. It also has the keys and the footers, each with a
digest, so the data files need not be read whole before they are used.

Everything here waits for the disk or takes processor time, so it runs in a thread.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, BinaryIO

import numpy as np

from mailserver.archive.errors import ArchiveFault
from mailserver.archive.files import ReadableFiles
from mailserver.archive.index.check import check_paths
from mailserver.archive.index.columns import Numbers32
from mailserver.archive.index.layout import Entry, Head
from mailserver.archive.index.reader import PeriodIndex, keys_place, read_directory, read_heads, read_keys
from mailserver.archive.manifest import IndexRecord
from mailserver.archive.reading.row_groups import DataFile, GroupKeys, IndexedKeys, RowGroup
from mailserver.archive.reading.scan import Candidate, WantedEnvelopes, matcher_of
from mailserver.waku.bloom import FULL_INTEREST
from mailserver.waku.envelope import TOPIC_BYTES, Topic

Rows = np.ndarray[tuple[int], np.dtype[Any]]

_GROUP_BYTES = 400
_FILE_BYTES = 3000
"""About how much memory a row group, and a file, take in addition to the head."""


class IndexUnusable(ArchiveFault):
    """An index cannot be read, is damaged, or is of other files. The period can be read without it."""


class IndexGone(IndexUnusable):
    """An index is missing: its period was replaced, or somebody deleted it."""


@dataclass(frozen=True, slots=True)
class IndexFile:
    """The index of a period, one of `files`, as the period's record describes it."""

    files: ReadableFiles = field(repr=False, compare=False)
    name: str
    record: IndexRecord


class IndexedFile:
    """A data file as the index describes it."""

    __slots__ = ("_file", "_groups", "_index", "entry", "head", "topics")

    def __init__(self, file: DataFile, index: IndexFile, entry: Entry, head: Head) -> None:
        self._file = file
        self._index = index
        self._groups: dict[int, RowGroup] = {}
        self.entry = entry
        self.head = head
        self.topics: Numbers32 = head.topics["topic"].astype(np.uint32)
        """Its topics as numbers, in order."""

    @property
    def memory_bytes(self) -> int:
        """About how many bytes of memory this takes."""
        copies = len(self.head.footer) + 12 * len(self.topics)
        return self.head.head_bytes + copies + _GROUP_BYTES * len(self.head.groups) + _FILE_BYTES

    def group(self, number: int) -> RowGroup:
        """Return a row group; the same object each time."""
        known = self._groups.get(number)
        if known is not None:
            return known
        said, end = self.head.groups[number], int(self.head.group_ends[number])
        rows = int(said["rows"])
        at = np.searchsorted(self.head.topic_ends, (end - rows, end - 1), "right")
        first, last = (Topic(int(self.topics[one]).to_bytes(TOPIC_BYTES, "big")) for one in at)
        return self._groups.setdefault(
            number,
            RowGroup(
                self._file,
                number,
                rows,
                (first, last),
                (int(said["created_min"]), int(said["created_max"])),
                int(said["raw_bytes"]),
                self.head.footer,
                IndexedKeys(self._index.name, keys_place(self.entry, self.head, number)),
            ),
        )

    def every_group(self, low: int, high: int) -> Iterator[Candidate]:
        """Yield all row groups that have envelopes created from `low` to `high`."""
        of_groups = self.head.groups
        for number in np.flatnonzero((of_groups["created_min"] <= high) & (of_groups["created_max"] >= low)).tolist():
            group = self.group(number)
            yield Candidate(group, group.created, None)

    def groups_of(self, numbers: Rows, low: int, high: int) -> Iterator[Candidate]:
        """Yield the row groups that have envelopes of some topics, created from `low` to `high`.

        Args:
            numbers: the places of these topics in `topics`.
        """
        topics, ends, group_ends = self.head.topics, self.head.topic_ends, self.head.group_ends
        created_min, created_max = topics["created_min"][numbers], topics["created_max"][numbers]
        is_near = (created_min <= high) & (created_max >= low)
        numbers = numbers[is_near]
        first_rows, end_rows = topics["first_row"][numbers].astype(np.int64), ends[numbers]
        first_groups = np.searchsorted(group_ends, first_rows, "right")
        last_groups = np.searchsorted(group_ends, end_rows - 1, "right")
        runs: dict[int, list[tuple[int, int]]] = {}
        spans: dict[int, tuple[int, int]] = {}
        for start, end, first, last, oldest, newest in zip(
            first_rows.tolist(),
            end_rows.tolist(),
            first_groups.tolist(),
            last_groups.tolist(),
            created_min[is_near].tolist(),
            created_max[is_near].tolist(),
            strict=True,
        ):
            for number in range(first, last + 1):
                before = int(group_ends[number - 1]) if number else 0
                run = max(start - before, 0), min(end, int(group_ends[number])) - before
                runs.setdefault(number, []).append(run)
                span = spans.get(number, (oldest, newest))
                spans[number] = min(span[0], oldest), max(span[1], newest)
        for number, of_group in runs.items():
            group, span = self.group(number), spans[number]
            created = max(span[0], group.created[0]), min(span[1], group.created[1])
            if created[0] <= high and created[1] >= low:
                yield Candidate(group, created, of_group)


def read_index(opened: BinaryIO, index: IndexFile, files: Mapping[str, int]) -> PeriodIndex:
    """Read the directory of a period's index, which is `index_opened`.

    Args:
        files: how many rows each of the period's files has, by its path.
    Raises:
        ArchiveFault: it is damaged, or is of other files.
        OSError: it cannot be read.
    """
    directory = read_directory(opened, index.record)
    check_paths(directory, files.items())
    return directory


def read_files(opened: BinaryIO, index: IndexFile, some: Sequence[tuple[DataFile, Entry]]) -> list[IndexedFile]:
    """Read what an index, which is `index_opened`, says of some files.

    Raises:
        ArchiveFault: it is damaged.
        OSError: it cannot be read.
    """
    heads = read_heads(opened, [entry for _, entry in some])
    return [IndexedFile(data, index, entry, head) for (data, entry), head in zip(some, heads, strict=True)]


def read_indexed_keys(
    files: ReadableFiles, name: str, groups: Iterable[RowGroup]
) -> Iterator[tuple[RowGroup, GroupKeys]]:
    """Read the keys of row groups from one index.

    Raises:
        IndexUnusable: it cannot be read, or is damaged.
    """
    with index_opened(files, name) as file:
        for group in groups:
            assert group.indexed is not None
            keys = read_keys(file, group.indexed.place)
            yield group, GroupKeys((), np.empty(0, np.int64), keys.created, keys.hashes, keys.sizes)


def candidates_of(files: Sequence[IndexedFile], wanted: WantedEnvelopes, numbers: Numbers32 | None) -> list[Candidate]:
    """Return the row groups of some files that have wanted topics within the wanted time.

    Args:
        numbers: the wanted topics as numbers, in order; None if a bloom filter says which are wanted.
    """
    low, high = wanted.above[0], wanted.below[0]
    if wanted.interest == FULL_INTEREST:
        return [candidate for file in files for candidate in file.every_group(low, high)]
    if numbers is not None:
        chosen = [_common(file.topics, numbers) for file in files]
    else:
        joined = b"".join(file.head.topics["topic"].tobytes() for file in files)
        marks = np.frombuffer(matcher_of(wanted.interest.bloom).marks(joined), np.uint8)
        ends = np.cumsum([len(file.topics) for file in files])
        chosen = [np.flatnonzero(part) for part in np.split(marks, ends[:-1])]
    return [
        candidate
        for file, some in zip(files, chosen, strict=True)
        if len(some)
        for candidate in file.groups_of(some, low, high)
    ]


def _common(topics: Numbers32, wanted: Numbers32) -> Rows:
    """Return the places of wanted topics among a file's. Both are in order."""
    if len(wanted) < len(topics):
        at = np.searchsorted(topics, wanted)
        found: Rows = at[topics[np.minimum(at, len(topics) - 1)] == wanted]
        return found
    at = np.searchsorted(wanted, topics)
    return np.flatnonzero(wanted[np.minimum(at, len(wanted) - 1)] == topics)


@contextmanager
def index_opened(files: ReadableFiles, name: str) -> Iterator[BinaryIO]:
    """Open an index. Every fault from here on is an IndexUnusable that names the index."""
    try:
        with files.opened(name) as file:
            yield file
    except FileNotFoundError as error:
        raise IndexGone(f"{files.where(name)} is missing") from error
    except (ArchiveFault, OSError) as error:
        raise IndexUnusable(f"cannot read {files.where(name)}: {error}") from error
