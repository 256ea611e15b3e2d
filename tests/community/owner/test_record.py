"""What the owner may say of a community."""

import pytest

from mailserver.communities.channels import Channel
from mailserver.communities.formats import TimeRange
from mailserver.community.owner.record import MAX_CHANNELS, Community, CommunityError, OwnedChannel, new_community
from tests.community.owner.samples import ATTIC, GARDEN, KITCHEN, REGISTERED, channel, garden, week

NETWORK = "/waku/2/rs/1/4"


def test_record_comes_back_as_it_was_written() -> None:
    community = garden(GARDEN, KITCHEN).without_channel(channel(KITCHEN).name, at=REGISTERED + 5)
    community = community.with_channel(Channel("locked", channel(ATTIC).content_topic, bytes(32)), since=7)

    assert Community.decode(community.encode()) == community


@pytest.mark.parametrize(
    "change",
    [
        {"format": "other"},
        {"enabled": 1},
        {"registered": -1},
        {"channels": {}},
        {"channels": ["garden"]},
        {"channels": [{"name": "a", "content_topic": "/waku/2/x"}]},
        {"channels": [{"name": "a", "content_topic": "/waku/1/0x00000001/rfc26", "key": "00"}]},
        {"channels": [{"name": "a", "content_topic": "/waku/1/0x00000001/rfc26", "key": "x"}]},
        {"channels": [{"name": "a", "content_topic": "/waku/1/0x00000001/rfc26", "since": 2**32}]},
    ],
    ids=lambda change: str(change)[:60],
)
def test_record_that_says_something_else_is_refused(change: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r".+"):
        Community.decode(garden().encode() | change)


def test_channel_that_is_added_again_is_changed_and_keeps_its_beginning() -> None:
    community = garden().with_channel(channel(KITCHEN, "kitchen"), since=100)

    community = community.with_channel(Channel("pantry", channel(KITCHEN).content_topic, bytes(32)))

    assert [(each.name, each.since, each.key) for each in community.channels][1:] == [("pantry", 100, bytes(32))]


def test_channel_that_was_switched_off_keeps_its_time_and_can_begin_anew() -> None:
    community = garden().without_channel(channel(GARDEN).content_topic, at=500)

    community = community.with_channel(channel(GARDEN), since=700)

    first, second = community.channels
    assert [at for at in (499, 500, 699, 700) if first.holds_at(at) or second.holds_at(at)] == [499, 700]


def test_range_lists_the_topics_of_channels_that_held_in_it() -> None:
    community = garden(GARDEN, KITCHEN).without_channel(channel(KITCHEN).name, at=week(1).lower)
    community = community.with_channel(channel(ATTIC), since=week(1).upper - 1)

    listed = {number: community.content_topics(week(number)) for number in range(3)}

    garden_topic, kitchen, attic = (channel(each).content_topic for each in (GARDEN, KITCHEN, ATTIC))
    assert listed == {0: (garden_topic, kitchen), 1: (garden_topic, attic), 2: (garden_topic, attic)}


def test_channel_without_any_time_holds_in_no_range() -> None:
    assert not OwnedChannel("a", channel(GARDEN).content_topic, None, 50, 50).held_in(TimeRange(0, 100))


@pytest.mark.parametrize("name", ["", "two\nlines", "x" * 201])
def test_name_that_is_none_is_refused(name: str) -> None:
    with pytest.raises(CommunityError, match="no name"):
        new_community(name, "spec", NETWORK, 0)
    with pytest.raises(CommunityError, match="no name"):
        garden().with_channel(Channel(name, channel(KITCHEN).content_topic))


def test_channels_that_cannot_be_are_refused() -> None:
    community = garden()
    with pytest.raises(CommunityError, match="already has"):
        community.with_channel(channel(KITCHEN, channel(GARDEN).name))
    with pytest.raises(CommunityError, match="32 bytes"):
        community.with_channel(Channel("a", channel(KITCHEN).content_topic, bytes(5)))
    with pytest.raises(CommunityError, match="none of Waku v1"):
        community.with_channel(Channel("a", "/app/1/a/proto"))
    with pytest.raises(CommunityError, match="needs a key"):
        new_community("a", "deployed", NETWORK, 0).with_channel(channel(KITCHEN))
    with pytest.raises(CommunityError, match="no format"):
        new_community("a", "zip", NETWORK, 0)
    with pytest.raises(CommunityError, match="no channel"):
        community.without_channel("attic", at=5)
    with pytest.raises(CommunityError, match="begins later"):
        community.with_channel(channel(KITCHEN), since=9).without_channel(channel(KITCHEN).name, at=8)


def test_community_has_a_bound_on_its_channels() -> None:
    channels = tuple(
        OwnedChannel(f"{number}", channel(GARDEN).content_topic, until=1) for number in range(MAX_CHANNELS)
    )
    full = Community("Full", "spec", NETWORK, 0, channels)

    with pytest.raises(CommunityError, match="no more"):
        full.with_channel(channel(KITCHEN))


def test_key_of_a_channel_is_not_shown() -> None:
    assert bytes(32).hex() not in repr(OwnedChannel("a", channel(GARDEN).content_topic, bytes(32)))
    assert "key" not in repr(OwnedChannel("a", channel(GARDEN).content_topic, bytes(32)))
