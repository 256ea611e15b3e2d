import asyncio
import signal
import sys
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path

import pytest

from mailserver.codec.keys import NodeId
from mailserver.codec.protobuf import read_fields, write_bytes
from mailserver.communities.deployed_format import DeployedFormat, DeployedMessage, message
from mailserver.communities.formats import PIECE_BYTES, CommunityMessage, EncodedArchive
from mailserver.communities.spec_format import padding_field
from mailserver.community.member.choice import downloaded_ranges
from mailserver.community.member.downloads import Downloads, content_of
from mailserver.community.member.history import MemberHistory, open_history, read_overview
from mailserver.community.member.importing import Loader
from mailserver.community.member.records import ArchiveState, Content, HistoryMessage, ListedArchive
from mailserver.community.member.replacing import Replaced
from mailserver.community.member.schema import HISTORY_FILE
from mailserver.ids.envelopes import NS, topic_of
from tests.community.member.publishing import NETWORK_TOPIC, SPEC_FORMAT, TOPICS, Published, published, sealed
from tests.community.member.worlds import NOW, WEEK_S, messages_of, week

FIVE = 5 * WEEK_S
ROOT = Path(__file__).parents[3]


class World:
    """A member whose downloads are put there by hand."""

    def __init__(self, folder: Path, history: MemberHistory) -> None:
        self.history, self.folder = history, folder
        self.path = folder / HISTORY_FILE
        self.downloads = Downloads(folder / "downloads")

    async def download(self, made: Published) -> list[Content]:
        """List and keep all archives of a control node."""
        torrent = made.write(self.folder / "torrent")
        contents = [content_of(torrent.hashes_of(entry.pieces)) for entry in made.entries]
        await self.history.list_archives(
            [
                ListedArchive(content, made.form.name, entry)
                for content, entry in zip(contents, made.entries, strict=True)
            ]
        )
        for content, entry in zip(contents, made.entries, strict=True):
            self.downloads.keep(content, self.folder / "torrent" / "data", entry.offset, entry.size)
        await self.history.note_downloaded(contents, NOW)
        return contents

    async def import_all(self) -> list[Replaced]:
        """Import what is downloaded."""
        known = {archive.content: archive for archive in (await self.history.known()).archives}
        loader = Loader(self.downloads, known, NETWORK_TOPIC)
        return [
            await self.history.replace(time_range, [archive.content for archive in archives], loader.load, NOW)
            for time_range, archives in downloaded_ranges([*known.values()]).items()
        ]

    def states(self) -> list[ArchiveState]:
        return [archive.state for archive in read_overview(self.path).archives]


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with open_history(tmp_path / HISTORY_FILE) as history:
        yield World(tmp_path, history)


async def test_archives_of_the_specification_are_unwrapped(world: World) -> None:
    expired = sealed(FIVE, "expired long ago", TOPICS[1])  # nobody looks at expiry
    await world.download(published({week(4): [sealed(FIVE - 1)], week(5): [expired]}))

    await world.import_all()

    first, second = messages_of(world.path)
    assert second == HistoryMessage(
        FIVE * NS, expired.hash, TOPICS[1], f"{FIVE} expired long ago".encode(), None, b"meta", 1
    )
    assert first.timestamp == (FIVE - 1) * NS
    assert world.states() == [ArchiveState.IMPORTED] * 2


async def test_deployed_archives_are_unwrapped(world: World) -> None:
    signer = NodeId(bytes(range(64)))
    opened = message(DeployedMessage(b"\x04" + signer, FIVE, topic_of(TOPICS[0]), b"hello", b"", bytes(32)))
    unsigned = message(DeployedMessage(b"", FIVE + 1, topic_of(TOPICS[0]), b"", b"", b""))

    await world.download(published({week(5): [opened, unsigned]}, DeployedFormat()))
    await world.import_all()

    assert messages_of(world.path) == [
        HistoryMessage(FIVE * NS, bytes(32), TOPICS[0], b"hello", signer),
        HistoryMessage((FIVE + 1) * NS, unsigned.hash, TOPICS[0], b""),
    ]


async def test_empty_week_is_imported(world: World) -> None:
    await world.download(published({week(5): []}))

    (done,) = await world.import_all()

    assert [*done.imported.values()] == [0]
    assert world.states() == [ArchiveState.IMPORTED]


async def test_restart_between_download_and_import_loses_nothing(tmp_path: Path) -> None:
    async with open_history(tmp_path / HISTORY_FILE) as history:
        await World(tmp_path, history).download(published({week(5): [sealed(FIVE)]}))

    async with open_history(tmp_path / HISTORY_FILE) as history:
        world = World(tmp_path, history)
        await world.import_all()

        assert len(messages_of(world.path)) == 1


def _with_byte(encoded: EncodedArchive, at: int, byte: int) -> EncodedArchive:
    data = bytearray(encoded.data)
    data[at] = byte
    return replace(encoded, data=bytes(data))


