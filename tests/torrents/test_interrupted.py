"""Kills at any moment: what was fetched is not fetched again, and what was seeded is seeded."""

import asyncio
import os
import re
import shlex
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from mailserver.errors import StartupError
from mailserver.torrents import child
from mailserver.torrents.client import FetchProgress, TorrentProcess
from mailserver.torrents.frames import Frame, read_frame
from mailserver.torrents.held import HELD_FILE
from mailserver.torrents.info import PIECE_BYTES
from mailserver.torrents.making import make_torrent
from tests.torrents.folders import NAME, publish
from tests.torrents.processes import MEMBER, OWNER, kill_child, link_to, process_on, statistics_of, until_shown
from tests.waiting import DEADLINE_S, until

pytestmark = pytest.mark.integration

PIECES = 30
SLOW = 1_500_000
"""Bytes a second: 30 pieces take two seconds."""

UNDER_WAY = 10 * PIECE_BYTES
"""What may have been sent when its receiver was killed: blocks of pieces that were not whole."""


@pytest.fixture
def published(tmp_path: Path) -> Path:
    return tmp_path / "published"


@pytest.fixture
def fetched(tmp_path: Path) -> Path:
    folder = tmp_path / "fetched"
    folder.mkdir()
    return folder


async def test_killed_process_goes_on_with_what_was_missing(published: Path, fetched: Path) -> None:
    info = publish(published, PIECES)
    seen: list[FetchProgress] = []
    async with process_on(OWNER, upload_bytes_s=SLOW) as owner, process_on(MEMBER) as member:
        await owner.seed(info, published)
        fetching = asyncio.create_task(
            member.fetch(info, fetched, [info.pieces], link=link_to(info, (OWNER, owner)), on_progress=seen.append)
        )
        await until(lambda: bool(seen) and seen[-1].missing <= PIECES // 2)
        before = len(seen)
        await kill_child(member)

        await fetching

        after = seen[before:]
        of_owner, of_member = await statistics_of(owner, info), await statistics_of(member, info)
        assert member.restarts == (await member.statistics()).restarts == 1
    assert after[0].missing < PIECES
    last = info.index_bytes - PIECE_BYTES
    assert of_member.downloaded_bytes in {
        after[0].missing * PIECE_BYTES,
        (after[0].missing - 1) * PIECE_BYTES + last,  # the last piece of the index is shorter
    }
    assert of_owner.uploaded_bytes <= info.data_bytes + info.index_bytes + UNDER_WAY
    assert make_torrent(fetched, NAME) == info


async def test_killed_service_takes_its_process_along_and_the_next_goes_on(published: Path, fetched: Path) -> None:
    info = publish(published, PIECES)
    async with process_on(OWNER, upload_bytes_s=SLOW) as owner:
        await owner.seed(info, published)
        link = link_to(info, (OWNER, owner))
        service = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "tests.torrents.fetching", str(fetched), link.encode(), stdout=asyncio.subprocess.PIPE
        )
        assert service.stdout is not None
        async with asyncio.timeout(DEADLINE_S):
            process_id = int(await service.stdout.readline())
            while int(await service.stdout.readline()) > PIECES // 2:
                pass
        os.kill(service.pid, signal.SIGKILL)
        await service.wait()
        await until(lambda: not _runs(process_id))

        first: list[FetchProgress] = []
        async with process_on(MEMBER) as member:
            await member.fetch(info, fetched, [info.pieces], link=link, on_progress=first.append)

            of_owner, of_member = await statistics_of(owner, info), await statistics_of(member, info)
    assert 0 < first[0].missing < PIECES
    assert of_member.downloaded_bytes <= first[0].missing * PIECE_BYTES
    assert of_owner.uploaded_bytes <= info.data_bytes + info.index_bytes + UNDER_WAY
    assert make_torrent(fetched, NAME) == info


async def test_stopped_process_remembers_what_it_has(published: Path, fetched: Path) -> None:
    info = publish(published)
    async with process_on(OWNER) as owner:
        await owner.seed(info, published)
        link = link_to(info, (OWNER, owner))
        async with process_on(MEMBER) as member:
            await member.fetch(info, fetched, [range(5), info.index_pieces], link=link)
        assert (fetched / HELD_FILE).exists()

        async with process_on(MEMBER) as member:
            await member.fetch(info, fetched, [range(8), info.index_pieces], link=link)

            assert (await statistics_of(member, info)).downloaded_bytes == 3 * PIECE_BYTES
            await member.fetch(info, fetched, [range(8)], link=link)
            assert (await statistics_of(member, info)).downloaded_bytes == 3 * PIECE_BYTES


async def test_piece_that_changed_on_disk_is_fetched_again(published: Path, fetched: Path) -> None:
    info = publish(published)
    async with process_on(OWNER) as owner:
        await owner.seed(info, published)
        link = link_to(info, (OWNER, owner))
        async with process_on(MEMBER) as member:
            await member.fetch(info, fetched, [info.pieces], link=link)
        with (fetched / "data").open("r+b") as data:
            data.seek(5 * PIECE_BYTES)
            data.write(b"damaged")

        async with process_on(MEMBER) as member:
            await member.fetch(info, fetched, [info.pieces], link=link)

            assert (await statistics_of(member, info)).downloaded_bytes == PIECE_BYTES
    assert make_torrent(fetched, NAME) == info


