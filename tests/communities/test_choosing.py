"""Which history archives a member fetches."""

from dataclasses import replace

from mailserver.communities.choosing import All, Between, Latest, chosen
from mailserver.communities.formats import PIECE_BYTES, TimeRange
from mailserver.communities.index import IndexEntry

ENTRIES = [
    IndexEntry(str(offset), time_range, (), offset * PIECE_BYTES, PIECE_BYTES, 0)
    for offset, time_range in enumerate(
        [TimeRange(0, 7), TimeRange(7, 14), TimeRange(14, 21), TimeRange(14, 21), TimeRange(0, 7), TimeRange(21, 28)]
    )
]


def ids(entries: list[IndexEntry]) -> str:
    return "".join(entry.id for entry in entries)


def test_all_are_fetched_in_order() -> None:
    assert ids(chosen(ENTRIES, All())) == "012345"
    assert chosen([], All()) == []


def test_latest_are_all_archives_of_the_latest_range() -> None:
    assert ids(chosen(ENTRIES, Latest())) == "5"
    assert ids(chosen(ENTRIES[:5], Latest())) == "23"
    assert ids(chosen([*ENTRIES, replace(ENTRIES[0], id="6", time_range=TimeRange(20, 27))], Latest())) == "5"
    assert chosen([], Latest()) == []


def test_those_of_a_time_are_all_that_have_a_moment_of_it() -> None:
    assert ids(chosen(ENTRIES, Between(TimeRange(6, 8)))) == "014"
    assert ids(chosen(ENTRIES, Between(TimeRange(7, 14)))) == "1"
    assert chosen(ENTRIES, Between(TimeRange(28, 40))) == []
