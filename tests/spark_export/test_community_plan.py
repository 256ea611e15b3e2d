"""Which history archives a run makes."""

from dataclasses import replace
from pathlib import Path

import pytest

from mailserver.catchup.ledger import open_ledger
from mailserver.catchup.ranges import MissingRange
from mailserver.codec.keys import NodeId
from mailserver.communities.channels import Channel
from mailserver.communities.formats import MAX_CHUNK_BYTES, PIECE_BYTES, TimeRange
from mailserver.communities.index import DEPLOYED, IndexEntry
from mailserver.community.owner.record import Community, new_community
from mailserver.data_dir.folder import KEY_FILE
from mailserver.data_dir.running import CONTROL_FILE
from mailserver.ids.muid import DEFAULT_NETWORK_TOPIC
from mailserver.net.unix_socket import bind_private
from mailserver.store.interface import NewEnvelope
from spark_export.community_plan import KEPT_ELSEWHERE_S, Due, Plan, late_ranges, missing_of, plan_community
from tests.community.owner.samples import GARDEN, KITCHEN, channel, garden, sealed, week
from tests.spark_export.samples import put

KEYS = b"k" * 16


def due(number: int, *missing: TimeRange) -> Due:
    """When the week of this number has just settled."""
    return Due(week(number).upper + 3600, missing=missing)


def plan_of(community: Community, when: Due, *published: int, received: int | None = None) -> Plan:
    ranges_with_archives = dict.fromkeys(map(week, published), KEYS)
    return plan_community(0, community, ranges_with_archives, ranges_with_archives, received, when)


def ranges(plan: Plan) -> list[tuple[TimeRange, bool]]:
    return [(work.time_range, work.needs_messages) for work in plan.works]


def test_each_range_since_the_registration_gets_an_archive_and_before_those_with_messages() -> None:
    plan = plan_of(garden(registered=week(6).lower + 9), due(7), received=week(5).lower + 4)

    assert ranges(plan) == [(week(number), number < 6) for number in range(8)]
    assert all(work.content_topics == (channel(GARDEN).content_topic,) for work in plan.works)


@pytest.mark.parametrize(("seconds", "count"), [(-1, 0), (0, 1)])
def test_range_is_due_when_it_has_ended_and_settled(seconds: int, count: int) -> None:
    assert len(plan_of(garden(), Due(week(0).upper + 3600 + seconds)).works) == count


def test_after_thirty_days_there_are_four_archives() -> None:
    community = garden(registered=week(0).lower)

    assert len(plan_of(community, Due(week(0).lower + 30 * 86_400)).works) == 4


def test_published_ranges_are_looked_at_for_what_came_late() -> None:
    plan = plan_of(garden(), due(2), 0, 1)

    assert ranges(plan) == [(week(0), True), (week(1), True), (week(2), False)]
    assert [work.published_keys() for work in plan.works] == [{KEYS}, {KEYS}, set()]


@pytest.mark.parametrize(("archives", "days"), [(1, 0), (2, 1), (3, 3), (4, 7), (12, 2047), (500, 2**499 - 1)])
def test_range_with_more_archives_waits_longer_for_the_next_one(archives: int, days: int) -> None:
    entries = [*_archives_of(0, archives), *_archives_of(1, 3, MAX_CHUNK_BYTES), *_archives_of(1, 1)]
    now = week(0).upper + days * 86_400

    assert late_ranges(entries, now) >= {week(0)}
    assert late_ranges(entries, now - 1) & {week(0)} == set()
    assert late_ranges(entries, week(1).upper) >= {week(1)}


def _archives_of(number: int, count: int, size: int = PIECE_BYTES) -> list[IndexEntry]:
    return [IndexEntry("", week(number), (), place * size, size, 0) for place in range(count)]


def test_published_range_that_waits_for_its_next_archive_is_not_looked_at() -> None:
    published = dict.fromkeys([week(0), week(1)], KEYS)

    plan = plan_community(0, garden(), published, {week(1)}, None, due(2))

    assert ranges(plan) == [(week(1), True), (week(2), False)]


