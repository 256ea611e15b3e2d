"""mailserver.catchup.catchup: what is owed over restarts, and what the log says."""

import asyncio
import json
from pathlib import Path

import pytest

from mailserver.catchup import catchup as catchup_module
from mailserver.catchup.catchup import Catchup
from mailserver.catchup.ledger import PROGRESS_FILE, CatchupError, open_ledger
from mailserver.catchup.progress import SourceState
from mailserver.catchup.ranges import LATE_S, MissingRange
from mailserver.store.sqlite.schema import STORE_FILE
from mailserver.store.sqlite.store import open_store
from tests.catchup.running import WHOLE, assert_stored, catching_up, settled
from tests.catchup.servers import DAY, SMALL, THREE_DAYS, Archive, Asked, serving, settings_for
from tests.catchup.starts import lines, nobody
from tests.mailservers import NOW
from tests.store.samples import read, write
from tests.waiting import DEADLINE_S, until

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("quick")]

# Over restarts


async def test_it_goes_on_where_it_was_stopped(tmp_path: Path) -> None:
    stops = (2, 6, 10)

    async with serving(Archive(THREE_DAYS, max_limit=SMALL)) as server:
        for count in stops:
            async with catching_up(tmp_path, server.enode, wanted=WHOLE if count == stops[0] else None):
                await until(lambda: len(server.requests) >= count)  # noqa: B023
        async with catching_up(tmp_path, server.enode, wanted=None) as catchup:
            await settled(catchup)

    assert_stored(tmp_path, THREE_DAYS)
    undisturbed = 16
    assert len(server.requests) <= undisturbed + 2 * len(stops)  # what was under way, and what was to be asked next
    assert json.loads(read(tmp_path / PROGRESS_FILE))["sources"] == {}


async def test_same_request_after_a_restart_goes_on_too(tmp_path: Path) -> None:
    async with serving(Archive(THREE_DAYS, max_limit=SMALL)) as server:
        async with catching_up(tmp_path, server.enode):
            await until(lambda: len(server.requests) >= 9)
        asked = len(server.requests)
        async with catching_up(tmp_path, server.enode, wanted=WHOLE) as catchup:
            await settled(catchup)

    assert_stored(tmp_path, THREE_DAYS)
    assert all(request.upper < NOW for request in server.requests[asked:])


async def test_what_was_new_while_it_was_stopped_is_asked_for_too(tmp_path: Path) -> None:
    before = [envelope for envelope in THREE_DAYS if envelope.created <= NOW - 2 * DAY]

    async with serving(Archive(THREE_DAYS, max_limit=SMALL)) as server:
        async with catching_up(tmp_path, server.enode, wanted=(NOW - 3 * DAY, NOW - 2 * DAY)):
            await until(lambda: len(server.requests) >= 2)
        asked = len(server.requests)
        async with catching_up(tmp_path, server.enode, wanted=WHOLE) as catchup:
            await settled(catchup)

    assert_stored(tmp_path, THREE_DAYS)
    assert len(before) > 3 * SMALL
    lowest_new = NOW - 2 * DAY - LATE_S
    assert min(request.lower for request in server.requests[asked:] if request.upper > NOW - 2 * DAY + 1) > lowest_new


async def test_what_a_source_owes_waits_for_it_while_others_are_asked(tmp_path: Path) -> None:
    async with open_store(tmp_path / STORE_FILE) as store:
        await Catchup(store, tmp_path, settings_for(nobody(1))).add(*WHOLE)

    async with (
        serving(Archive(THREE_DAYS)) as server,
        catching_up(tmp_path, server.enode) as catchup,
    ):
        assert len(await settled(catchup)) == 1

    assert open_ledger(tmp_path).account(nobody(1).node_id).pending == [MissingRange(*WHOLE)]


async def test_damaged_progress_file_is_an_error_that_names_it(tmp_path: Path) -> None:
    write(tmp_path / PROGRESS_FILE, b"{")

    async with open_store(tmp_path / STORE_FILE) as store:
        with pytest.raises(CatchupError, match="is damaged"):
            Catchup(store, tmp_path, settings_for(nobody(1)))

    assert read(tmp_path / PROGRESS_FILE) == b"{"


