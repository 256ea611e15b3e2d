"""Catching up from a whole mailserver: the daemon as a process, with the store that it serves."""

import contextlib
import logging
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from mailserver.codec.keys import Enode
from mailserver.config import Config
from mailserver.store.schema import STORE_FILE
from mailserver.sync.source import State, SyncSettings
from mailserver.waku.bloom import Interest
from mailserver.waku.payload import key_from_password
from tests.integration.daemons import Daemon, running_daemon
from tests.store.samples import make_store
from tests.sync.running import assert_stored, catching_up, hurry, settled, state_of
from tests.sync.servers import NEWS, NOW, SPORT, make_envelopes, row, settings_for
from tests.waiting import until

pytestmark = pytest.mark.integration

WEEK = [*make_envelopes(3000, step_s=200), *make_envelopes(500, first=3000, step_s=1, topic=SPORT)]
"""3,500 envelopes over a week, and a little more than that."""

RANGE = (NOW - 3500 * 200, NOW)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    hurry(monkeypatch)
    caplog.set_level(logging.INFO, "mailserver")


@pytest.fixture
def settings() -> SyncSettings:
    return SyncSettings((), key_from_password(Config().password), "sync/test", 0.0)


@pytest.fixture
def source_folder(tmp_path: Path) -> Path:
    folder = tmp_path / "source"
    folder.mkdir()
    make_store(folder / STORE_FILE, [row(envelope) for envelope in WEEK])
    return folder


@contextlib.contextmanager
def source(folder: Path, *flags: str) -> Iterator[Daemon]:
    with running_daemon(folder, "--retention-days", "0", *flags) as daemon:
        yield daemon


@pytest.mark.parametrize("limit", [1000, 70])
async def test_all_that_a_daemon_has_is_stored(
    tmp_path: Path, source_folder: Path, settings: SyncSettings, limit: int
) -> None:
    with source(source_folder, "--max-request-limit", str(limit)) as daemon:
        async with catching_up(tmp_path, daemon.enode, settings=settings, wanted=RANGE) as catchup:
            (progress,) = await settled(catchup)

    assert_stored(tmp_path, WEEK)
    assert progress.state is State.DONE
    assert progress.stored == len(WEEK)


async def test_topics_of_a_daemon_are_stored(tmp_path: Path, source_folder: Path, settings: SyncSettings) -> None:
    some = SyncSettings((), settings.password_key, "sync/test", 0.0, Interest(topics=frozenset({SPORT})))

    with source(source_folder) as daemon:
        async with catching_up(tmp_path, daemon.enode, settings=some, wanted=RANGE) as catchup:
            await settled(catchup)

    assert_stored(tmp_path, [envelope for envelope in WEEK if envelope.topic != NEWS])


async def test_daemon_that_is_killed_and_comes_back_is_asked_on(
    tmp_path: Path, source_folder: Path, settings: SyncSettings
) -> None:
    with source(source_folder, "--max-request-limit", "50") as daemon:
        enode = daemon.enode
        async with catching_up(tmp_path, enode, settings=settings, wanted=RANGE) as catchup:
            await until(lambda: catchup.snapshot()[0].pages > 5)
            daemon.stop(signal.SIGKILL)
            assert (await state_of(catchup, State.WAITING)).problem
            with source(source_folder, "--listen", address(enode), "--max-request-limit", "50"):
                await settled(catchup)

    assert_stored(tmp_path, WEEK)


async def test_daemon_with_another_password_is_told_apart_from_an_empty_one(
    tmp_path: Path, source_folder: Path
) -> None:
    with source(source_folder) as daemon:
        async with catching_up(tmp_path, daemon.enode, settings=settings_for(), wanted=RANGE) as catchup:
            await until(lambda: "could not be decrypted" in catchup.snapshot()[0].problem)

    assert_stored(tmp_path, [])


def address(enode: Enode) -> str:
    return f"{enode.host}:{enode.port}"
