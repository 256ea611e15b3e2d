"""Which history archives a run makes."""

from dataclasses import replace

import pytest

from mailserver.communities.channels import Channel
from mailserver.communities.formats import TimeRange
from mailserver.communities.index import DEPLOYED
from mailserver.community.owner.record import Community, new_community
from mailserver.ids.muid import DEFAULT_NETWORK_TOPIC
from spark_export.community_plan import KEPT_ELSEWHERE_S, Due, Found, Plan, missing_ranges, plan_community, spans
from tests.community.owner.samples import GARDEN, KITCHEN, channel, garden, week

WEEK_S = 7 * 86_400
NOTHING: frozenset[TimeRange] = frozenset()


def due(number: int, *missing: TimeRange) -> Due:
    """When the week of this number has just settled."""
    return Due(week(number).upper + 3600, missing=missing)


def found(**new: int) -> dict[int, Found]:
    """So many new envelopes of each week (`w0=3`), received when they were created."""
    lowers = {int(name[1:]): count for name, count in new.items()}
    return {week(number).lower: Found(count, week(number).lower) for number, count in lowers.items()}


def ranges(plan: Plan) -> list[tuple[TimeRange, bool]]:
    return [(work.time_range, work.is_further) for work in plan.works]


def test_each_range_since_the_registration_gets_an_archive_and_before_those_with_messages() -> None:
    community = garden(registered=week(3).lower + 9)

    plan = plan_community(0, community, NOTHING, found(w0=1, w2=1), due(4))

    assert ranges(plan) == [(week(number), False) for number in (0, 2, 3, 4)]
    assert all(work.content_topics == (channel(GARDEN).content_topic,) for work in plan.works)


@pytest.mark.parametrize(("seconds", "count"), [(-1, 0), (0, 1)])
def test_range_is_due_when_it_has_ended_and_settled(seconds: int, count: int) -> None:
    when = Due(week(0).upper + 3600 + seconds)

    assert len(plan_community(0, garden(), NOTHING, {}, when).works) == count


def test_after_thirty_days_there_are_four_archives() -> None:
    community = garden(registered=week(0).lower)

    assert len(plan_community(0, community, NOTHING, {}, Due(week(0).lower + 30 * 86_400)).works) == 4


def test_late_envelopes_of_published_ranges_get_further_archives_in_order_of_time() -> None:
    plan = plan_community(0, garden(), frozenset(map(week, range(3))), found(w0=2, w1=0, w3=5), due(3))

    assert ranges(plan) == [(week(0), True), (week(3), False)]


def test_ranges_from_one_of_which_messages_are_missing_wait() -> None:
    missing = TimeRange(week(1).upper - 5, week(1).upper - 4)

    plan = plan_community(0, garden(), NOTHING, found(w0=1, w1=1, w2=1), due(2, missing))

    assert ranges(plan) == [(week(0), False)]
    assert plan.waiting == (week(1), week(2))


def test_what_nobody_has_any_more_is_not_awaited() -> None:
    missing = TimeRange(week(0).lower, week(0).lower + 10)
    when = Due(missing.upper + KEPT_ELSEWHERE_S, missing=(missing,))

    assert plan_community(0, garden(), NOTHING, {}, when).waiting == ()
    assert plan_community(0, garden(), NOTHING, {}, replace(when, now=when.now - 1)).waiting != ()


def test_forged_times_make_no_history() -> None:
    forged = {0: Found(7, week(2).lower), 2500 * WEEK_S: Found(1, week(2).lower)}

    plan = plan_community(0, garden(registered=week(2).lower), NOTHING, found(w2=1) | forged, due(2))

    assert ranges(plan) == [(week(2), False)]
    assert plan.forged == 8


def test_what_claims_to_come_later_waits_for_its_time() -> None:
    plan = plan_community(0, garden(), NOTHING, found(w0=1, w9=1), due(0))

    assert ranges(plan) == [(week(0), False)]


def test_community_without_channels_has_no_archives() -> None:
    assert plan_community(0, new_community("a", "spec", DEFAULT_NETWORK_TOPIC, 0), NOTHING, {}, due(3)) == Plan()


def test_range_before_any_channel_began_has_no_archive() -> None:
    community = new_community("a", "spec", DEFAULT_NETWORK_TOPIC, week(0).lower)
    community = community.with_channel(channel(GARDEN), since=week(1).lower)

    assert ranges(plan_community(0, community, NOTHING, {}, due(1))) == [(week(1), False)]


def test_opened_archives_are_made_of_ranges_with_messages_and_know_all_keys() -> None:
    community = opened(bytes([1]) * 32).without_channel("kitchen", at=week(0).lower + 5)
    community = community.with_channel(Channel("again", channel(KITCHEN).content_topic, bytes([2]) * 32), since=6)

    (work,) = plan_community(0, community, NOTHING, found(w1=1), due(3)).works

    assert work.time_range == week(1)
    assert work.keys == {KITCHEN: (bytes([2]) * 32, bytes([1]) * 32)}
    assert plan_community(0, garden(), NOTHING, found(w1=1), due(3)).works[0].keys == {}


def opened(key: bytes) -> Community:
    community = new_community("Old", DEPLOYED, DEFAULT_NETWORK_TOPIC, week(0).lower)
    return community.with_channel(Channel("kitchen", channel(KITCHEN).content_topic, key))


def test_spans_are_as_few_as_there_can_be() -> None:
    works = plan_community(0, garden(), NOTHING, {}, due(4)).works

    chosen = [*works[:2], works[3], works[3]]

    assert spans(chosen) == [TimeRange(week(0).lower, week(1).upper), week(3)]


def test_missed_times_include_their_last_second() -> None:
    assert missing_ranges([(5, 9)]) == (TimeRange(5, 10),)