async def test_progress_that_cannot_be_saved_is_said_once_and_saved_later(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    blocked = tmp_path / f"{PROGRESS_FILE}.tmp"
    async with (
        serving(Archive(THREE_DAYS, max_limit=SMALL)) as server,
        catching_up(tmp_path, server.enode, wanted=None) as catchup,
    ):
        await catchup.add(*WHOLE)
        blocked.mkdir()
        await settled(catchup)
        assert json.loads(read(tmp_path / PROGRESS_FILE))["sources"] != {}
        await until(lambda: bool(lines(caplog, "catch-up progress not saved")))
        await asyncio.sleep(5 * catchup_module.SAVE_INTERVAL_S)
        blocked.rmdir()
        await until(lambda: json.loads(read(tmp_path / PROGRESS_FILE))["sources"] == {})

    assert_stored(tmp_path, THREE_DAYS)
    assert len(lines(caplog, "catch-up progress not saved")) == 1


async def test_range_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    (tmp_path / f"{PROGRESS_FILE}.tmp").mkdir()

    async with open_store(tmp_path / STORE_FILE) as store:
        with pytest.raises(CatchupError, match="cannot write"):
            await Catchup(store, tmp_path, settings_for(nobody(1))).add(*WHOLE)


async def test_being_cancelled_is_being_stopped(tmp_path: Path) -> None:
    async with (
        serving(Archive(THREE_DAYS, max_limit=SMALL)) as server,
        open_store(tmp_path / STORE_FILE) as store,
    ):
        catchup = Catchup(store, tmp_path, settings_for(server.enode), lambda: NOW)
        await catchup.add(*WHOLE)
        running = asyncio.create_task(catchup.run())
        await until(lambda: len(server.requests) >= 5)
        running.cancel()
        await asyncio.wait([running], timeout=DEADLINE_S)
        owed = open_ledger(tmp_path).account(server.enode.node_id).pending

        assert running.cancelled()
        assert owed[0].cursor is not None
        assert [source.ranges for source in catchup.snapshot()] == [len(owed)]


# The log


async def test_log_says_how_far_it_is_and_how_it_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(catchup_module, "LOG_INTERVAL_S", 0.0)
    archive, go_on = Archive(THREE_DAYS, max_limit=SMALL), asyncio.Event()

    async def answer(asked: Asked) -> None:
        if asked.number == 3:
            await go_on.wait()
        await archive(asked)

    async with (
        serving(answer) as server,
        catching_up(tmp_path, server.enode) as catchup,
    ):
        await until(lambda: len(lines(caplog, "catching up")) > 0)
        await until(lambda: catchup.snapshot()[0].pages == 2)
        await asyncio.sleep(5 * catchup_module.SAVE_INTERVAL_S)
        under_way = lines(caplog, "catching up")
        go_on.set()
        (progress,) = await settled(catchup)

    pages = [line.partition("pages=")[2].split()[0] for line in under_way]
    assert under_way[-1].startswith(f"catching up source={progress.source} left_s=")
    assert pages in (["1", "2"], ["2"])  # nothing is said where nothing has come
    (end,) = lines(caplog, "caught up ")
    start = f"caught up source={progress.source} pages=15 fetched=250 stored=250 wrong=0 seconds="
    assert end.startswith(start)


async def test_less_and_less_is_left(tmp_path: Path) -> None:
    left: list[int] = []

    async with (
        serving(Archive(THREE_DAYS, max_limit=SMALL)) as server,
        catching_up(tmp_path, server.enode) as catchup,
    ):
        while catchup.snapshot()[0].state is not SourceState.DONE:
            left.append(catchup.snapshot()[0].left_s)
            await asyncio.sleep(0)

    assert left[0] == 3 * DAY + 1
    assert left == sorted(left, reverse=True)
    assert len(set(left)) > 10
