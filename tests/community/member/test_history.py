import contextlib
import json
import sqlite3
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest

from mailserver.codec.keys import NodeId
from mailserver.communities.checking import HistoryFault, HistoryFinding
from mailserver.communities.formats import TimeRange
from mailserver.communities.index import SPEC
from mailserver.communities.links import AnnouncedLink
from mailserver.community.member.history import (
    MAX_LINKS,
    MemberHistory,
    open_history,
    read_known,
    read_messages,
    read_overview,
)
from mailserver.community.member.records import ArchiveState, Content, HistoryMessage
from mailserver.community.member.replacing import ArchiveRefused, DownloadLost
from mailserver.community.member.schema import APPLICATION_ID, HISTORY_FILE, MIGRATIONS, SCHEMA_VERSION
from mailserver.errors import StoreError
from mailserver.ids.envelopes import topic_of
from tests.community.member.worlds import (
    NOW,
    OTHER_TOPIC,
    TOPIC,
    WEEK_S,
    content,
    import_week,
    listed,
    message,
    messages_of,
    week,
)
from tests.mailservers import NEWS, SPORT

NODE, OTHER_NODE = NodeId(bytes(64)), NodeId(bytes([1]) * 64)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / HISTORY_FILE


@pytest.fixture
async def history(path: Path) -> AsyncIterator[MemberHistory]:
    async with open_history(path) as opened:
        yield opened


async def test_range_is_replaced_by_what_its_archive_says(history: MemberHistory, path: Path) -> None:
    said, unsaid, later = message(5 * WEEK_S), message(5 * WEEK_S + 1), message(6 * WEEK_S)
    before = message(5 * WEEK_S - 1)
    assert await history.put_recent([before, said, unsaid, later]) == 4

    await import_week(history, 5, {"a": [said, message(5 * WEEK_S + 2)]})

    assert messages_of(path) == [before, said, message(5 * WEEK_S + 2), later]
    overview = read_overview(path)
    assert (overview.messages, overview.unarchived) == (4, 2)
    assert overview.archives[0].state is ArchiveState.IMPORTED
    assert overview.archives[0].messages == 2


async def test_message_that_the_archives_of_its_range_do_not_have_stays_out(history: MemberHistory, path: Path) -> None:
    await import_week(history, 5, {"a": [message(5 * WEEK_S)]})

    new = await history.put_recent([message(6 * WEEK_S - 1), message(5 * WEEK_S), message(6 * WEEK_S)])

    assert new == 1
    assert messages_of(path) == [message(5 * WEEK_S), message(6 * WEEK_S)]


async def test_range_is_the_union_of_its_archives(history: MemberHistory, path: Path) -> None:
    first, second, late = message(5 * WEEK_S), message(5 * WEEK_S, "chunk"), message(5 * WEEK_S + 9)

    await import_week(history, 5, {"a": [first], "b": [first, second]})
    await import_week(history, 5, {"c": [late]}, also=["a", "b"])

    assert messages_of(path) == sorted([first, second, late])


async def test_two_control_nodes_that_alternate_keep_the_union(history: MemberHistory, path: Path) -> None:
    mine, theirs = message(5 * WEEK_S, "one"), message(5 * WEEK_S + 1, "other")
    await import_week(history, 5, {"a": [mine]})
    await import_week(history, 5, {"b": [theirs]})

    await history.list_archives([listed("a", 5)])

    assert messages_of(path) == [mine, theirs]
    assert [archive.state for archive in read_overview(path).archives] == [ArchiveState.IMPORTED] * 2


async def test_mailservers_messages_stay_while_an_archive_of_their_range_is_missing(
    history: MemberHistory, path: Path
) -> None:
    recent = message(5 * WEEK_S + 7)
    await history.put_recent([recent])

    await import_week(history, 5, {"a": [message(5 * WEEK_S)]}, also=["b"])

    assert messages_of(path) == [message(5 * WEEK_S), recent]

    contents = {content("b"): [message(5 * WEEK_S + 1)]}
    await history.note_downloaded(contents, NOW)
    await history.replace(week(5), [*contents], contents.__getitem__, NOW)

    assert messages_of(path) == [message(5 * WEEK_S), message(5 * WEEK_S + 1)]


