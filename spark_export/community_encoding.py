"""What a task of the communities' run does: it makes the history archives of one range of one community.

Rows come sorted by time of creation, from wherever: an envelope that several sources have comes several times. Within a
second they are put into the order of the format here. So the archives are the same whatever the partitioning was.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from typing import NamedTuple

from mailserver.communities import deployed_format
from mailserver.communities.formats import CommunityMessage, TimeRange
from mailserver.communities.index import DEPLOYED, format_named
from mailserver.communities.spec_format import SpecFormat
from mailserver.community.owner.appending import NewArchive
from mailserver.errors import DecodeError
from mailserver.ids.muid import NoId
from mailserver.waku.envelope import Topic, decode_envelope
from mailserver.waku.payload import open_symmetric


class CandidateRow(NamedTuple):
    """An envelope that may belong to a range: `created` in Unix seconds, `key` as in `published_ids`."""

    created: int
    key: bytes
    raw: bytes


@dataclass(frozen=True, slots=True)
class RangeWork:
    """The history archives to make of one range.

    `community`: its number in the run. `content_topics`: to list. `keys`: of each topic, what opens its messages in the
    deployed format. `is_further`: the range has archives already, and these are for what came late.
    """

    community: int
    time_range: TimeRange
    format_name: str
    network_topic: str
    content_topics: tuple[str, ...]
    keys: Mapping[Topic, tuple[bytes, ...]]
    is_further: bool


@dataclass(slots=True)
class Skipped:
    """How many envelopes are in no archive: `unopened` by any key of their channel, `damaged` or without an id."""

    unopened: int = 0
    damaged: int = 0


def archives_of(work: RangeWork, rows: Iterable[CandidateRow], skipped: Skipped) -> Iterator[NewArchive]:
    """Make the archives of a range. A further one without messages is none.

    Args:
        rows: by time of creation; the same envelope may come several times.
        skipped: is added to.
    """
    form = format_named(work.format_name, work.network_topic)
    keys: list[bytes] = []
    messages = _messages(work, rows, keys, skipped)
    if work.is_further:
        first = next(messages, None)
        if first is None:
            return
        messages = _chained(first, messages)
    for encoded in form.encode_archives(work.time_range, work.content_topics, messages):
        yield NewArchive(encoded, b"".join(keys[: encoded.messages]))
        del keys[: encoded.messages]


def _messages(
    work: RangeWork, rows: Iterable[CandidateRow], keys: list[bytes], skipped: Skipped
) -> Iterator[CommunityMessage]:
    """The messages in the order of the format; the key of each is appended to `keys` before it comes."""
    convert = _opened if work.format_name == DEPLOYED else _sealed
    for _, second in groupby(rows, itemgetter(0)):
        unique = {row.key: row for row in second}
        converted = []
        for key, row in unique.items():
            message = convert(work, row, skipped)
            if message is not None:
                converted.append((message, key))
        converted.sort()
        for message, key in converted:
            keys.append(key)
            yield message


def _sealed(work: RangeWork, row: CandidateRow, skipped: Skipped) -> CommunityMessage | None:
    try:
        return SpecFormat(work.network_topic).message_of(decode_envelope(row.raw))
    except (DecodeError, NoId):
        skipped.damaged += 1
        return None


def _opened(work: RangeWork, row: CandidateRow, skipped: Skipped) -> CommunityMessage | None:
    try:
        envelope = decode_envelope(row.raw)
    except DecodeError:
        skipped.damaged += 1
        return None
    for key in work.keys.get(envelope.topic, ()):
        try:
            return deployed_format.message_of(envelope, open_symmetric(envelope.data, key))
        except DecodeError:  # sealed with another key: somebody else's, on the same topic
            continue
    skipped.unopened += 1
    return None


def _chained(first: CommunityMessage, rest: Iterator[CommunityMessage]) -> Iterator[CommunityMessage]:
    yield first
    yield from rest
