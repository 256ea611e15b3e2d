"""Writing periods into the staging directory. Each task reads a piece, sorts it, writes its files, and reads them back.

Spark hands out the pieces and collects what is said of them; the rows stay in the worker, in Arrow. What a task has
written is another task's too, byte for byte, if it gets the same piece: so a task may be tried again.
"""

import hashlib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F

from mailserver.archive.errors import ArchiveError
from mailserver.archive.layout import PERIOD, Layout
from mailserver.archive.manifest import FileRecord
from mailserver.archive.paths import STAGING, directory_of, staged_data
from spark_export.errors import ExportCheckFailed
from spark_export.parquet_file import ORDER, ROWS, decode, encode, read_row_groups, row_group_ends, row_groups
from spark_export.pieces import FileRows, GroupSpan, Key, Piece
from spark_export.source import BATCH_ROWS, Faulty, read_envelopes
from spark_export.task_files import Access, TaskFiles
from spark_export.written import Written, contents, together

PIECE = "_piece"
"""Column of frames that are written: which piece a row goes into."""


@dataclass(frozen=True, slots=True)
class Job:
    """What all tasks of one writing have in common."""

    access: Access
    layout: Layout
    run: str


@dataclass(frozen=True, slots=True)
class PieceWritten:
    """What was read back of one piece, and the rows of its stores that are no envelopes and were left out."""

    period: str
    found: Written
    faulty: tuple[Faulty, ...] = ()


def write_pieces(spark: SparkSession, job: Job, pieces: Sequence[Piece]) -> list[PieceWritten]:
    """Write each piece in a task of its own.

    Raises:
        PySparkException, Py4JError: a task has failed.
    """
    if not pieces:
        return []
    return spark.sparkContext.parallelize(pieces, len(pieces)).map(lambda piece: write_piece(job, piece)).collect()


def write_frame(envelopes: DataFrame, job: Job, pieces: int) -> list[PieceWritten]:
    """Write rows that only Spark can read.

    Args:
        envelopes: ENVELOPES with the columns date and PIECE: numbers below `pieces`, each of one date.
    Raises:
        PySparkException, Py4JError: a task has failed.
    """

    def write(rows: Iterable[Row]) -> Iterable[PieceWritten]:
        batches: list[pa.RecordBatch] = []
        piece: tuple[str, int] | None = None
        left = iter(rows)
        while some := list(islice(left, BATCH_ROWS)):
            piece = some[0][PERIOD], some[0][PIECE]
            columns = [
                pa.array([row[name] for row in some], kind) for name, kind in zip(ROWS.names, ROWS.types, strict=True)
            ]
            batches.append(pa.RecordBatch.from_arrays(columns, schema=ROWS))
        if piece is not None:
            yield _write(job, *piece, pa.Table.from_batches(batches, ROWS))

    return envelopes.repartitionById(pieces, F.col(PIECE)).rdd.mapPartitions(write).collect()


def look_into(spark: SparkSession, job: Job, files: Sequence[FileRows]) -> list[GroupSpan]:
    """The row groups of files of the archive, each of which was found to have the bytes that it should.

    Raises:
        PySparkException, Py4JError: a task has failed.
    """
    if not files:
        return []
    return spark.sparkContext.parallelize(files, len(files)).flatMap(lambda file: group_spans(job, file)).collect()


def by_period(written: Iterable[PieceWritten]) -> dict[str, Written]:
    """What all pieces of each period have together."""
    parts: dict[str, list[Written]] = defaultdict(list)
    for piece in written:
        parts[piece.period].append(piece.found)
    return {period: together(of_period) for period, of_period in parts.items()}


def write_piece(job: Job, piece: Piece) -> PieceWritten:
    """Read, sort, write and read back one piece: what a task does.

    Raises:
        ExportCheckFailed: what comes back is not what was written.
        ExportError: a store cannot be read.
        ArchiveError: the archive cannot be read or written.
    """
    files = TaskFiles(job.access)
    batches: list[pa.RecordBatch] = []
    faulty: list[Faulty] = []
    for source in piece.sources:
        if isinstance(source, FileRows):
            batches += _rows_of(files, job.layout, source).to_batches()
        else:
            for rows, set_aside in read_envelopes(source):
                batches.append(rows)
                faulty += set_aside
    table = pa.Table.from_batches(batches, ROWS)
    del batches
    return _write(job, piece.period, piece.number, table, tuple(faulty))


