"""Writing an index: a fragment for each Parquet file, made with it, and the index of a period out of its fragments."""

from collections.abc import Callable
from hashlib import sha256
from io import BytesIO
from typing import Any, BinaryIO, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from mailserver.archive.errors import ArchiveFault
from mailserver.archive.index.columns import Bytes, Numbers, bytes_of, numbers_of
from mailserver.archive.index.id_sums import EachOnce, encode_sums
from mailserver.archive.index.layout import (
    BLOCK,
    BLOCK_ENTRIES,
    DIGEST_BYTES,
    GROUP,
    HASHED,
    HEADER,
    TOPIC,
    Entry,
    SectionKind,
    Table,
    decode_head,
    encode_directory,
    encode_fragment,
)
from mailserver.archive.manifest import IndexRecord, SumsRecord
from mailserver.waku.envelope import HASH_BYTES, MAX_U32, TOPIC_BYTES

_PARQUET_MAGIC_BYTES = 4


class RowGroupColumns(NamedTuple):
    """The columns of a row group that the index knows, a row each, in the order (topic, created, hash).

    `topics`, `hashes`: either the bytes themselves, 4 and 32 of them, or 0x and hex digits, as the files have them.
    `created`: Unix seconds. `sizes`: of the envelopes, in bytes.
    """

    topics: pa.Array | pa.ChunkedArray
    created: pa.Array | pa.ChunkedArray
    hashes: pa.Array | pa.ChunkedArray
    sizes: pa.Array | pa.ChunkedArray


class _Rows(NamedTuple):
    """A row group's columns as the fragment needs them."""

    topics: Numbers
    created: Numbers
    hashes: Bytes


class FragmentWriter:
    """Makes the fragment of one Parquet file: add each row group in the order of the file, then finish.

    It takes about 50 bytes for each row until then.
    """

    def __init__(self) -> None:
        self._rows: list[_Rows] = []
        self._keys: list[bytes] = []

    def add(self, group: RowGroupColumns) -> None:
        """Add the next row group.

        Raises:
            ArchiveFault: it has no rows, or they are not in order.
        """
        try:
            rows = _Rows(
                bytes_of(group.topics, TOPIC_BYTES).view(">u4").ravel().astype(np.int64),
                numbers_of(group.created),
                bytes_of(group.hashes, HASH_BYTES),
            )
            sizes = numbers_of(group.sizes)
        except ValueError as error:
            raise ArchiveFault(f"a row group cannot be indexed: {error}") from error
        if not len(rows.topics) or {len(rows.topics)} != {len(rows.created), len(rows.hashes), len(sizes)}:
            raise ArchiveFault("a row group has no rows, or not as many of each column")
        self._rows.append(rows)
        self._keys.append(rows.created.astype("<i8").tobytes() + sizes.astype("<u4").tobytes() + rows.hashes.tobytes())

    def finish(self, footer: bytes) -> bytes:
        """The fragment.

        Args:
            footer: the end of the Parquet file, from its footer on (`footer_of`).
        Raises:
            ArchiveFault: there are no rows, they are not in order, or the footer is of other row groups.
        """
        if not self._rows:
            raise ArchiveFault("a file has no rows")
        topics = np.concatenate([rows.topics for rows in self._rows])
        created = np.concatenate([rows.created for rows in self._rows])
        hashes = np.concatenate([rows.hashes for rows in self._rows])
        _check_order(topics, created, hashes)
        blocks, by_hash = _in_blocks(hashes)
        return encode_fragment(
            [
                (SectionKind.GROUPS, self._groups(footer).tobytes()),
                (SectionKind.TOPICS, _topics(topics, created).tobytes()),
                (SectionKind.BLOCKS, blocks.tobytes()),
                (SectionKind.FOOTER, footer),
                (SectionKind.KEYS, b"".join(self._keys)),
                (SectionKind.HASHES, by_hash.tobytes()),
            ]
        )

    def _groups(self, footer: bytes) -> Table:
        metadata = pq.read_metadata(pa.BufferReader(footer))
        (raw,) = [number for number, name in enumerate(metadata.schema.names) if name == "raw"]
        groups = np.zeros(len(self._rows), GROUP)
        if metadata.num_row_groups != len(groups):
            raise ArchiveFault(f"the footer has {metadata.num_row_groups} row groups instead of {len(groups)}")
        for number, (rows, keys) in enumerate(zip(self._rows, self._keys, strict=True)):
            group = metadata.row_group(number)
            if group.num_rows != len(rows.created):
                raise ArchiveFault(f"row group {number} has {group.num_rows} rows instead of {len(rows.created)}")
            groups[number] = (
                group.num_rows,
                0,
                group.column(raw).total_uncompressed_size,
                rows.created.min(),
                rows.created.max(),
                _digest(keys),
            )
        return groups


