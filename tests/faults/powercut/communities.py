"""The scenario of a community: whatever a power cut leaves, what was published is there, and what a member has imported
or downloaded; the next run and the next fetch go on from there."""

import asyncio
import random
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from mailserver.communities.checking import check_archive
from mailserver.communities.spec_format import SpecFormat
from mailserver.community.folder import COMMUNITIES_FOLDER
from mailserver.community.member.downloads import Downloads
from mailserver.community.member.history import open_history, read_messages
from mailserver.community.member.records import ArchiveState
from mailserver.community.owner.appending import read_made, read_published_index
from mailserver.community.owner.folders import CommunityFolder, owned
from mailserver.community.owner.publishing import take_next_index
from mailserver.errors import MailserverError
from mailserver.ids.muid import DEFAULT_NETWORK_TOPIC
from mailserver.store.sqlite.schema import STORE_FILE
from mailserver.waku.envelope import Envelope
from tests.community.member.worlds import ALL_TIMES
from tests.community.owner.samples import garden, made_in, week
from tests.faults.powercut.checks import Broken
from tests.faults.powercut.community_weeks import (
    COUNT,
    DOWNLOADS,
    HISTORY,
    WEEKS,
    archive,
    import_all,
    imported_text,
    published_text,
)
from tests.faults.powercut.recorder import Recorder
from tests.faults.powercut.scenarios import Scenario, told
from tests.faults.powercut.workload import DATA, Recording
from tests.integration.daemons import PROGRAM
from tests.mailservers import stored
from tests.spark_export.samples import put

PROCESS = (PROGRAM[0], "-m", "tests.faults.powercut.community_weeks")
FORM = SpecFormat(DEFAULT_NETWORK_TOPIC)
MEMBER = "member"
"""In the folder that is recorded; there from the start, and empty."""


async def communities(recorder: Recorder, choice: random.Random) -> Scenario:
    """Weeks are archived, published, and imported by a member, one after another."""
    folder = recorder.folder / DATA
    rows = [stored(each, each.created) for envelopes in WEEKS for each in envelopes]
    await asyncio.to_thread(put, folder / STORE_FILE, rows)
    made_in(folder / COMMUNITIES_FOLDER, garden(registered=week(0).lower))
    (recorder.folder / MEMBER).mkdir()
    recording = Recording(recorder, choice)
    await asyncio.to_thread(recording.run, folder, recorder.folder / MEMBER, program=PROCESS)
    entries = recorder.entries()
    published_at, imported_at = (
        [told(entries, text(number).encode()) for number in range(COUNT)] for text in (published_text, imported_text)
    )

    async def check(folder: Path, cut: int) -> None:
        try:
            (owner,) = owned(folder / DATA / COMMUNITIES_FOLDER)
            published, imported = (sum(at < cut for at in moments) for moments in (published_at, imported_at))
            _check_archives(owner, [each for envelopes in WEEKS[:published] for each in envelopes])
            await _check_member(folder / MEMBER, [each for envelopes in WEEKS[:imported] for each in envelopes])
            archive(folder / DATA, COUNT - 1)
            take_next_index(owner)
            everything = [each for envelopes in WEEKS for each in envelopes]
            _check_archives(owner, everything, is_all=True)
            await import_all(owner, folder / MEMBER)
            await _check_member(folder / MEMBER, everything)
        except (MailserverError, OSError) as error:
            raise Broken(f"{type(error).__name__}: {error}") from error

    return Scenario(recording, entries, (), check)


def _check_archives(folder: CommunityFolder, promised: Sequence[Envelope], *, is_all: bool = False) -> None:
    """The archives that are published are whole, and have what was promised, each once; nothing else, if `is_all`."""
    index = read_published_index(folder)
    read_made(folder, FORM)
    data = folder.data.read_bytes()
    found: Counter[bytes] = Counter()
    for entry in () if index is None else index.entries:
        archive = check_archive(FORM, entry, data[entry.offset : entry.end]).archive
        if archive is None:
            raise Broken(f"the archive at {entry.offset} is damaged")
        found.update(message.hash for message in archive.messages)
    expected = Counter(FORM.message_of(each).hash for each in promised)
    if expected - found or (is_all and found != expected):
        raise Broken(f"{(expected - found).total()} published envelopes are gone, {found.total()} are there")
    if found and max(found.values()) > 1:
        raise Broken("an envelope is published twice")


async def _check_member(member: Path, promised: Sequence[Envelope]) -> None:
    """The history opens, has what was imported, and what it says to be downloaded is on the disk."""
    async with open_history(member / HISTORY) as history:
        known = await history.known()
    downloads = Downloads(member / DOWNLOADS)
    for each in known.archives:
        if each.state is ArchiveState.DOWNLOADED:
            downloads.read(each.content)
    with read_messages(member / HISTORY, ALL_TIMES) as messages:
        held = Counter(message.hash for message in messages)
    if lost := (Counter(FORM.message_of(each).hash for each in promised) - held).total():
        raise Broken(f"{lost} imported messages are gone")
