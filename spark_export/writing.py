"""Writing periods into the staging directory. Each task reads a piece, sorts it, writes its files, and reads them back.

Spark hands out the pieces and collects the results; the rows stay in the worker, in Arrow. Two tasks that get the same
piece write the same bytes, so a task may be tried again.
"""

import hashlib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from io import BytesIO

import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F

from mailserver.archive.errors import ArchiveError, ArchiveFault
from mailserver.archive.index import check, id_sums
from mailserver.archive.index.layout import Table
from mailserver.archive.layout import PERIOD, Layout
from mailserver.archive.manifest import FileRecord, IndexRecord
from mailserver.archive.paths import STAGING, directory_of, index_of, staged_data
from mailserver.ids.muid import DEFAULT_NETWORK_TOPIC
from spark_export.errors import ExportCheckFailed
from spark_export.indexing import Fragments, fragment_of, write_index
from spark_export.muids import with_muids
from spark_export.parquet_file import ROWS, decode, encode, read_row_groups, row_group_ends, row_groups
from spark_export.pieces import FileRows, GroupSpan, Piece, TopicTime, path_in_period
from spark_export.session import tasks_failures_told
from spark_export.source import Faulty, batched, read_envelopes
from spark_export.task_files import TaskFiles
from spark_export.tasks import in_tasks, without_collector
from spark_export.unsorted import Unsorted
from spark_export.written import Written, contents, together

PIECE = "_piece"
"""Column of frames that are written: which piece a row goes into."""


@dataclass(frozen=True, slots=True)
class WritingJob:
    """What all tasks of one writing have in common. `url`: of the archive. `network_topic`: to which the MUIDs of the
    rows belong."""

    url: str
    layout: Layout
    run: str
    network_topic: str = DEFAULT_NETWORK_TOPIC


@dataclass(frozen=True, slots=True)
class PieceWritten:
    """What was read back of one piece, and the rows of its stores that are no envelopes and were left out."""

    period: str
    found: Written
    fragments: Fragments
    faulty: tuple[Faulty, ...] = ()


def write_pieces(spark: SparkSession, job: WritingJob, pieces: Sequence[Piece]) -> list[PieceWritten]:
    """Write each piece in a task of its own.

    Raises:
        ArchiveError, ExportError: a task has raised one of these.
        PySparkException, Py4JError: Spark has failed.
    """
    return in_tasks(spark, pieces, partial(write_piece, job))


def write_frame(envelopes: DataFrame, job: WritingJob, pieces: int) -> list[PieceWritten]:
    """Write rows that only Spark can read.

    Args:
        envelopes: ENVELOPES with the columns date and PIECE: numbers below `pieces`, each of one date.
    Raises:
        ArchiveError, ExportError: a task has raised one of these.
        PySparkException, Py4JError: Spark has failed.
    """
    with tasks_failures_told():
        return envelopes.repartitionById(pieces, F.col(PIECE)).rdd.mapPartitions(partial(_write_rows, job)).collect()


def _write_rows(job: WritingJob, rows: Iterable[Row]) -> Iterable[PieceWritten]:
    """In a task: write the rows of one piece, if there are any."""
    gathered = Unsorted()
    piece: tuple[str, int] | None = None
    for some in batched(rows, lambda row: len(row["raw"])):
        piece = some[0][PERIOD], some[0][PIECE]
        columns = [
            pa.array([row[name] for row in some], kind) for name, kind in zip(ROWS.names, ROWS.types, strict=True)
        ]
        gathered.add(pa.RecordBatch.from_arrays(columns, schema=ROWS))
    if piece is not None:
        yield _write(job, *piece, with_muids(gathered.in_order(), job.network_topic))