def test_ranges_from_one_of_which_messages_are_missing_wait() -> None:
    missing = TimeRange(week(1).upper - 5, week(1).upper - 4)

    plan = plan_of(garden(), due(2, missing), 1)

    assert ranges(plan) == [(week(0), False)]
    assert plan.waiting == (week(1), week(2))


def test_what_nobody_has_any_more_is_not_awaited() -> None:
    missing = TimeRange(week(0).lower, week(0).lower + 10)
    when = Due(missing.upper + KEPT_ELSEWHERE_S, missing=(missing,))

    assert plan_of(garden(), when).waiting == ()
    assert plan_of(garden(), replace(when, now=when.now - 1)).waiting != ()


def test_history_begins_no_earlier_than_what_was_received_here_may_have_been_created() -> None:
    first = week(5).lower + 100

    plan = plan_of(garden(registered=week(9).lower), due(9), received=first)

    begin = plan.works[0].time_range
    assert begin.lower <= first - KEPT_ELSEWHERE_S < begin.upper
    assert plan_of(garden(registered=week(9).lower), due(9)).works[0].time_range == week(9)


def test_community_without_channels_has_no_archives() -> None:
    assert plan_of(new_community("a", "spec", DEFAULT_NETWORK_TOPIC, 0), due(0)) == Plan()


def test_range_before_any_channel_began_has_no_archive() -> None:
    community = new_community("a", "spec", DEFAULT_NETWORK_TOPIC, week(0).lower)
    community = community.with_channel(channel(GARDEN), since=week(1).lower)

    assert ranges(plan_of(community, due(1))) == [(week(1), False)]


def test_opened_archives_need_messages_and_know_all_keys() -> None:
    community = new_community("Old", DEPLOYED, DEFAULT_NETWORK_TOPIC, week(0).lower)
    community = community.with_channel(Channel("kitchen", channel(KITCHEN).content_topic, bytes([1]) * 32))
    community = community.without_channel("kitchen", at=week(0).lower + 5)
    community = community.with_channel(Channel("again", channel(KITCHEN).content_topic, bytes([2]) * 32), since=6)

    (work,) = plan_of(community, due(0)).works

    assert work.needs_messages
    assert work.keys == {KITCHEN: (bytes([2]) * 32, bytes([1]) * 32)}
    assert plan_of(garden(), due(0)).works[0].keys == {}


async def test_missed_times_that_a_source_owes_are_awaited_with_their_last_second(tmp_path: Path) -> None:
    stores = [tmp_path / name / "mailserver.db" for name in ("a", "b", "nobody asked", "never run")]
    for number, store in enumerate(stores[:3]):
        store.parent.mkdir()
        ledger = open_ledger(store.parent)
        missed = MissingRange(5 + 100 * number, 9 + 100 * number)
        ledger.note_missed(missed)
        if number < 2:
            ledger.account(NodeId(bytes(64))).add(MissingRange(missed.lower, missed.upper + 50))
        await ledger.save()

    assert missing_of(stores, tmp_path, 1000) == (TimeRange(5, 10), TimeRange(105, 110))


def test_while_no_mailserver_runs_what_is_posted_is_missed_until_one_runs_again(tmp_path: Path) -> None:
    stores = [tmp_path / name / "mailserver.db" for name in ("a", "b", "copy")]
    now, last = week(2).lower, [week(0).lower, week(0).lower + 5, week(1).lower]
    for store, received in zip(stores, last, strict=True):
        put(store, [NewEnvelope(received, received, GARDEN, sealed(received).hash(), sealed(received).raw)])
    for store in stores[:2]:
        (store.parent / KEY_FILE).touch()

    assert missing_of(stores, tmp_path, now) == (TimeRange(last[1], now),)
    assert missing_of(stores[2:], tmp_path, now) == ()
    with bind_private(stores[0].parent / CONTROL_FILE) as control:
        control.listen()
        assert missing_of(stores, tmp_path, now) == ()
    assert missing_of(stores, tmp_path, last[1]) == ()


def test_range_of_which_nobody_has_messages_any_more_does_not_wait_for_a_mailserver() -> None:
    plan = plan_of(garden(), due(5, TimeRange(week(0).lower, week(6).lower)))

    assert [time_range for time_range, _ in ranges(plan)] == [week(0)]
    assert [*plan.waiting] == [*map(week, range(1, 6))]
