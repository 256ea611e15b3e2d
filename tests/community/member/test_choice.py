from dataclasses import replace

import pytest

from mailserver.communities.choosing import All, Between, Choice, Latest
from mailserver.communities.formats import TimeRange
from mailserver.communities.index import SPEC
from mailserver.community.member.choice import downloaded_ranges, missing, wanted
from mailserver.community.member.records import ArchiveState, KnownArchive
from tests.community.member.worlds import WEEK_S, content, listed, week


def known(
    name: str, number: int, state: ArchiveState = ArchiveState.MISSING, *, is_listed: bool = True
) -> KnownArchive:
    archive = listed(name, number)
    return KnownArchive(content(name), SPEC, replace(archive.entry, id=name), is_listed, state)


ARCHIVES = (
    known("a", 1),
    known("b", 2, ArchiveState.IMPORTED),
    known("late", 1),
    known("c", 3),
    known("chunk", 3, ArchiveState.REFUSED),
    known("gone", 4, is_listed=False),
)


@pytest.mark.parametrize(
    ("choice", "names"),
    [
        (All(), ["c", "chunk", "b", "a", "late"]),
        (Latest(), ["c", "chunk"]),
        (Between(TimeRange(2 * WEEK_S - 1, 2 * WEEK_S)), ["a", "late"]),
        (Between(TimeRange(2 * WEEK_S - 1, 2 * WEEK_S + 1)), ["b", "a", "late"]),
        (Between(TimeRange(0, WEEK_S)), []),
    ],
    ids=["all", "latest", "inside", "two weeks", "before"],
)
def test_choice_names_archives_newest_first(choice: Choice, names: list[str]) -> None:
    assert [archive.entry.id for archive in wanted(ARCHIVES, choice)] == names


def test_latest_of_nothing_is_nothing() -> None:
    assert wanted([], Latest()) == []


def test_only_what_is_neither_here_nor_refused_is_missing() -> None:
    archives = [known(state.value, 1, state) for state in ArchiveState]

    assert [archive.state for archive in missing(archives)] == [ArchiveState.MISSING]


def test_what_is_downloaded_is_found_by_its_range() -> None:
    first, late, other = (
        known("a", 1, ArchiveState.DOWNLOADED),
        known("b", 1, ArchiveState.DOWNLOADED, is_listed=False),
        known("c", 2, ArchiveState.DOWNLOADED),
    )

    assert [*downloaded_ranges([first, known("d", 1), late, other]).items()] == [
        (week(2), [other]),
        (week(1), [first, late]),
    ]
