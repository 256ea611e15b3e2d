"""Histories of members, and what goes into them."""

from collections.abc import Iterable, Mapping, Sequence
from hashlib import sha256
from pathlib import Path

from mailserver.communities.formats import PIECE_BYTES, TimeRange
from mailserver.communities.index import SPEC, IndexEntry
from mailserver.community.member.history import MemberHistory, read_messages
from mailserver.community.member.records import Content, HistoryMessage, ListedArchive
from mailserver.ids.envelopes import NS

WEEK_S = 7 * 86_400
NOW = 100 * WEEK_S
TOPIC = "/waku/1/0x00000001/rfc26"
OTHER_TOPIC = "/waku/1/0x00000002/rfc26"
ALL_TIMES = TimeRange(0, 2**32)


def week(number: int) -> TimeRange:
    """A range of the grid."""
    return TimeRange(number * WEEK_S, (number + 1) * WEEK_S)


def message(second: int, text: str = "", topic: str = TOPIC) -> HistoryMessage:
    """A message; another text makes it another one."""
    payload = f"{second} {text}".encode()
    return HistoryMessage(second * NS, sha256(topic.encode() + payload).digest(), topic, payload)


def content(name: str) -> Content:
    """A content of which only the name matters."""
    return Content(sha256(name.encode()).digest())


def listed(name: str, number: int, topics: tuple[str, ...] = (TOPIC,)) -> ListedArchive:
    """An archive of a week."""
    entry = IndexEntry(f"0x{content(name).hex()}", week(number), topics, 0, PIECE_BYTES, 0)
    return ListedArchive(content(name), SPEC, entry)


async def import_week(
    history: MemberHistory, number: int, archives: Mapping[str, Sequence[HistoryMessage]], also: Iterable[str] = ()
) -> None:
    """List, download and import archives of one week. `also`: names of what is listed, and not downloaded."""
    await history.list_archives([listed(name, number) for name in (*archives, *also)])
    contents = {content(name): messages for name, messages in archives.items()}
    await history.note_downloaded(contents, NOW)
    await history.replace(week(number), [*contents], contents.__getitem__, NOW)


def messages_of(path: Path, time_range: TimeRange = ALL_TIMES, topics: Sequence[str] = ()) -> list[HistoryMessage]:
    """All messages of a history."""
    with read_messages(path, time_range, topics) as messages:
        return [*messages]