async def test_archive_that_cannot_be_used_is_refused_and_the_others_are_imported(
    history: MemberHistory, path: Path
) -> None:
    recent = message(5 * WEEK_S + 7)
    await history.put_recent([recent])
    await history.list_archives([listed("good", 5), listed("bad", 5)])
    await history.note_downloaded([content("good"), content("bad")], NOW)

    def load(name: Content) -> Sequence[HistoryMessage]:
        if name == content("bad"):
            raise ArchiveRefused([HistoryFinding(HistoryFault.UNREADABLE, "message is truncated")])
        return [message(5 * WEEK_S)]

    done = await history.replace(week(5), [content("bad"), content("good")], load, NOW)

    assert done.refused == {content("bad"): "it does not decode (message is truncated)"}
    assert done.imported == {content("good"): 1}
    assert messages_of(path) == [message(5 * WEEK_S), recent]
    assert {archive.content: archive.state for archive in read_overview(path).archives} == {
        content("good"): ArchiveState.IMPORTED,
        content("bad"): ArchiveState.REFUSED,
    }


async def test_archive_that_was_only_listed_is_forgotten_with_its_index(history: MemberHistory, path: Path) -> None:
    await import_week(history, 5, {"imported": [message(5 * WEEK_S)]}, also=["downloaded", "refused", "missing"])
    await history.note_downloaded([content("downloaded")], NOW)
    await history.refuse(content("refused"), "it does not decode")

    await history.list_archives([listed("new", 6)])

    found = {archive.content: archive.is_listed for archive in read_overview(path).archives}
    kept = {content(name): False for name in ("imported", "downloaded", "refused")}
    assert found == {**kept, content("new"): True}


async def test_archive_that_was_refused_before_is_not_forgotten(history: MemberHistory, path: Path) -> None:
    await history.list_archives([listed("a", 5)])
    await history.refuse(content("a"), "it is of another range than the index says")
    await history.list_archives([listed("a", 6)])

    await history.list_archives([])
    await history.list_archives([listed("a", 5)])

    (archive,) = read_overview(path).archives
    assert (archive.time_range, archive.state) == (week(6), ArchiveState.MISSING)


async def test_topics_are_those_that_the_last_index_lists_the_newest_first(history: MemberHistory) -> None:
    old, other = "/waku/1/0x00000007/rfc26", "/waku/1/0x00000008/rfc26"
    await import_week(history, 4, {"gone": [message(4 * WEEK_S)]})
    await history.list_archives(
        [
            listed("a", 5, (old, TOPIC)),
            listed("b", 7, (other, "/app/2/chat/proto", "/waku/1/0x0000000X/rfc26")),
            listed("c", 6, (old, TOPIC)),
        ]
    )

    assert await history.listed_topics(10) == [topic_of(name) for name in (other, TOPIC, old)]
    assert await history.listed_topics(2) == [topic_of(name) for name in (other, TOPIC)]


async def test_refused_archive_has_another_chance_when_another_index_says_something_else(
    history: MemberHistory, path: Path
) -> None:
    await history.list_archives([listed("a", 5)])
    await history.refuse(content("a"), "it is of another range than the index says")

    await history.list_archives([listed("a", 5)])
    assert read_overview(path).archives[0].state is ArchiveState.REFUSED

    await history.list_archives([listed("a", 6)])
    assert read_overview(path).archives[0].state is ArchiveState.MISSING
    assert read_overview(path).archives[0].time_range == week(6)


