"""What a task of the communities' run does: it makes the history archives of one range of one community.

Rows come sorted by time of creation, from wherever: an envelope that several sources have comes several times. Within a
second they are put into the order of the format here. So the archives are the same whatever the partitioning was.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from operator import itemgetter
from typing import NamedTuple

from mailserver.communities import deployed_format
from mailserver.communities.formats import CommunityMessage, TimeRange
from mailserver.communities.index import DEPLOYED, format_named
from mailserver.community.owner.appending import NewArchive
from mailserver.community.owner.record import OwnedChannel
from mailserver.errors import DecodeError
from mailserver.store.sqlite.schema import HASH_PREFIX_BYTES
from mailserver.waku.envelope import Topic, decode_envelope
from spark_export.community_messages import sealed_messages

BATCH_ROWS, BATCH_BYTES = 4000, 16 * 1024 * 1024
"""How many rows are converted at once, 2 MB of usual envelopes, or how many bytes of larger ones; or a few more."""


class CandidateRow(NamedTuple):
    """An envelope that may belong to a range: `created` in Unix seconds, `key` as in `published_ids`."""

    created: int
    key: bytes
    raw: bytes


@dataclass(frozen=True, slots=True)
class RangeWork:
    """The history archives to make of one range.

    `community`: its number in the run. `content_topics`: to list. `keys`: of each topic, what opens its messages in the
    deployed format. `channels`: all that the community ever had. `needs_messages`: whether there is no archive without
    messages. `published`: the keys of the envelopes that are in an archive of this range already.
    """

    community: int
    time_range: TimeRange
    format_name: str
    network_topic: str
    content_topics: tuple[str, ...]
    keys: Mapping[Topic, tuple[bytes, ...]]
    channels: tuple[OwnedChannel, ...]
    needs_messages: bool
    published: bytes = field(default=b"", repr=False)

    @property
    def topics(self) -> list[Topic]:
        """The topics of the channels that hold in the range, sorted."""
        return sorted({each.topic for each in self.channels if each.held_in(self.time_range)})

    def holds(self) -> Callable[[bytes, int], bool]:
        """What says whether an envelope of a topic, created in a second, belongs to the community."""
        by_topic: dict[bytes, list[OwnedChannel]] = {}
        for each in self.channels:
            by_topic.setdefault(each.topic, []).append(each)
        return lambda topic, created: any(each.holds_at(created) for each in by_topic[topic])

    def published_keys(self) -> frozenset[bytes]:
        """The keys, each by itself."""
        return frozenset(
            self.published[at : at + HASH_PREFIX_BYTES] for at in range(0, len(self.published), HASH_PREFIX_BYTES)
        )


@dataclass(slots=True)
class Skipped:
    """How many envelopes are in no archive: `unopened` by any key of their channel, `damaged` or without an id."""

    unopened: int = 0
    damaged: int = 0


def archives_of(work: RangeWork, rows: Iterable[CandidateRow], skipped: Skipped) -> Iterator[NewArchive]:
    """Make the archives of a range.

    Args:
        rows: by time of creation; the same envelope may come several times.
        skipped: is added to.
    """
    form = format_named(work.format_name, work.network_topic)
    keys: list[bytes] = []
    messages = _messages(work, rows, keys, skipped)
    if work.needs_messages:
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
    for some in _seconds(rows):
        unique = {row.key: row for row in some}
        converted = zip(convert(work, [*unique.values()], skipped), unique, strict=True)
        for message, key in sorted((message, key) for message, key in converted if message is not None):
            keys.append(key)
            yield message


def _seconds(rows: Iterable[CandidateRow]) -> Iterator[list[CandidateRow]]:
    """Some thousand rows at a time, fewer if they are large: all of some seconds."""
    some: list[CandidateRow] = []
    size = 0
    for _, of_second in groupby(rows, itemgetter(0)):
        second = list(of_second)
        some += second
        size += sum(len(row.raw) for row in second)
        if len(some) >= BATCH_ROWS or size >= BATCH_BYTES:
            yield some
            some, size = [], 0
    if some:
        yield some


def _sealed(work: RangeWork, rows: Sequence[CandidateRow], skipped: Skipped) -> list[CommunityMessage | None]:
    messages = sealed_messages(work.network_topic, [row.raw for row in rows])
    skipped.damaged += messages.count(None)
    return messages


def _opened(work: RangeWork, rows: Sequence[CandidateRow], skipped: Skipped) -> list[CommunityMessage | None]:
    return [_opened_one(work, row, skipped) for row in rows]


def _opened_one(work: RangeWork, row: CandidateRow, skipped: Skipped) -> CommunityMessage | None:
    try:
        envelope = decode_envelope(row.raw)
    except DecodeError:
        skipped.damaged += 1
        return None
    opened = deployed_format.opened_by_one_of(work.keys.get(envelope.topic, ()), envelope)
    if opened is None:
        skipped.unopened += 1
        return None
    return deployed_format.message_of(envelope, opened)


def _chained(first: CommunityMessage, rest: Iterator[CommunityMessage]) -> Iterator[CommunityMessage]:
    yield first
    yield from rest