def footer_of(metadata: pq.FileMetaData) -> bytes:
    """The end of a Parquet file that pyarrow has written, from its footer on.

    Args:
        metadata: what `pq.ParquetWriter` has put into its `metadata_collector` when it was closed.
    """
    file = BytesIO()
    metadata.write_metadata_file(file)
    return file.getvalue()[_PARQUET_MAGIC_BYTES:]


class IndexWriter:
    """Puts an index together: add the fragments of all files of a period by their paths, in order, then finish.

    It takes the memory of the heads, about a thousandth of the Parquet files.
    """

    def __init__(self, file: BinaryIO) -> None:
        """Write to this file from its beginning on. It is neither closed nor synced here."""
        self._write: Callable[[bytes], Any] = file.write
        self._at = 0
        self._heads: list[bytes] = []
        self._entries: list[Entry] = []
        self._each_once = EachOnce()
        self._put(HEADER)

    def add(self, path: str, fragment: bytes) -> None:
        """Add a file's fragment.

        Args:
            path: as the period's record has it.
        Raises:
            ArchiveFault: it is no fragment.
        """
        head = decode_head(fragment)
        if len(fragment) != head.head_bytes + head.bulk_bytes:
            raise ArchiveFault("a fragment was cut off")
        content = fragment[: head.head_bytes]
        entry = Entry(
            path,
            head_at=sum(map(len, self._heads)),
            head_bytes=head.head_bytes,
            bulk_at=self._at,
            bulk_bytes=head.bulk_bytes,
            rows=head.rows,
            topics=(int(head.topics["topic"][0]), int(head.topics["topic"][-1])),
            created=head.created,
            digest=sha256(content).digest(),
        )
        self._each_once.add(path, head, fragment)
        self._entries.append(entry)
        self._heads.append(content)
        self._put(fragment[head.head_bytes :])

    def finish(self, sums: tuple[str, Table] | None = None) -> IndexRecord:
        """Write the heads, the sums and the directory; return what the period's record says of the index.

        Args:
            sums: the network topic of the ids of the period's envelopes, and their sums (`id_sums.MINUTE`); None for an
                index without any.
        """
        heads_at = self._at
        for head in self._heads:
            self._put(head)
        sums_record = None if sums is None else self._put_sums(*sums)
        entries = [entry._replace(head_at=heads_at + entry.head_at) for entry in self._entries]
        end = encode_directory(entries, self._at)
        self._put(end)
        return IndexRecord(self._at, sha256(end).hexdigest(), sums_record)

    def _put_sums(self, network_topic: str, minutes: Table) -> SumsRecord:
        head, rows = encode_sums(network_topic, minutes, each_once=self._each_once.holds)
        record = SumsRecord(self._at, len(head), sha256(head).hexdigest())
        self._put(head + rows)
        return record

    def _put(self, content: bytes) -> None:
        self._write(content)
        self._at += len(content)


def _check_order(topics: Numbers, created: Numbers, hashes: Bytes) -> None:
    """Check that rows are in the order (topic, created, hash), each once."""
    same_topic = topics[1:] == topics[:-1]
    same_time = same_topic & (created[1:] == created[:-1])
    ties = np.flatnonzero(same_time)
    is_sorted = (
        (topics[1:] >= topics[:-1]).all()
        and (created[1:] >= created[:-1])[same_topic].all()
        and all(hashes[row].tobytes() < hashes[row + 1].tobytes() for row in ties)
    )
    if not is_sorted:
        raise ArchiveFault("the rows of a file are not in the order of topic, time and hash")


def _topics(topics: Numbers, created: Numbers) -> Table:
    starts = np.flatnonzero(np.diff(topics, prepend=-1))
    table = np.zeros(len(starts), TOPIC)
    table["topic"], table["first_row"] = topics[starts], starts
    times = np.clip(created, 0, MAX_U32)
    table["created_min"] = times[starts]
    table["created_max"] = times[np.append(starts[1:], [len(topics)]) - 1]
    return table


def _in_blocks(hashes: Bytes) -> tuple[Table, Table]:
    """The rows by their hashes, and the blocks that these are read in."""
    prefixes = np.ascontiguousarray(hashes[:, :4]).view(">u4").ravel()
    order = np.argsort(prefixes.astype(np.uint32), kind="stable")
    by_hash = np.empty(len(hashes), HASHED)
    by_hash["prefix"], by_hash["row"] = prefixes[order], order
    starts = range(0, len(hashes), BLOCK_ENTRIES)
    blocks = np.zeros(len(starts), BLOCK)
    for number, start in enumerate(starts):
        block = by_hash[start : start + BLOCK_ENTRIES]
        blocks[number] = (block["prefix"][0], 0, _digest(block.tobytes()))
    return blocks, by_hash


def _digest(content: bytes) -> Bytes:
    return np.frombuffer(sha256(content).digest()[:DIGEST_BYTES], np.uint8)
