"""mailserver.waku.packets: what holds for a peer after its Status and its updates, and what an update of ours says."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mailserver.waku.bloom import EMPTY_BLOOM, FULL_BLOOM, Interest, PackedTopics, bloom_of
from mailserver.waku.envelope import Topic
from mailserver.waku.packets import MAX_UNPACKED_TOPICS, PeerSettings, RateLimits, StatusOptions
from tests.properties import settings
from tests.waku.packets import NEWS, NO_LIMITS, SPORT

# What holds for a peer


def test_empty_status_means_the_defaults() -> None:
    settings_of_peer = PeerSettings().updated(StatusOptions.decode(b"\xc0"))

    assert settings_of_peer == PeerSettings(
        pow_requirement=0.001,
        interest=Interest(topics=None, bloom=FULL_BLOOM),
        light_node=False,
        confirmations=False,
        packet_rate_limits=NO_LIMITS,
        byte_rate_limits=NO_LIMITS,
    )


FULL_SETTINGS = PeerSettings(
    pow_requirement=0.25,
    interest=Interest(topics=frozenset({NEWS})),
    light_node=True,
    confirmations=True,
    packet_rate_limits=RateLimits(1, 2, 3),
    byte_rate_limits=RateLimits(4, 5, 6),
)


def test_empty_update_changes_nothing() -> None:
    assert FULL_SETTINGS.updated(StatusOptions()) == FULL_SETTINGS


@pytest.mark.parametrize(
    ("options", "changed"),
    [
        (StatusOptions(pow_requirement=0.0), {"pow_requirement": 0.0}),
        (StatusOptions(light_node=False), {"light_node": False}),
        (StatusOptions(confirmations=False), {"confirmations": False}),
        (StatusOptions(packet_rate_limits=NO_LIMITS), {"packet_rate_limits": NO_LIMITS}),
        (StatusOptions(byte_rate_limits=NO_LIMITS), {"byte_rate_limits": NO_LIMITS}),
        (StatusOptions(topic_interest=frozenset()), {"interest": Interest(topics=frozenset())}),
        (StatusOptions(bloom=EMPTY_BLOOM), {"interest": Interest(bloom=EMPTY_BLOOM)}),
    ],
    ids=["pow", "light node", "confirmations", "packet limits", "byte limits", "topics", "bloom"],
)
def test_update_changes_what_it_names_and_nothing_else(options: StatusOptions, changed: dict[str, Any]) -> None:
    assert FULL_SETTINGS.updated(options) == replace(FULL_SETTINGS, **changed)


def test_update_with_a_bloom_alone_discards_the_topics() -> None:
    before = PeerSettings().updated(StatusOptions(topic_interest=frozenset({NEWS})))

    after = before.updated(StatusOptions(bloom=bloom_of([SPORT])))

    assert (before.interest.wants(NEWS), before.interest.wants(SPORT)) == (True, False)
    assert (after.interest.wants(NEWS), after.interest.wants(SPORT)) == (False, True)
    assert after.interest == Interest(bloom=bloom_of([SPORT]))


def test_update_with_topics_alone_discards_the_bloom() -> None:
    before = PeerSettings().updated(StatusOptions(bloom=bloom_of([SPORT])))

    after = before.updated(StatusOptions(topic_interest=frozenset({NEWS})))

    assert (before.interest.wants(NEWS), before.interest.wants(SPORT)) == (False, True)
    assert (after.interest.wants(NEWS), after.interest.wants(SPORT)) == (True, False)
    assert after.interest == Interest(topics=frozenset({NEWS}))


def test_topics_win_over_a_bloom_in_the_same_packet() -> None:
    both = StatusOptions(bloom=FULL_BLOOM, topic_interest=frozenset({NEWS}))

    interest = PeerSettings().updated(both).interest

    assert interest.wants(NEWS)
    assert not interest.wants(SPORT)


@pytest.mark.parametrize("options", [StatusOptions(bloom=EMPTY_BLOOM), StatusOptions(topic_interest=frozenset())])
def test_bloom_of_zeros_or_no_topics_want_nothing(options: StatusOptions) -> None:
    assert not PeerSettings().updated(options).interest.wants(NEWS)


def test_light_node_that_has_not_subscribed_yet_wants_everything_until_an_update() -> None:
    silent = PeerSettings().updated(StatusOptions(light_node=True))

    subscribed = silent.updated(StatusOptions(topic_interest=frozenset({NEWS})))

    assert silent.interest.wants(SPORT)
    assert not subscribed.interest.wants(SPORT)
    assert subscribed.light_node


def test_many_topics_of_a_peer_are_packed_and_mean_the_same() -> None:
    topics = frozenset(Topic(number.to_bytes(4, "big")) for number in range(MAX_UNPACKED_TOPICS + 1))

    settings = PeerSettings().updated(StatusOptions(topic_interest=topics))

    assert isinstance(settings.interest.topics, PackedTopics)
    assert settings == PeerSettings(interest=Interest(topics=topics))


# What is new in a Status: what a Status Update says


interests = st.one_of(
    st.binary(min_size=64, max_size=64).map(lambda bloom: {"bloom": bloom}),
    st.sampled_from([FULL_BLOOM, EMPTY_BLOOM]).map(lambda bloom: {"bloom": bloom}),
    st.frozensets(st.sampled_from([NEWS, SPORT]), max_size=2).map(lambda topics: {"topic_interest": topics}),
)


announcements = st.builds(
    lambda interest, **numbers: StatusOptions(**interest, **numbers),
    interests,
    pow_requirement=st.sampled_from([0.0, 0.25, 0.5]),
    light_node=st.booleans(),
    confirmations=st.booleans(),
    packet_rate_limits=st.sampled_from([NO_LIMITS, RateLimits(1, 2, 3)]),
    byte_rate_limits=st.sampled_from([NO_LIMITS, RateLimits(4, 5, 6)]),
)
"""What a node announces of itself: every number, and either a bloom filter or topics."""


OURS = StatusOptions(
    pow_requirement=0.25,
    bloom=FULL_BLOOM,
    light_node=False,
    confirmations=True,
    packet_rate_limits=NO_LIMITS,
    byte_rate_limits=NO_LIMITS,
)


def test_nothing_is_new_where_nothing_has_changed() -> None:
    assert OURS.since(replace(OURS)) == StatusOptions()


@pytest.mark.parametrize(
    "changed",
    [
        {"pow_requirement": 0.5},
        {"pow_requirement": 0.0},
        {"bloom": EMPTY_BLOOM},
        {"light_node": True},
        {"confirmations": False},
        {"packet_rate_limits": RateLimits(0, 0, 1)},
        {"byte_rate_limits": RateLimits(1, 0, 0)},
    ],
    ids=lambda changed: next(iter(changed)),
)
def test_what_has_changed_is_new_and_nothing_else(changed: dict[str, Any]) -> None:
    assert replace(OURS, **changed).since(OURS) == StatusOptions(**changed)


@pytest.mark.parametrize("topics", [frozenset(), frozenset({NEWS})])
def test_topics_in_place_of_a_bloom_are_new_and_so_is_the_bloom_in_their_place(topics: frozenset[Topic]) -> None:
    with_topics = replace(OURS, bloom=None, topic_interest=topics)

    assert with_topics.since(OURS) == StatusOptions(topic_interest=topics)
    assert OURS.since(with_topics) == StatusOptions(bloom=FULL_BLOOM)


def test_everything_is_new_to_a_peer_that_has_heard_nothing() -> None:
    assert OURS.since(StatusOptions()) == OURS


@given(st.lists(announcements, min_size=1, max_size=6))
@settings(max_examples=200)
def test_peer_that_follows_our_updates_ends_with_what_we_announce_now(announced: list[StatusOptions]) -> None:
    first, *later = announced
    heard = PeerSettings().updated(StatusOptions.decode(first.encode()))

    said = first
    for now in later:
        update = now.since(said)
        heard = heard.updated(StatusOptions.decode(update.encode()))
        said = now

        # A peer that connects now hears all of it at once, and ends with the same.
        assert heard == PeerSettings().updated(StatusOptions.decode(now.encode()))


@given(announcements, announcements)
@settings(max_examples=100)
def test_update_names_no_key_that_has_not_changed(before: StatusOptions, now: StatusOptions) -> None:
    update = now.since(before)

    for name in StatusOptions.__slots__:
        if getattr(before, name) == getattr(now, name):
            assert getattr(update, name) is None
