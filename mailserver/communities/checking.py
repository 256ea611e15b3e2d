"""What a member checks of an index and of each history archive, before anything is imported (61/STATUS)."""

from collections import Counter
from dataclasses import dataclass
from enum import Enum

from mailserver.communities.formats import PIECE_BYTES, Format, HistoryArchive
from mailserver.communities.index import HistoryIndex, IndexEntry
from mailserver.errors import DecodeError


class HistoryFault(Enum):
    """What is wrong with an index or a history archive. The value is for people, and for labels of metrics."""

    GAP = "offsets of the index leave a gap, or overlap"
    PIECES = "a history archive is not in whole pieces"
    DATA_LENGTH = "the index does not fit the length of the data"
    SIZE = "it has another size than the index says"
    UNREADABLE = "it does not decode"
    RANGE = "it is of another range than the index says"
    TOPICS = "it lists other topics than the index does"
    MESSAGE_RANGE = "a message lies outside of its range"
    MESSAGE_TOPIC = "a message is of a topic that it does not list"
    TWICE = "a message is in it twice"


@dataclass(frozen=True, slots=True)
class HistoryFinding:
    """One fault. `detail` is for the log: numbers, no content."""

    fault: HistoryFault
    detail: str


@dataclass(frozen=True, slots=True)
class CheckedArchive:
    """A history archive that was looked at: `archive` is None if there are findings."""

    archive: HistoryArchive | None
    findings: tuple[HistoryFinding, ...]


def check_index(index: HistoryIndex, data_bytes: int) -> list[HistoryFinding]:
    """Check that the archives of an index fill `data`, one after the other, in whole pieces.

    Args:
        data_bytes: length of the torrent's file `data`.
    """
    findings, end = [], 0
    for entry in index.entries:
        if entry.offset != end:
            findings.append(
                HistoryFinding(HistoryFault.GAP, f"archive {entry.id} begins at {entry.offset}, not at {end}")
            )
        if entry.offset % PIECE_BYTES or entry.size % PIECE_BYTES:
            findings.append(
                HistoryFinding(HistoryFault.PIECES, f"archive {entry.id} has {entry.size} bytes at {entry.offset}")
            )
        end = entry.end
    if end != data_bytes:
        findings.append(HistoryFinding(HistoryFault.DATA_LENGTH, f"the index ends at {end}, the data at {data_bytes}"))
    return findings


def check_archive(form: Format, entry: IndexEntry, data: bytes) -> CheckedArchive:
    """Check a history archive against its entry, and decode it.

    Args:
        data: from the entry's offset, as many bytes as its size.
    """
    if len(data) != entry.size:
        return _refused(HistoryFault.SIZE, f"{len(data)} bytes, not {entry.size}")
    try:
        archive = form.decode_archive(data, entry.padding)
    except DecodeError as error:
        return _refused(HistoryFault.UNREADABLE, str(error))
    findings = []
    if archive.time_range != entry.time_range:
        findings.append(HistoryFinding(HistoryFault.RANGE, f"{archive.time_range}, not {entry.time_range}"))
    if set(archive.content_topics) != set(entry.content_topics):
        findings.append(
            HistoryFinding(HistoryFault.TOPICS, f"{len(archive.content_topics)}, not {len(entry.content_topics)}")
        )
    findings += _message_findings(archive)
    return CheckedArchive(None if findings else archive, tuple(findings))


def _message_findings(archive: HistoryArchive) -> list[HistoryFinding]:
    time_range, topics, seen = archive.time_range, frozenset(archive.content_topics), set[bytes]()
    counts: Counter[HistoryFault] = Counter()
    for message in archive.messages:
        if not time_range.has(message.timestamp_ns):
            counts[HistoryFault.MESSAGE_RANGE] += 1
        if message.content_topic not in topics:
            counts[HistoryFault.MESSAGE_TOPIC] += 1
        if message.hash in seen:
            counts[HistoryFault.TWICE] += 1
        seen.add(message.hash)
    return [HistoryFinding(fault, f"{count} of {len(archive.messages)} messages") for fault, count in counts.items()]


def _refused(fault: HistoryFault, detail: str) -> CheckedArchive:
    return CheckedArchive(None, (HistoryFinding(fault, detail),))
