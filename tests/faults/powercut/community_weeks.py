"""Weeks of a community: `python -m tests.faults.powercut.community_weeks OWNER MEMBER`. The owner's store has all of
WEEKS.

Each week is archived and published. The member takes the archives out of the owner's files, as out of a torrent, and
imports them. What is done is told on standard output.
"""

import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path

from mailserver.communities.index import SPEC
from mailserver.community.folder import COMMUNITIES_FOLDER
from mailserver.community.member.downloads import Downloads, content_of
from mailserver.community.member.history import open_history
from mailserver.community.member.importing import Loader
from mailserver.community.member.records import ArchiveState, ListedArchive
from mailserver.community.owner.appending import read_published_index
from mailserver.community.owner.folders import CommunityFolder, owned
from mailserver.community.owner.publishing import take_next_index
from mailserver.ids.muid import DEFAULT_NETWORK_TOPIC
from mailserver.store.sqlite.schema import STORE_FILE
from mailserver.torrents.making import make_torrent
from spark_export.communities import CommunitiesRun, RangeMade, RangeTask, make_archives_by, make_range
from tests.community.member.worlds import NOW
from tests.community.owner.samples import sealed, week

COUNT = 3
WEEKS = [[sealed(week(number).lower + at, number * 100 + at, size=700) for at in range(60)] for number in range(COUNT)]
"""What was posted in each."""

SETTLED_S = 3600
HISTORY, DOWNLOADS = "history.db", "downloads"


def published_text(number: int) -> str:
    """What is told once a week is published."""
    return f"week {number} is published"


def imported_text(number: int) -> str:
    """What is told once a week is in the member's history."""
    return f"week {number} is imported"


def archive(owner: Path, number: int) -> None:
    """Make the archives of all weeks up to one, as the nightly job does."""

    def in_order(tasks: Sequence[RangeTask]) -> list[RangeMade]:
        return [make_range(task) for task in tasks]

    config = CommunitiesRun(owner / COMMUNITIES_FOLDER, (owner / STORE_FILE,))
    make_archives_by(in_order, config, None, now=week(number).upper + SETTLED_S)


async def import_all(folder: CommunityFolder, member: Path) -> None:
    """Have a member take what is published, and import it."""
    index = read_published_index(folder)
    assert index is not None, "it was published"
    info = make_torrent(folder.path, folder.path.name, data_bytes=index.entries[-1].end)
    downloads = Downloads(member / DOWNLOADS)
    async with open_history(member / HISTORY) as history:
        listed = [ListedArchive(content_of(info.hashes_of(entry.pieces)), SPEC, entry) for entry in index.entries]
        await history.list_archives(listed)
        archives = {each.content: each for each in (await history.known()).archives}
        missing = [each for each in archives.values() if each.state is ArchiveState.MISSING]
        for each in missing:
            downloads.keep(each.content, folder.data, each.entry.offset, each.entry.size)
        await history.note_downloaded([each.content for each in missing], NOW)
        loader = Loader(downloads, archives, DEFAULT_NETWORK_TOPIC)
        downloaded = [each for each in archives.values() if each.state is ArchiveState.DOWNLOADED]  # before a cut
        for each in [*downloaded, *missing]:
            await history.replace(each.time_range, [each.content], loader.load, NOW)
        downloads.clear()


def main(owner: Path, member: Path) -> None:
    """All weeks."""
    (folder,) = owned(owner / COMMUNITIES_FOLDER)
    for number in range(COUNT):
        archive(owner, number)
        take_next_index(folder)
        _tell(published_text(number))
        asyncio.run(import_all(folder, member))
        _tell(imported_text(number))


def _tell(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