@pytest.mark.parametrize(
    ("forge", "reason"),
    [
        (lambda archive: _with_byte(archive, -1, 1), "padding of a history archive is not zero"),
        (lambda archive: _with_byte(archive, 2, 0xFF), "it does not decode"),
        (lambda archive: replace(archive, data=bytes(PIECE_BYTES)), "it does not decode"),
        (lambda archive: replace(archive, time_range=week(6)), "it is of another range than the index says"),
        (lambda archive: replace(archive, content_topics=TOPICS[:1]), "it lists other topics than the index does"),
        (lambda archive: replace(archive, padding=0, data=archive.data * 2), "is in it twice"),
    ],
    ids=["padding", "bytes", "zeros", "range", "topics", "twice"],
)
async def test_archive_that_is_not_as_the_index_says_is_refused_and_leaves_nothing(
    world: World, forge: Callable[[EncodedArchive], EncodedArchive], reason: str
) -> None:
    made = Published()
    (encoded,) = SPEC_FORMAT.encode_archives(week(5), TOPICS, [sealed(FIVE)])
    made.append(forge(encoded))
    made.add(week(4), [sealed(FIVE - 1)])
    await world.download(made)

    await world.import_all()

    assert sorted(world.states(), key=str) == [ArchiveState.IMPORTED, ArchiveState.REFUSED]
    assert len(messages_of(world.path)) == 1
    refused = next(archive for archive in read_overview(world.path).archives if archive.refused)
    assert refused.refused is not None
    assert reason in refused.refused
    assert await world.import_all() == []


@pytest.mark.parametrize(
    ("stray", "reason"),
    [
        (sealed(FIVE + WEEK_S), "outside of its range"),
        (sealed(FIVE, topic="/waku/1/0x000000ff/rfc26"), "topic that it does not list"),
    ],
    ids=["range", "topic"],
)
async def test_archive_with_a_message_of_elsewhere_is_refused(
    world: World, stray: CommunityMessage, reason: str
) -> None:
    (encoded,) = SPEC_FORMAT.encode_archives(week(5), TOPICS, [])
    fields = [write_bytes(number, value) for number, _, value in read_fields(encoded.data) if isinstance(value, bytes)]
    body = fields[0] + write_bytes(3, stray.encoded)
    made = Published()
    made.append(replace(encoded, data=body + padding_field(len(body))))
    await world.download(made)

    await world.import_all()

    (archive,) = read_overview(world.path).archives
    assert archive.state is ArchiveState.REFUSED
    assert archive.refused is not None
    assert reason in archive.refused


async def test_download_that_changed_on_the_disk_is_fetched_again(world: World) -> None:
    (content,) = await world.download(published({week(5): [sealed(FIVE)]}))
    file = world.folder / "downloads" / content.hex()
    file.write_bytes(file.read_bytes()[:-1] + b"\1")

    (done,) = await world.import_all()

    assert done.lost == [content]
    assert world.states() == [ArchiveState.MISSING]


async def test_download_that_is_gone_is_fetched_again(world: World) -> None:
    (content,) = await world.download(published({week(5): [sealed(FIVE)]}))
    assert world.downloads.lost([content]) == []
    (world.folder / "downloads" / content.hex()).unlink()

    assert world.downloads.lost([content]) == [content]
    (done,) = await world.import_all()

    assert done.lost == [content]


async def test_leftovers_are_removed(world: World) -> None:
    (content,) = await world.download(published({week(5): [sealed(FIVE)]}))
    (world.folder / "downloads" / f"{content.hex()}.part").write_bytes(b"cut off")

    world.downloads.clear()
    Downloads(world.folder / "nothing").clear()

    assert [*(world.folder / "downloads").iterdir()] == []


async def test_kill_amidst_an_import_leaves_all_of_it_or_nothing(tmp_path: Path) -> None:
    recent = HistoryMessage((FIVE + 9) * NS, bytes(32), TOPICS[0], b"only a mailserver has it", version=1)
    made = published({week(5): [sealed(FIVE)]})
    made.add(week(5), [sealed(FIVE + 1, "late")])
    async with open_history(tmp_path / HISTORY_FILE) as history:
        await history.put_recent([recent])
        await World(tmp_path, history).download(made)

    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.community.member.killed_import", str(tmp_path), cwd=ROOT
    )
    assert await process.wait() == -signal.SIGKILL
    assert messages_of(tmp_path / HISTORY_FILE) == [recent]

    async with open_history(tmp_path / HISTORY_FILE) as history:
        world = World(tmp_path, history)
        assert world.states() == [ArchiveState.DOWNLOADED] * 2
        await world.import_all()

        assert [message.timestamp // NS for message in messages_of(world.path)] == [FIVE, FIVE + 1]
        assert world.states() == [ArchiveState.IMPORTED] * 2
