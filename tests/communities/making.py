"""Communities for tests: keys, channels, envelopes that their members have sealed, histories, and what is published.

All of it is the same each time: no clock, no randomness, no proof of work.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from mailserver.codec.keccak import keccak256
from mailserver.codec.keys import PrivateKey
from mailserver.communities.application import sign_application_message
from mailserver.communities.channels import Channel, CommunityId, community_id
from mailserver.communities.deployed_format import message_of
from mailserver.communities.formats import CommunityMessage, Format, TimeRange
from mailserver.communities.index import IndexEntry, encode_index, entry_of
from mailserver.communities.ranges import range_of
from mailserver.communities.spec_format import SpecFormat
from mailserver.ids.envelopes import content_topic_of
from mailserver.ids.muid import DEFAULT_NETWORK_TOPIC
from mailserver.waku.envelope import Envelope, Topic, encode_envelope
from mailserver.waku.payload import open_symmetric, seal_symmetric

SPEC = SpecFormat(DEFAULT_NETWORK_TOPIC)

WEEK = range_of(1_700_000_000)
"""A range to begin with: November 2023."""

TTL_S = 50
CHAT_MESSAGE = 1
"""The type of an ApplicationMetadataMessage that somebody has written."""


@dataclass(frozen=True, slots=True)
class Community:
    """A community: its key, and its channels, whose keys are known."""

    key: PrivateKey
    channels: tuple[Channel, ...]

    @property
    def id(self) -> CommunityId:
        """Its id."""
        return community_id(self.key.public_key)

    @property
    def content_topics(self) -> tuple[str, ...]:
        """Those of its channels."""
        return tuple(channel.content_topic for channel in self.channels)


def community(number: int = 1, channels: int = 3) -> Community:
    """The community of a number; each has other keys and topics. It takes no time, unlike keys of real chats."""
    made = []
    for place in range(channels):
        seed = keccak256(f"community {number} channel {place}".encode())
        made.append(Channel(f"channel-{place}", content_topic_of(Topic(seed[:4])), seed))
    return Community(PrivateKey(keccak256(f"community {number}".encode())), tuple(made))


def envelope(channel: Channel, created: int, number: int = 0, *, text: str = "") -> Envelope:
    """What a member writes in a channel. `number` tells apart what is created in the same second."""
    seed = keccak256(f"{channel.content_topic} {created} {number}".encode())
    member = PrivateKey(keccak256(f"member {number % 7}".encode()))
    payload = sign_application_message((text or f"message {number}").encode(), CHAT_MESSAGE, member)
    assert channel.key is not None
    data = seal_symmetric(payload, channel.key, nonce=seed[:12], padding=seed * 8, signing_key=member)
    return encode_envelope(created + TTL_S, TTL_S, channel.topic, data, int.from_bytes(seed[-8:], "big"))


def history(
    of: Community, first: TimeRange, ranges: int, per_range: int, *, empty: Iterable[int] = ()
) -> list[Envelope]:
    """The envelopes of so many ranges, evenly spread over each and over the channels, the oldest first.

    Args:
        empty: the ranges without any, by their place.
    """
    length, nothing = first.upper - first.lower, {*empty}
    return [
        envelope(
            of.channels[number % len(of.channels)],
            first.lower + place * length + number * length // per_range,
            place * per_range + number,
        )
        for place in range(ranges)
        if place not in nothing
        for number in range(per_range)
    ]


def spec_messages(envelopes: Iterable[Envelope]) -> list[CommunityMessage]:
    """In the form of the specification, in order."""
    return sorted(map(SPEC.message_of, envelopes))


def deployed_messages(of: Community, envelopes: Iterable[Envelope]) -> list[CommunityMessage]:
    """In the deployed form, in order."""
    keys = {channel.topic: channel.key for channel in of.channels}
    messages = []
    for each in envelopes:
        key = keys[each.topic]
        assert key is not None
        messages.append(message_of(each, open_symmetric(each.data, key)))
    return sorted(messages)


def messages(form: Format, of: Community, envelopes: Iterable[Envelope]) -> list[CommunityMessage]:
    """In either form, in order."""
    return spec_messages(envelopes) if form.name == "spec" else deployed_messages(of, envelopes)


@dataclass(frozen=True, slots=True)
class Published:
    """The files of a community's torrent, and what its index says."""

    data: bytes
    index: bytes
    entries: tuple[IndexEntry, ...]


def publish(
    form: Format,
    content_topics: Sequence[str],
    ranges: Mapping[TimeRange, Sequence[CommunityMessage]] | Sequence[tuple[TimeRange, Sequence[CommunityMessage]]],
    before: Published | None = None,
) -> Published:
    """Append the archives of these ranges, in this order, to what was published before. A range may come twice."""
    data, entries = bytearray(before.data if before else b""), list(before.entries if before else ())
    for time_range, found in ranges.items() if isinstance(ranges, Mapping) else ranges:
        for encoded in form.encode_archives(time_range, content_topics, found):
            entries.append(entry_of(form, encoded, len(data)))
            data += encoded.data
    return Published(bytes(data), encode_index(form, entries), tuple(entries))


def by_range(
    found: Iterable[CommunityMessage], period_s: int = WEEK.upper - WEEK.lower
) -> dict[TimeRange, list[CommunityMessage]]:
    """Messages by the ranges in which they lie, in order."""
    ranges: dict[TimeRange, list[CommunityMessage]] = {}
    for message in sorted(found):
        ranges.setdefault(range_of(message.timestamp_ns // 1_000_000_000, period_s), []).append(message)
    return ranges