def look_into(spark: SparkSession, job: WritingJob, files: Sequence[FileRows]) -> list[GroupSpan]:
    """Return the row groups of files of the archive, whose bytes are compared with their digests first.

    Raises:
        ArchiveError, ExportError: a task has raised one of these.
        PySparkException, Py4JError: Spark has failed.
    """
    return [span for spans in in_tasks(spark, files, partial(group_spans, job)) for span in spans]


def index_pieces(spark: SparkSession, job: WritingJob, pieces: Sequence[Piece], *, has_muids: bool) -> list[Fragments]:
    """Make the fragments of files that are in their places already, as `write_pieces` does of files that it writes.

    Args:
        has_muids: whether their rows have MUIDs, which belong to the job's network topic.

    Raises:
        ArchiveError, ExportError: a task has raised one of these.
        PySparkException, Py4JError: Spark has failed.
    """
    return in_tasks(spark, pieces, partial(index_piece, job, has_muids=has_muids))


def by_period(written: Iterable[PieceWritten]) -> dict[str, Written]:
    """What all pieces of each period have together."""
    return {period: together([piece.found for piece in pieces]) for period, pieces in _with_files(written).items()}


def write_indexes(job: WritingJob, written: Iterable[PieceWritten]) -> dict[str, IndexRecord]:
    """Write the index of each period from the fragments of its pieces.

    Raises:
        ArchiveError: the archive cannot be read or written.
    """
    files = TaskFiles(job.url)
    return {
        period: write_period_index(files, job, period, job.run, [piece.fragments for piece in pieces])
        for period, pieces in _with_files(written).items()
    }


def _with_files(written: Iterable[PieceWritten]) -> dict[str, list[PieceWritten]]:
    """The pieces that have rows, by their periods."""
    found: dict[str, list[PieceWritten]] = defaultdict(list)
    for piece in written:
        if piece.found.files:
            found[piece.period].append(piece)
    return found


def write_period_index(
    files: TaskFiles, job: WritingJob, period: str, run: str, fragments: Sequence[Fragments]
) -> IndexRecord:
    """Put the index of a period together, as `run` has written its files.

    Raises:
        ArchiveError: the archive cannot be read or written.
    """
    return write_index(files, index_of(period, run), fragments, f"{_attempts(job)}/{period}.index", job.network_topic)


@without_collector()
def write_piece(job: WritingJob, piece: Piece) -> PieceWritten:
    """Read, sort, write and read back one piece: what a task does.

    Raises:
        ExportCheckFailed: what comes back is not what was written.
        ExportError: a store cannot be read.
        ArchiveError: the archive cannot be read or written.
    """
    files = TaskFiles(job.url)
    gathered = Unsorted()
    faulty: list[Faulty] = []
    for source in piece.sources:
        if isinstance(source, FileRows):
            for rows in with_muids(_rows_of(files, job.layout, source), job.network_topic).to_batches():
                gathered.add(rows)
        else:
            for rows, set_aside in read_envelopes(source, job.network_topic):
                gathered.add(rows)
                faulty += set_aside
    return _write(job, piece.period, piece.number, gathered.in_order(), tuple(faulty))


def index_piece(job: WritingJob, piece: Piece, *, has_muids: bool) -> Fragments:
    """Make the fragments of the files of a piece: what `index_pieces` does for each.

    Raises:
        ArchiveError: one cannot be read, or is not what it should be; or the archive cannot be written.
    """
    files = TaskFiles(job.url)
    parts, sums = [], []
    for source in piece.sources:
        assert isinstance(source, FileRows)
        data, path = _checked(files, source), path_in_period(source.name)
        parts.append((path, check.fragment_of(BytesIO(data), check.topic_of(path))))
        if has_muids:
            sums.append(check.sums_in(BytesIO(data)))
    return _keep_fragments(files, job, piece.period, piece.number, parts, id_sums.together(sums) if has_muids else None)


def group_spans(job: WritingJob, file: FileRows) -> list[GroupSpan]:
    """The row groups of a file: what `look_into` does for each.

    Raises:
        ArchiveError: it cannot be read, or is not what it should be.
    """
    data = _checked(TaskFiles(job.url), file)
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