async def test_archive_that_was_refused_as_each_of_two_indexes_says_is_not_tried_again(
    history: MemberHistory, path: Path
) -> None:
    for number in (5, 6):
        await history.list_archives([listed("a", number)])
        await history.refuse(content("a"), "it is of another range than the index says")

    for number in (5, 6, 5):
        await history.list_archives([listed("a", number)])
        assert read_overview(path).archives[0].state is ArchiveState.REFUSED

    await history.list_archives([listed("a", 7)])
    assert read_overview(path).archives[0].state is ArchiveState.MISSING


async def test_range_is_replaced_when_the_archive_that_held_it_up_is_not_listed_any_more(
    history: MemberHistory, path: Path
) -> None:
    said, unsaid, later = message(5 * WEEK_S), message(5 * WEEK_S + 1), message(6 * WEEK_S)
    await history.put_recent([unsaid, later])
    await import_week(history, 5, {"good": [said]}, also=["bad"])
    await history.refuse(content("bad"), "it does not decode")
    assert await history.replace_whole() == 0

    await history.list_archives([listed("good", 5)])
    assert await history.replace_whole() == 1

    assert messages_of(path) == [said, later]
    assert await history.put_recent([unsaid]) == 0
    assert await history.replace_whole() == 0


async def test_what_was_refused_before_an_upgrade_is_not_tried_again(path: Path) -> None:
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as connection:
        for statement in MIGRATIONS[0]:
            connection.execute(statement)
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        connection.execute("PRAGMA user_version = 1")
        entry = listed("a", 5).entry
        topics = json.dumps(entry.content_topics)
        row = (content("a"), SPEC, entry.id, *entry.time_range, topics, 0, entry.size, 0, 1, "it does not decode")
        connection.execute(
            "INSERT INTO archives (content, form, id, lower, upper, topics, offset, size, padding, is_listed, refused) "
            "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            row,
        )

    async with open_history(path) as history:
        for number in (6, 5):
            await history.list_archives([listed("a", number)])
            if number == 6:
                await history.refuse(content("a"), "it is of another range than the index says")

        assert (await history.known()).archives[0].state is ArchiveState.REFUSED


async def test_imported_archive_stays_what_it_is_whatever_indexes_say(history: MemberHistory, path: Path) -> None:
    await import_week(history, 5, {"a": [message(5 * WEEK_S)]})

    await history.list_archives([listed("a", 6)])

    assert [(archive.time_range, archive.state) for archive in read_overview(path).archives] == [
        (week(5), ArchiveState.IMPORTED)
    ]


async def test_lost_download_is_missing_again(history: MemberHistory, path: Path) -> None:
    await history.list_archives([listed("a", 5)])
    await history.note_downloaded([content("a")], NOW)
    assert read_overview(path).archives[0].state is ArchiveState.DOWNLOADED

    def load(name: Content) -> Sequence[HistoryMessage]:
        raise DownloadLost(name.hex())

    done = await history.replace(week(5), [content("a")], load, NOW)

    assert done.lost == [content("a")]
    assert read_overview(path).archives[0].state is ArchiveState.MISSING


async def test_import_that_fails_midway_changes_nothing(history: MemberHistory, path: Path) -> None:
    recent = message(5 * WEEK_S + 7)
    await history.put_recent([recent])
    await history.list_archives([listed("a", 5)])
    await history.note_downloaded([content("a")], NOW)
    wrong = message(5 * WEEK_S + 1)._replace(timestamp=2**63)  # SQLite has no room for it

    with pytest.raises(OverflowError):
        await history.replace(week(5), [content("a")], lambda _: [message(5 * WEEK_S), wrong], NOW)

    await history.note_asked(NODE, [NEWS], 1)
    assert messages_of(path) == [recent]
    assert read_overview(path).archives[0].state is ArchiveState.DOWNLOADED


async def test_messages_are_found_by_time_and_topic(history: MemberHistory, path: Path) -> None:
    there = [message(second, topic=topic) for second in (1, 2, 3) for topic in (TOPIC, OTHER_TOPIC)]
    await history.put_recent(there)

    assert messages_of(path, TimeRange(2, 3)) == sorted(there[2:4])
    assert messages_of(path, topics=[OTHER_TOPIC]) == there[1::2]
    assert messages_of(path, topics=["/elsewhere/1/x/proto"]) == []


