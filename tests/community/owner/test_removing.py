"""Which holdings may go, and which may still become part of an archive."""

import pytest

from mailserver.communities import index
from mailserver.communities.formats import PIECE_BYTES
from mailserver.communities.index import IndexEntry
from mailserver.community.owner.holdings import HeldEnvelope
from mailserver.community.owner.removing import Removal
from mailserver.waku.envelope import Topic
from tests.community.owner.samples import ATTIC, GARDEN, KITCHEN, channel, garden, week

KEY, OTHER_KEY = b"k" * 16, b"o" * 16
COMMUNITY = garden(GARDEN, KITCHEN).without_channel(channel(KITCHEN).name, at=week(2).lower)


def entries(*weeks: int) -> list[IndexEntry]:
    return [
        IndexEntry("0x", week(number), (), place * PIECE_BYTES, PIECE_BYTES, 0) for place, number in enumerate(weeks)
    ]


def may_go(created: int, received: int, *, key: bytes = OTHER_KEY, topic: Topic = GARDEN) -> bool:
    """Of a community with archives of the weeks 2 and 4."""
    return Removal(COMMUNITY, entries(2, 4), {KEY}).may_go(HeldEnvelope(created, topic, key, received))


NOW = week(6).lower


@pytest.mark.parametrize(
    ("created", "expected"),
    [
        pytest.param(5, True, id="older than the history"),
        pytest.param(week(1).upper - 1, True, id="just before its first week"),
        pytest.param(week(2).lower, False, id="a week with an archive: it is late"),
        pytest.param(week(3).lower, True, id="a week that was looked at, and has none"),
        pytest.param(week(4).upper - 1, False, id="the last second of the newest week"),
        pytest.param(week(4).upper, False, id="a week that is still to be made"),
    ],
)
def test_what_no_archive_took_may_go_unless_one_may_still_take_it(created: int, expected: bool) -> None:
    assert may_go(created, received=week(4).upper - 1) is expected


def test_what_no_run_has_looked_at_yet_stays() -> None:
    assert not may_go(5, received=week(4).upper)
    assert not Removal(COMMUNITY, [], ()).may_go(HeldEnvelope(5, GARDEN, KEY, 5))


def test_what_an_archive_has_or_no_channel_holds_may_go() -> None:
    assert may_go(NOW, NOW, key=KEY)
    assert may_go(NOW, NOW, topic=ATTIC)
    assert may_go(week(2).lower, NOW, topic=KITCHEN)
    assert not may_go(week(2).lower - 1, NOW, topic=KITCHEN)


def test_what_is_late_may_go_when_the_index_takes_nothing_late_any_more(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not may_go(week(2).lower, NOW)

    monkeypatch.setattr(index, "MAX_ENTRIES", 4)

    assert may_go(week(2).lower, NOW)
    assert not may_go(week(5).lower, NOW)
