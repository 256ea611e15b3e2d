"""Communities of ours, and envelopes of their channels."""

import random
from pathlib import Path

from mailserver.codec.keys import PrivateKey
from mailserver.communities.channels import Channel
from mailserver.communities.formats import TimeRange
from mailserver.communities.ranges import PERIOD_S
from mailserver.communities.spec_format import SpecFormat
from mailserver.community.owner.appending import NewArchive
from mailserver.community.owner.folders import CommunityFolder, create
from mailserver.community.owner.record import Community, new_community
from mailserver.ids.envelopes import content_topic_of
from mailserver.ids.muid import DEFAULT_NETWORK_TOPIC
from mailserver.waku.envelope import Envelope, Topic, encode_envelope

OWNER = PrivateKey(bytes([7]) * 32)
OTHER_OWNER = PrivateKey(bytes([8]) * 32)

GARDEN, KITCHEN, ATTIC = (Topic(bytes([0, 0, 0, number])) for number in (1, 2, 3))

FIRST_WEEK = 2858
REGISTERED = FIRST_WEEK * PERIOD_S + 1000
TTL = 50


def week(number: int) -> TimeRange:
    """A range, counted from FIRST_WEEK."""
    lower = (FIRST_WEEK + number) * PERIOD_S
    return TimeRange(lower, lower + PERIOD_S)


def sealed(created: int, number: int = 0, topic: Topic = GARDEN, size: int = 60) -> Envelope:
    """An envelope; another number gives another one."""
    data = random.Random(number).randbytes(size)
    return encode_envelope(created + TTL, TTL, topic, data, number)


def channel(topic: Topic, name: str = "") -> Channel:
    """A channel without a key."""
    return Channel(name or f"channel {topic.hex()}", content_topic_of(topic))


def garden(*topics: Topic, registered: int = REGISTERED) -> Community:
    """A community with these channels, from the beginning."""
    community = new_community("Garden", "spec", DEFAULT_NETWORK_TOPIC, registered)
    for topic in topics or (GARDEN,):
        community = community.with_channel(channel(topic))
    return community


def made_in(communities: Path, community: Community | None = None, key: PrivateKey = OWNER) -> CommunityFolder:
    """Make a community on disk."""
    return create(communities, community or garden(), key)


def archives_of(community: Community, number: int, *envelopes: Envelope) -> list[NewArchive]:
    """The history archives of a week, made without the job."""
    form = SpecFormat(community.network_topic)
    pairs = sorted((form.message_of(each), each.hash()[:16]) for each in envelopes)
    encoded = [
        *form.encode_archives(week(number), community.content_topics(week(number)), [message for message, _ in pairs])
    ]
    assert len(encoded) == 1
    return [NewArchive(encoded[0], b"".join(key for _, key in pairs))]