async def test_whole_message_is_kept(history: MemberHistory, path: Path) -> None:
    whole = HistoryMessage(1, bytes(32), TOPIC, b"payload", bytes(64), b"meta", 1)

    await history.put_recent([whole])

    assert messages_of(path) == [whole]


async def test_reader_sees_one_moment(history: MemberHistory, path: Path) -> None:
    await history.put_recent([message(1)])

    with read_messages(path, TimeRange(0, 9)) as messages:
        await history.put_recent([message(2)])
        seen = [*messages]

    assert seen == [message(1)]


async def test_newest_links_are_remembered(history: MemberHistory, path: Path) -> None:
    for clock in range(MAX_LINKS + 5):
        await history.note_link(AnnouncedLink(clock, f"magnet:{clock}"), NOW)
    await history.note_link(AnnouncedLink(3, "magnet:old"), NOW)

    assert read_overview(path).link == AnnouncedLink(MAX_LINKS + 4, f"magnet:{MAX_LINKS + 4}")
    with contextlib.closing(sqlite3.connect(path)) as connection:
        assert connection.execute("SELECT count(*), min(clock) FROM links").fetchone() == (MAX_LINKS, 5)


async def test_refused_link_is_remembered(history: MemberHistory, path: Path) -> None:
    await history.note_link(AnnouncedLink(1, "magnet:a"), NOW)

    await history.refuse_link("magnet:a", "files have other names")

    assert read_overview(path).refused_link == "files have other names"


async def test_mailserver_is_remembered_up_to_when_it_was_asked(history: MemberHistory) -> None:
    assert await history.asked_until(NODE, [NEWS]) is None

    await history.note_asked(NODE, [NEWS], 5)
    await history.note_asked(NODE, [NEWS], 7)

    assert await history.asked_until(NODE, [NEWS]) == 7
    assert await history.asked_until(NODE, [NEWS, SPORT]) is None
    assert await history.asked_until(OTHER_NODE, [NEWS]) is None

    await history.note_asked(NODE, [SPORT], 6)

    assert await history.asked_until(NODE, [NEWS, SPORT]) == 6


async def test_everything_is_there_after_a_restart(path: Path) -> None:
    async with open_history(path) as history:
        await import_week(history, 5, {"a": [message(5 * WEEK_S)]})

    async with open_history(path) as history:
        known = await history.known()

    overview = read_overview(path)
    assert known == read_known(path)
    assert (known.archives, known.link, known.attempt) == (overview.archives, overview.link, overview.attempt)
    assert [archive.state for archive in known.archives] == [ArchiveState.IMPORTED]
    assert messages_of(path) == [message(5 * WEEK_S)]


def test_history_is_for_its_owner_only(history: MemberHistory, path: Path) -> None:
    assert [file.name for file in path.parent.iterdir() if file.stat().st_mode & 0o077] == []


async def test_foreign_and_later_files_are_refused(tmp_path: Path) -> None:
    foreign, later, text = tmp_path / "foreign", tmp_path / "later", tmp_path / "text"
    with contextlib.closing(sqlite3.connect(foreign)) as connection:
        connection.execute("CREATE TABLE things (x)")
    async with open_history(later):
        pass
    with contextlib.closing(sqlite3.connect(later)) as connection:
        connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION + 1}")
    text.write_text("no database at all, but long enough to be one" * 100)

    for path, why in ((foreign, "no history"), (later, "schema version"), (text, "not a database")):
        with pytest.raises(StoreError, match=why):
            async with open_history(path):
                pass
        with pytest.raises(StoreError, match=why):
            read_overview(path)
    with pytest.raises(StoreError, match="unable to open"):
        read_overview(tmp_path / "nothing")
