"""Catching up from a whole mailserver: the daemon as a process, with the store that it serves."""

import asyncio
import contextlib
import itertools
import logging
import signal
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from mailserver.app.config import Config
from mailserver.catchup import comparing as comparing_module
from mailserver.catchup.progress import SourceState
from mailserver.catchup.settings import CatchupSettings
from mailserver.mail.request import Cursor
from mailserver.store.sqlite.schema import STORE_FILE
from mailserver.waku.bloom import Interest
from mailserver.waku.envelope import Envelope, EnvelopeHash, Topic, mine
from mailserver.waku.payload import key_from_password
from tests.catchup.running import assert_stored, catching_up, hurry, settled, state_of
from tests.catchup.servers import STATUS, Archive, Asked, make_envelopes, serving, settings_for
from tests.integration.daemons import Daemon, running_daemon
from tests.mailservers import NEWS, NOW, SPORT, make_envelope, stored
from tests.pairs import digest
from tests.ports import free_ports
from tests.store.samples import make_store
from tests.waiting import until

pytestmark = pytest.mark.integration

WEEK = [*make_envelopes(3000, step_s=200), *make_envelopes(500, first=3000, step_s=1, topic=SPORT)]
"""3,500 envelopes over a week, and a little more than that."""

RANGE = (NOW - 3500 * 200, NOW)
MIN_POW = 0.001


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    hurry(monkeypatch)
    caplog.set_level(logging.INFO, "mailserver")


@pytest.fixture
def settings() -> CatchupSettings:
    return replace(settings_for(), password_key=key_from_password(Config().password))


@pytest.fixture
def source_folder(tmp_path: Path) -> Path:
    folder = tmp_path / "source"
    folder.mkdir()
    make_store(folder / STORE_FILE, [stored(envelope) for envelope in WEEK])
    return folder


@contextlib.contextmanager
def source(folder: Path, *flags: str) -> Iterator[Daemon]:
    with running_daemon(folder, "--retention-days", "0", *flags) as daemon:
        yield daemon


@pytest.mark.parametrize("limit", [1000, 70])
async def test_all_that_a_daemon_has_is_stored(
    tmp_path: Path, source_folder: Path, settings: CatchupSettings, limit: int
) -> None:
    with source(source_folder, "--max-request-limit", str(limit)) as daemon:
        async with catching_up(tmp_path, daemon.enode, settings=settings, wanted=RANGE) as catchup:
            (progress,) = await settled(catchup)

    assert_stored(tmp_path, WEEK)
    assert progress.state is SourceState.DONE
    assert progress.stored == len(WEEK)


async def test_topics_of_a_daemon_are_stored(tmp_path: Path, source_folder: Path, settings: CatchupSettings) -> None:
    some = replace(settings, acceptance=settings_for(interest=Interest(topics=frozenset({SPORT}))).acceptance)

    with source(source_folder) as daemon:
        async with catching_up(tmp_path, daemon.enode, settings=some, wanted=RANGE) as catchup:
            await settled(catchup)

    assert_stored(tmp_path, [envelope for envelope in WEEK if envelope.topic != NEWS])


async def test_daemon_that_is_killed_and_comes_back_is_asked_on(
    tmp_path: Path, source_folder: Path, settings: CatchupSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(comparing_module, "MAX_FETCHED_IDS", 50)
    (port,) = free_ports(1)
    flags = ("--listen", f"127.0.0.1:{port}", "--max-request-limit", "50")
    with source(source_folder, *flags) as daemon:
        async with catching_up(tmp_path, daemon.enode, settings=settings, wanted=RANGE) as catchup:
            await until(lambda: catchup.snapshot()[0].pages > 5)
            daemon.stop(signal.SIGKILL)
            assert (await state_of(catchup, SourceState.WAITING)).problem
            with source(source_folder, *flags):
                await settled(catchup)

    assert_stored(tmp_path, WEEK)


async def test_daemon_with_another_password_is_told_apart_from_an_empty_one(
    tmp_path: Path, source_folder: Path
) -> None:
    with source(source_folder) as daemon:
        async with catching_up(tmp_path, daemon.enode, settings=settings_for(), wanted=RANGE) as catchup:
            await until(lambda: "could not be decrypted" in catchup.snapshot()[0].problem)

    assert_stored(tmp_path, [])


@pytest.mark.asyncio(loop_factories=["asyncio"])  # it is not our loop that catches up
async def test_daemon_that_is_killed_again_and_again_ends_with_everything_of_two_sources_of_which_one_lies(
    tmp_path: Path,
) -> None:
    key = key_from_password(Config().password)
    now = int(time.time())
    honest = [mined(n, now - 60 - 250 * n) for n in range(300)]
    archive, stuck = Archive(honest, max_limit=20), {5, 9, 14}

    async def answer(asked: Asked) -> None:
        if asked.number not in stuck:  # else it is killed before there is an answer
            await archive(asked)

    async def lie(asked: Asked) -> None:
        lower = max(asked.request.lower, now - 3600)
        poor = (make_envelope(n, created=lower + n % 50) for n in itertools.count(10_000))
        asked.give([*honest[-5:], *honest[-5:], *itertools.islice((e for e in poor if e.pow() < MIN_POW), 40)])
        asked.give([mined(n, asked.request.lower - 1 - n) for n in range(20_000, 20_040)])
        asked.give([mined(n, lower + n % 50, SPORT) for n in range(30_000, 30_040)])
        asked.complete(Cursor(lower, EnvelopeHash(bytes(32))))

    folder = tmp_path / "data"
    flags = ["--sync-days", "1", "--min-pow", str(MIN_POW), "--archive-topics", f"0x{NEWS.hex()}"]
    async with (
        serving(lie, name="liar", status=replace(STATUS, pow_requirement=MIN_POW), key=key) as liar,
        serving(answer, key=key) as server,
    ):
        flags += ["--trusted-peers", f"{liar.enode},{server.enode}"]
        for number in sorted(stuck):
            with running_daemon(folder, *flags) as daemon:
                await until(lambda: len(server.requests) >= number)  # noqa: B023
                daemon.process.kill()
        with running_daemon(folder, *flags) as daemon:
            name = server.enode.node_id.hex()[:8]
            await asyncio.to_thread(daemon.wait_for_line, f"caught up source={name}")
            await asyncio.to_thread(daemon.wait_for_line, "catch-up leaves a source alone")
            assert daemon.stop() == 0

    assert_stored(folder, honest)


def mined(number: int, created: int, topic: Topic = NEWS) -> Envelope:
    """An envelope with as much work as that daemon asks for."""
    return mine(created + 50, 50, topic, digest(f"mined {number}"), target=MIN_POW, first_nonce=0)