async def test_killed_process_seeds_again_at_the_same_port(published: Path, fetched: Path) -> None:
    info = publish(published)
    async with process_on(OWNER) as owner, process_on(MEMBER) as member:
        await owner.seed(info, published)
        port = owner.port

        await kill_child(owner)

        await member.fetch(info, fetched, [info.pieces], link=link_to(info, (OWNER, owner)))
        assert (await statistics_of(owner, info)).complete
        assert (owner.port, owner.restarts) == (port, 1)


async def test_process_that_is_killed_again_and_again_comes_back(
    published: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(child, "LONGEST_PAUSE_S", 0.2)
    info = publish(published)
    async with process_on(OWNER) as owner:
        await owner.seed(info, published)
        for _ in range(3):
            await until(lambda: owner.process_id is not None)
            await kill_child(owner)

        await until_shown(owner, info, lambda shown: shown.complete)
        assert owner.restarts == 3


async def test_process_that_does_not_answer_is_killed_and_started_again(
    published: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(child, "PING_INTERVAL_S", 0.1)
    info = publish(published)
    async with process_on(OWNER) as owner:
        await owner.seed(info, published)
        monkeypatch.setattr(child, "ANSWER_S", 1.0)
        assert owner.process_id is not None
        os.kill(owner.process_id, signal.SIGSTOP)

        await until(lambda: owner.restarts == 1)

        monkeypatch.setattr(child, "ANSWER_S", 30.0)
        await until_shown(owner, info, lambda shown: shown.complete)


async def test_what_is_asked_while_the_process_starts_is_sent_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = tmp_path / "frames"
    monkeypatch.setattr(child, "COMMAND", ("bash", "-c", f"exec {shlex.join(child.COMMAND)} < <(tee {kept})"))
    async with process_on(MEMBER) as member:
        await member.statistics()
        assert member.process_id is not None
        os.killpg(member.process_id, signal.SIGKILL)
        asking = [asyncio.create_task(member.statistics())]

        async def ask_until_answered() -> None:
            while member.restarts == 0 or not any(each.done() for each in asking):
                asking.append(asyncio.create_task(member.statistics()))
                await asyncio.sleep(0.001)

        await asyncio.wait_for(ask_until_answered(), DEADLINE_S)
        await asyncio.gather(*asking)

    reader = asyncio.StreamReader()
    reader.feed_data(kept.read_bytes())
    reader.feed_eof()
    sent = [frame["id"] async for frame in _frames(reader) if frame["op"] == "statistics"]
    assert len(sent) > 10
    assert len(set(sent)) == len(sent)


async def test_metadata_is_asked_for_again_after_a_kill(published: Path) -> None:
    info = publish(published)
    async with process_on(MEMBER) as member:
        async with process_on(OWNER) as owner:
            link = link_to(info, (OWNER, owner))
        asking = asyncio.create_task(member.metadata(link))
        await member.statistics()
        await kill_child(member)

        async with process_on(OWNER, port=owner.port) as owner:
            await owner.seed(info, published)
            assert await asking == info


BUGGY = """
from mailserver.torrents import process, session

def fail(*_):
    raise RuntimeError("as in a test")

session.statistics = session.disconnect = fail
process.main()
"""


async def test_bug_in_the_process_ends_neither_it_nor_its_service(
    published: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(child, "COMMAND", (sys.executable, "-c", BUGGY))
    info = publish(published)
    async with process_on(OWNER) as owner:
        await owner.seed(info, published)

        assert (await owner.statistics()).torrents == ()
        await owner.drop(info.info_hash)

        assert await owner.sent(info.info_hash) == {}
        assert (await owner.statistics()).memory_bytes > 0  # there is no torrent any more of which it could fail
        assert owner.restarts == 0


async def test_process_ends_with_its_context(published: Path) -> None:
    async with process_on(OWNER) as owner:
        process_id = owner.process_id

    assert owner.process_id is None
    assert not _runs(process_id)
    assert owner.restarts == 0


async def test_signals_for_the_service_leave_the_process_alone(published: Path) -> None:
    info = publish(published)
    async with process_on(OWNER) as owner:
        assert owner.process_id is not None
        os.kill(owner.process_id, signal.SIGTERM)
        os.kill(owner.process_id, signal.SIGINT)
        await owner.seed(info, published)

    assert owner.restarts == 0


async def test_address_that_is_taken_or_not_ours_cannot_be_listened_on() -> None:
    async with process_on(OWNER) as owner:
        taken = re.escape(f"the torrent process cannot start: cannot listen on {OWNER}:{owner.port}: ")
        with pytest.raises(StartupError, match=f"{taken}.*in use"):
            await _start(process_on(OWNER, port=owner.port))
    with pytest.raises(StartupError, match="the torrent process cannot start: "):
        await _start(process_on("192.0.2.1"))


async def _frames(reader: asyncio.StreamReader) -> AsyncIterator[Frame]:
    while (frame := await read_frame(reader)) is not None:
        yield frame


def _runs(process_id: int | None) -> bool:
    return Path(f"/proc/{process_id}").exists()


async def _start(process: TorrentProcess) -> None:
    async with process:
        pass
