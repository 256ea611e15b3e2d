"""`waku-mailserver status`: what it prints of the state that a daemon's control socket gives, and its exit code."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from mailserver.api.caller import Call
from mailserver.api.dispatch import Dispatcher, Method
from mailserver.api.params import Fields, Json
from mailserver.app.control import CONTROL_ERRORS, ControlSocket, StatusMethods
from mailserver.app.control_call import STATUS, call_daemon
from mailserver.commands import status as status_module
from mailserver.commands.cli import main
from mailserver.community.folder import COMMUNITIES_FOLDER
from mailserver.handoff.communities import write_served
from mailserver.handoff.last_run import Compaction
from mailserver.metrics.figures import DiskFigures
from mailserver.metrics.labels import PostResult
from mailserver.metrics.registry import Metrics
from mailserver.monitoring.state import Monitoring
from mailserver.monitoring.watch import Sight
from mailserver.store.sqlite.handoff import write_compaction
from mailserver.store.sqlite.schema import STORE_FILE
from mailserver.store.sqlite.store import open_store
from tests.communities.progress import JOINED, OWNED
from tests.mailservers import NOW, fill, make_envelopes
from tests.monitoring.samples import ENODE, SYNC, minutes, monitoring
from tests.waiting import until

pytestmark = pytest.mark.integration


@pytest.fixture
async def state(tmp_path: Path) -> AsyncIterator[Monitoring]:
    """A mailserver that has looked once, and answers at the control socket of its data directory."""
    run = Compaction(
        started_at=NOW - 700, finished_at=NOW - 500, exit_code=0, rows=1234, seconds=200.0, succeeded_at=NOW - 500
    )
    write_compaction(tmp_path / STORE_FILE, run)
    (tmp_path / COMMUNITIES_FOLDER).mkdir()
    write_served(tmp_path / COMMUNITIES_FOLDER, [OWNED, JOINED], NOW - 600.0)
    async with open_store(tmp_path / STORE_FILE) as store:
        await fill(store, make_envelopes(3))
        metrics = Metrics()
        metrics.gateways.set(2)
        metrics.communities.set(1)
        metrics.gateway_envelopes.inc(5000)
        metrics.gateway_posts[PostResult.STORED].inc(7)
        metrics.gateway_posts[PostResult.FAILED].inc(1)
        state = monitoring(store, tmp_path, metrics=metrics, sync=[SYNC])
        state.last_day.resume(minutes(4, NOW - 180, taken=1234.0, bytes_in=2048.0, **{"answers_le_0.01": 1.0}))
        running = asyncio.create_task(state.run())
        await until(lambda: state.figures().store is not None)
        control = ControlSocket(Dispatcher(StatusMethods(state).table(), CONTROL_ERRORS))
        await control.start(tmp_path)
        yield state
        await control.stop()
        running.cancel()
        await asyncio.wait([running])


async def status(folder: Path, *flags: str) -> int:
    return await asyncio.to_thread(main, ["status", "--data-dir", str(folder), *flags])


async def test_json_is_what_monitoring_says(
    state: Monitoring, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert await status(tmp_path, "--json") == 0

    said = json.loads(capsys.readouterr().out)
    known: dict[str, Any] = json.loads(json.dumps(state.status().as_json()))
    for volatile in ("uptime_s", "disk", "store", "day"):
        assert said.pop(volatile).__class__ is known.pop(volatile).__class__
    assert said == known


async def test_table_says_how_it_is(state: Monitoring, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert await status(tmp_path) == 0

    out = capsys.readouterr().out
    lines = {line.split("  ")[0]: line.split("  ", 1)[1].split("  ") for line in out.splitlines() if "  " in line}
    said = {name: " ".join(" ".join(cells).split()) for name, cells in lines.items()}
    assert said["state"] == "ready"
    assert said["enode"] == str(ENODE)
    assert said["version"].startswith("0.")
    assert said["peers that dialled us"] == "7 (status-go 7)"
    assert said["peers that we dialled"] == "1 (waku-mailserver 1)"
    assert said["peers at most"] == "500"
    assert said["handshakes under way"] == "2"
    assert said["waiting for the disk"] == "3 envelopes, 300 B"
    assert said["kept for relaying"] == "4 envelopes, 400 B"
    assert said["requests waiting"] == "5"
    assert said["store"].startswith("3 envelopes, ")
    assert ", the oldest received 2026-11-" in said["store"]
    assert said["disk"].endswith(" free")
    assert said["compaction"].startswith("succeeded 2026-11-")
    assert said["compaction"].endswith(", 1,234 envelopes archived in 3 min")
    assert said["catching up"] == "24 h left; sources: 1; 200 envelopes stored"
    assert (
        said["communities"]
        == "1 owned, 1 joined; 1 week without an archive; 1 with a problem; community serve does not run"
    )
    assert said["gateways"] == "2 and the communities; 5,000 envelopes sent, 7 stored from them (1 refused or failed)"
    assert said["envelopes accepted"].split()[0] == "1,234"
    assert said["answer time, median"].split() == ["7.5", "ms", "7.5", "ms"]
    assert said["bytes in"].startswith("2 KiB")
    assert said.get("problem", "the disk is").startswith("the disk is")  # as it is on this machine


async def test_mailserver_that_is_not_ready_is_said_and_is_exit_code_1(
    state: Monitoring, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    state.health.judge(Sight(store_problem="disk is full", disk=DiskFigures(free=2**30, size=2**40)))

    assert await status(tmp_path) == 1
    out = capsys.readouterr().out
    assert "NOT READY" in out
    assert "the store is not writable: disk is full" in out
    assert "the disk is nearly full: 1 GiB of 1 TiB free" in out
    assert await status(tmp_path, "--json") == 1
    assert json.loads(capsys.readouterr().out)["ready"] is False


async def test_no_mailserver_is_one_line_and_exit_code_1(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert await status(tmp_path) == 1

    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == (
        f"waku-mailserver: no mailserver answers at {tmp_path / 'control'}: No such file or directory\n"
    )


async def test_mailserver_that_does_not_answer_is_not_waited_for_long(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(status_module, "TIMEOUT_S", 0.05)

    async def never(params: Fields, call: Call) -> Json:
        await asyncio.Event().wait()
        return None

    async def at_once(params: Fields, call: Call) -> Json:
        return None

    control = ControlSocket(Dispatcher({STATUS: Method(never), "next": Method(at_once)}, CONTROL_ERRORS))
    await control.start(tmp_path)

    assert await status(tmp_path) == 1
    assert "the mailserver has not answered for 0.05 s" in capsys.readouterr().err
    await call_daemon(tmp_path, "next", {}, lambda _: None)  # asyncio loses whom it is just accepting at `stop`
    await control.stop()


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        (None, "has never run"),
        ({"state": "running"}, "running since 2026-11-21 00:00:00 UTC"),
        ({"state": "died"}, "was killed, began 2026-11-21 00:00:00 UTC"),
        ({"state": "failed"}, "failed 2026-11-21 00:01:30 UTC in 90 s"),
        (
            {"state": "damaged"},
            "found the archive damaged 2026-11-21 00:01:30 UTC, 0 envelopes archived in 90 s",
        ),
    ],
)
def test_compaction_is_said_in_words(changes: dict[str, str] | None, text: str) -> None:
    begun = 1_795_219_200.0
    run = {"state": "", "started_at": begun, "finished_at": begun + 90, "rows": 0, "seconds": 90.0}

    assert status_module.compaction_text(None if changes is None else run | changes) == text
