"""mailserver.catchup.command: catching up once, and what people and programs see of it."""

import asyncio
import json
from dataclasses import replace
from pathlib import Path

import pytest

from mailserver.catchup import command as command_module
from mailserver.catchup.command import complaints, is_complete, overview, report, run_once
from mailserver.catchup.ledger import open_ledger
from mailserver.catchup.page_rules import Wrong
from mailserver.catchup.progress import SourceProgress, SourceState
from mailserver.codec.keys import Enode
from mailserver.store.sqlite.schema import STORE_FILE
from mailserver.store.sqlite.store import open_store
from tests.catchup.running import WHOLE, assert_stored, hurry
from tests.catchup.servers import Archive, Asked, make_envelopes, serving, settings_for
from tests.mailservers import Clock
from tests.pairs import private_key
from tests.waiting import DEADLINE_S, until

THREE_DAYS = make_envelopes(250, step_s=1000)

DONE = SourceProgress("abcd1234@192.0.2.1:30303", SourceState.DONE, 0, 0, 3, 250, 200, {Wrong.LOW_POW: 7}, 1.5, "", 0)
DOWN = SourceProgress(
    "ef567890@192.0.2.2:30303", SourceState.GIVEN_UP, 1, 1000, 0, 0, 0, {}, 60.0, "no \x1b[31manswer", 6
)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    hurry(monkeypatch)


@pytest.mark.integration
async def test_one_run_ends_when_all_is_fetched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command_module, "SHOW_INTERVAL_S", 0.001)
    shown: list[SourceProgress] = []

    async with serving(Archive(THREE_DAYS, max_limit=20)) as server, open_store(tmp_path / STORE_FILE) as store:
        ended = await asyncio.wait_for(
            run_once(
                store,
                tmp_path,
                settings_for(server.enode),
                *WHOLE,
                show=shown.extend,
                clock=Clock(),
            ),
            DEADLINE_S,
        )

    assert_stored(tmp_path, THREE_DAYS)
    assert is_complete(ended)
    assert {progress.fetched for progress in shown} > {250}


@pytest.mark.integration
async def test_one_run_gives_up_who_is_not_there(tmp_path: Path) -> None:
    nobody = Enode(private_key("nobody").public_key, "127.0.0.1", 1)

    async def refuse(asked: Asked) -> None:
        asked.fail("failed to decrypt p2p request")

    async with (
        serving(Archive(THREE_DAYS), name="there") as there,
        serving(refuse, name="refuses") as refuses,
        open_store(tmp_path / STORE_FILE) as store,
    ):
        settings = settings_for(there.enode, refuses.enode, nobody)
        ended = await asyncio.wait_for(run_once(store, tmp_path, settings, *WHOLE, clock=Clock()), DEADLINE_S)

    assert_stored(tmp_path, THREE_DAYS)
    assert [source.state for source in ended] == [SourceState.DONE, SourceState.GIVEN_UP, SourceState.GIVEN_UP]
    assert [source.failures for source in ended] == [0, 2, command_module.ATTEMPTS]
    assert len(refuses.requests) == 2
    assert not is_complete(ended)


@pytest.mark.integration
async def test_one_run_that_is_cancelled_has_saved_its_progress(tmp_path: Path) -> None:
    archive = Archive(THREE_DAYS, max_limit=20)

    async def answer(asked: Asked) -> None:
        if asked.number < 4:  # a day's fourth page of five is never answered
            await archive(asked)

    async with serving(answer) as server, open_store(tmp_path / STORE_FILE) as store:
        running = asyncio.create_task(run_once(store, tmp_path, settings_for(server.enode), *WHOLE, clock=Clock()))
        await until(lambda: len(server.requests) == 4)
        running.cancel()
        await asyncio.wait([running], timeout=DEADLINE_S)

    assert running.cancelled()
    assert open_ledger(tmp_path).account(server.enode.node_id).pending[0].cursor is not None


def test_overview_takes_all_sources_together() -> None:
    assert overview([DONE, DOWN], 1000) == (
        "250 envelopes, 200 of them new; ef567890@192.0.2.2:30303: 'no \\x1b[31manswer'",
        1000,
        2000,
    )
    assert overview([DOWN], 0)[1:] == (0, 1)  # asked for a moment, and owed more from before
    assert overview([], 5)[1:] == (5, 5)


def test_report_says_how_it_ended_with_each() -> None:
    assert report([DONE, DOWN], as_json=False) == (
        "abcd1234@192.0.2.1:30303: 250 envelopes in 3 pages, 200 of them new, 7 dropped (proof of work too low)\n"
        "ef567890@192.0.2.2:30303: 0 envelopes in 0 pages, 0 of them new; given up: 'no \\x1b[31manswer'"
    )


def test_source_that_sent_what_was_not_asked_for_is_complained_of() -> None:
    unasked = replace(DONE, wrong={Wrong.UNWANTED_TOPIC: 2, Wrong.LOW_POW: 7, Wrong.OUT_OF_RANGE: 1})

    (complaint,) = complaints([unasked, DOWN])

    assert complaint == (
        "abcd1234@192.0.2.1:30303 sent what was not asked for: "
        "2 dropped (topic not asked for), 1 dropped (created outside of the range asked for)"
    )
    assert complaints([DONE, replace(DONE, wrong={Wrong.OVERSIZE: 1, Wrong.FROM_THE_FUTURE: 1})]) == []


def test_report_for_programs_has_all_that_is_known() -> None:
    objects = json.loads(report([DONE, DOWN], as_json=True))

    assert objects[0] == {
        "source": "abcd1234@192.0.2.1:30303",
        "state": "done",
        "ranges": 0,
        "left_s": 0,
        "pages": 3,
        "fetched": 250,
        "stored": 200,
        "wrong": {"low_pow": 7},
        "seconds": 1.5,
        "problem": "",
        "failures": 0,
        "is_hopeless": False,
    }
    assert [SourceProgress.from_json(fields) for fields in objects] == [DONE, DOWN]