def group_spans(job: Job, file: FileRows) -> list[GroupSpan]:
    """The row groups of a file: what `look_into` does for each.

    Raises:
        ArchiveError: it cannot be read, or is not what it should be.
    """
    data = _checked(TaskFiles(job.access), file)
    return [
        GroupSpan(file.name, number, size, topics, created)
        for number, (size, topics, created) in enumerate(row_groups(data, job.layout, file.name))
    ]


def _rows_of(files: TaskFiles, layout: Layout, source: FileRows) -> pa.Table:
    """The rows of a file that belong to a piece; ROWS."""
    if source.groups is None:
        rows = decode(_checked(files, source), layout, source.name)
    else:
        with files.opened(source.name) as file:
            rows = read_row_groups(file, layout, source.name, source.groups)
    lower, upper = source.span
    if lower is not None:
        rows = rows.filter(pc.invert(_is_before(rows, lower)))
    return rows if upper is None else rows.filter(_is_before(rows, upper))


def _is_before(rows: pa.Table, key: Key) -> pa.ChunkedArray:
    topic, created = key
    same = pc.equal(rows.column("topic"), topic)
    return pc.or_(pc.less(rows.column("topic"), topic), pc.and_(same, pc.less(rows.column("created"), created)))


def _checked(files: TaskFiles, source: FileRows) -> pa.Buffer:
    """The bytes of a file. A footer has no checksum, and pyarrow may end the process where one is damaged."""
    data = files.read(source.name)
    if source.sha256 and hashlib.sha256(data).hexdigest() != source.sha256:
        raise ArchiveError(f"{source.name} is damaged: its bytes have another SHA-256 than its record says")
    return data


def _write(job: Job, period: str, number: int, rows: pa.Table, faulty: tuple[Faulty, ...] = ()) -> PieceWritten:
    """Sort rows, write them to a file in each of their directories, and read these back."""
    order = pc.sort_indices(rows, sort_keys=[(name, "ascending") for name in ORDER])
    rows = rows.take(order).combine_chunks()
    files = TaskFiles(job.access)
    parts = []
    name = f"part-{number:05}-{job.run}.c000.zstd.parquet"
    for value, of_directory in _directories(rows, job.layout):
        path = f"{job.layout.column}={value}/{name}"
        whole = f"{staged_data(job.run)}/{directory_of(period)}/{path}"
        data = encode(of_directory, job.layout, row_group_ends(of_directory))
        files.write(whole, data, f"{STAGING}/{job.run}/attempts/{_attempt()}/{period}-{value}-{name}")
        found = _read_back(files, whole, path, job.layout, period, of_directory)
        parts.append(found)
    return PieceWritten(period, together(parts), faulty)


def _attempt() -> int:
    """A number that no other attempt at a task has."""
    context = TaskContext.get()
    return 0 if context is None else context.taskAttemptId()


def _directories(rows: pa.Table, layout: Layout) -> Iterator[tuple[str, pa.Table]]:
    """The rows of each directory, by its value; they are sorted by topic."""
    values = rows.column("topic")
    if layout.prefix_digits:
        values = pc.utf8_slice_codeunits(values, 2, 2 + layout.prefix_digits)  # as `Layout.value`
    runs = pc.run_end_encode(values.combine_chunks())
    start = 0
    for value, end in zip(runs.values.to_pylist(), runs.run_ends.to_pylist(), strict=True):
        yield value, rows.slice(start, end - start)
        start = end


def _read_back(files: TaskFiles, name: str, path: str, layout: Layout, period: str, should: pa.Table) -> Written:
    """Read what was written from where it is, and say what it has."""
    data = files.read(name)
    rows = decode(data, layout, name)
    if not rows.equals(should):
        raise ExportCheckFailed(period, f"{path} does not come back as it was written")
    digest = hashlib.sha256(data).hexdigest()
    days, created = contents(rows)
    return Written(days, created, (FileRecord(path, data.size, rows.num_rows, digest),))