def _is_before(rows: pa.Table, key: TopicTime) -> pa.ChunkedArray:
    topic, created = key
    same = pc.equal(rows.column("topic"), topic)
    return pc.or_(pc.less(rows.column("topic"), topic), pc.and_(same, pc.less(rows.column("created"), created)))


def _checked(files: TaskFiles, source: FileRows) -> pa.Buffer:
    """The bytes of a file. A footer has no checksum, and pyarrow may end the process where one is damaged."""
    data = files.read(source.name)
    if source.sha256 and hashlib.sha256(data).hexdigest() != source.sha256:
        raise ArchiveError(f"{source.name} is damaged: its bytes have another SHA-256 than its record says")
    return data


def _write(job: WritingJob, period: str, number: int, rows: pa.Table, faulty: tuple[Faulty, ...] = ()) -> PieceWritten:
    """Write rows, which are sorted, to a file in each of their directories, and read these back.

    Args:
        rows: ROWS with MUIDs of the job's network topic: no file brings those of another one along.
    """
    files = TaskFiles(job.url)
    found = []
    fragments = []
    name = f"part-{number:05}-{job.run}.c000.zstd.parquet"
    for value, of_directory in _directories(rows, job.layout):
        path = f"{job.layout.column}={value}/{name}"
        whole = f"{staged_data(job.run)}/{directory_of(period)}/{path}"
        ends = row_group_ends(of_directory)
        files.write(whole, encode(of_directory, job.layout, ends), f"{_attempts(job)}/{period}-{value}-{name}")
        part, fragment = _read_back(files, whole, job.layout, period, of_directory, ends)
        files.flush(whole)
        found.append(part)
        fragments.append((path, fragment))
    sums = id_sums.sums_of(rows.column("created"), rows.column("muid"))  # the rows have come back as they are here
    kept = _keep_fragments(files, job, period, number, fragments, sums)
    return PieceWritten(period, together(found), kept, faulty)


def _keep_fragments(
    files: TaskFiles,
    job: WritingJob,
    period: str,
    number: int,
    fragments: Sequence[tuple[str, bytes]],
    sums: Table | None,
) -> Fragments:
    """Put the fragments of a piece, and the sums of its ids, where the driver finds them."""
    name = f"{STAGING}/{job.run}/fragments/{period}-{number:05}"
    if fragments:
        parts = [fragment for _, fragment in fragments]
        content = pa.py_buffer(b"".join(parts if sums is None else [*parts, sums.tobytes()]))
        files.write(name, content, f"{_attempts(job)}/{period}-{number:05}.fragments")
    sizes = tuple((path, len(fragment)) for path, fragment in fragments)
    return Fragments(name, sizes, None if sums is None else len(sums))


def _attempts(job: WritingJob) -> str:
    """Where this attempt at a task, or the driver, may have files until they are whole."""
    context = TaskContext.get()
    return f"{STAGING}/{job.run}/attempts/{'driver' if context is None else context.taskAttemptId()}"


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


def _read_back(
    files: TaskFiles, name: str, layout: Layout, period: str, should: pa.Table, ends: Sequence[int]
) -> tuple[Written, bytes]:
    """Read what was written from where it is; return what it has, and its fragment of the index."""
    data, path = files.read(name), path_in_period(name)
    rows = decode(data, layout, name)
    if not rows.equals(should):
        raise ExportCheckFailed(period, f"{path} does not come back as it was written")
    try:
        fragment = fragment_of(rows, ends, data)
    except ArchiveFault as error:
        raise ExportCheckFailed(period, f"{path}: {error}") from error
    digest = hashlib.sha256(data).hexdigest()
    days, created = contents(rows)
    return Written(days, created, (FileRecord(path, data.size, rows.num_rows, digest),)), fragment
