"""Catching up as an operator sees it: at the start, by a command beside the daemon or alone, in the metrics."""

import asyncio
import contextlib
import json
import os
import signal
import stat
import time
import urllib.request
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from mailserver.api.params import Json
from mailserver.app.config import Config
from mailserver.app.control_call import SYNC, CallFailed, call_daemon
from mailserver.data_dir.running import CONTROL_FILE
from mailserver.errors import StartupError
from mailserver.store.sqlite.schema import STORE_FILE
from mailserver.store.sqlite.store import open_store
from mailserver.waku.envelope import Envelope, encode_envelope
from mailserver.waku.payload import key_from_password
from tests.catchup.servers import Asked, serving
from tests.integration.daemons import Daemon, run_command, running_daemon
from tests.mailservers import NEWS, SPORT, fill
from tests.pairs import digest
from tests.waiting import until

pytestmark = pytest.mark.integration

COUNT = 2500


def past_envelopes(count: int = COUNT) -> list[Envelope]:
    """Envelopes of the last hours, newest first; their proof of work is enough for a daemon's default."""
    now = int(time.time())
    return [
        encode_envelope(now - number * 4 + 50, 50, NEWS, digest(f"past {number}") * 8, number)
        for number in range(count)
    ]


def stored(data_dir: Path) -> int:
    done = run_command("stats", "--data-dir", data_dir, "--json")
    assert done.returncode == 0, done.stderr
    return int(json.loads(done.stdout)["envelopes"])


@pytest.fixture
async def source(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Daemon]:
    """A mailserver that has COUNT envelopes."""
    folder = tmp_path_factory.mktemp("source")
    async with open_store(folder / STORE_FILE) as store:
        await fill(store, past_envelopes())
    with running_daemon(folder) as daemon:
        yield daemon


async def test_start_fetches_what_was_missed_and_the_metrics_say_so(tmp_path: Path, source: Daemon) -> None:
    trusted = ("--trusted-peers", str(source.enode), "--sync-days", "1", "--metrics", "127.0.0.1:0")
    with running_daemon(tmp_path / "new", *trusted) as daemon:
        daemon.wait_for_line("caught up")
        url = f"http://127.0.0.1:{_port(daemon, 'serving metrics port=')}/metrics"
        metrics = await asyncio.to_thread(_get, url)

    assert stored(tmp_path / "new") == COUNT
    name = source.enode.node_id.hex()[:8]
    assert f'mailserver_sync_stored_envelopes_total{{source="{name}' in metrics
    assert any(
        line.startswith("mailserver_sync_stored") and line.endswith(f" {COUNT}.0") for line in metrics.split("\n")
    )
    assert any(
        line.startswith("mailserver_sync_left_seconds{") and line.endswith(" 0.0") for line in metrics.split("\n")
    )


async def test_reload_puts_sources_and_rules_in_force(tmp_path: Path, source: Daemon) -> None:
    file = tmp_path / "mailserver.toml"
    file.write_text("sync_days = 1\n")
    with running_daemon(tmp_path / "new", "--config", str(file)) as daemon:
        file.write_text(f'sync_days = 1\nmin_pow = 1e9\ntrusted_peers = ["{source.enode}"]\n')
        daemon.process.send_signal(signal.SIGHUP)
        assert f" fetched={COUNT} stored=0 wrong={COUNT} " in daemon.wait_for_line("caught up")

        file.write_text("sync_days = 1\n")
        daemon.process.send_signal(signal.SIGHUP)
        await until(lambda: daemon.log.count("settings reloaded") == 2)
        command = ("sync", "--data-dir", daemon.data_dir, "--from", source.enode, "--since", int(time.time()) - 86_400)
        done = await asyncio.to_thread(run_command, *command, "--json")

    (report,) = json.loads(done.stdout)
    assert (report["state"], report["fetched"], report["stored"]) == ("done", COUNT, COUNT)


async def test_command_has_the_running_daemon_fetch(tmp_path: Path, source: Daemon) -> None:
    with running_daemon(tmp_path / "new") as daemon:
        since = int(time.time()) - 2 * 3600
        done = await asyncio.to_thread(
            run_command, "sync", "--data-dir", daemon.data_dir, "--from", source.enode, "--since", since, "--json"
        )

        assert done.returncode == 0, done.stderr
        (report,) = json.loads(done.stdout)
        assert report["state"] == "done"
        assert report["stored"] == stored(daemon.data_dir)
        assert 1700 <= report["stored"] <= 1801


async def test_command_fetches_by_itself_where_no_daemon_runs(tmp_path: Path, source: Daemon) -> None:
    command = ("sync", "--data-dir", tmp_path / "new", "--from", source.enode, "--since", int(time.time()) - 86_400)
    done = await asyncio.to_thread(run_command, *command)
    again = await asyncio.to_thread(run_command, *command)

    assert done.returncode == 0, done.stderr
    assert f"{COUNT} envelopes" in done.stdout
    assert again.returncode == 0, again.stderr
    assert "0 of them new" in again.stdout
    assert stored(tmp_path / "new") == COUNT


@pytest.mark.parametrize("beside_daemon", [True, False], ids=["beside a daemon", "alone"])
async def test_command_keeps_what_is_right_and_fails_if_a_source_sends_what_was_not_asked_for(
    tmp_path: Path, beside_daemon: bool
) -> None:
    now = int(time.time())
    right, early = past_envelopes(20), past_envelopes(1000)[-1]
    other = encode_envelope(now + 40, 50, SPORT, digest("other") * 8, 0)
    topics = ("--archive-topics", f"0x{NEWS.hex()}")

    async def answer(asked: Asked) -> None:
        asked.give([*right, early, other])
        asked.complete()

    async with serving(answer, key=key_from_password(Config().password)) as liar:
        command = ("sync", "--data-dir", tmp_path / "new", "--from", liar.enode, "--since", now - 1800, *topics)
        with running_daemon(tmp_path / "new", *topics) if beside_daemon else contextlib.nullcontext():
            done = await asyncio.to_thread(run_command, *command)

    assert done.returncode == 1
    assert "22 envelopes in 1 pages, 20 of them new" in done.stdout
    assert done.stderr == (
        f"waku-mailserver: {liar.enode.node_id.hex()[:8]}@{liar.enode.host}:{liar.enode.port} sent what was not asked"
        " for: 1 dropped (created outside of the range asked for), 1 dropped (topic not asked for)\n"
    )
    assert stored(tmp_path / "new") == 20


def test_command_without_a_source_or_with_a_backward_range_is_wrong_usage(tmp_path: Path) -> None:
    no_source = run_command("sync", "--data-dir", tmp_path, "--since", 0)
    backward = run_command(
        "sync", "--data-dir", tmp_path, "--since", 2, "--until", 1, "--from", f"enode://{_KEY}@127.0.0.1:30303"
    )

    assert no_source.returncode == 2
    assert "no mailserver to fetch from" in no_source.stderr
    assert backward.returncode == 2
    assert "--since 2 is after --until 1" in backward.stderr


async def test_control_socket_is_its_owners_alone_however_deep_the_folder(tmp_path: Path) -> None:
    deep = tmp_path / ("a" * 100) / ("b" * 100)
    with running_daemon(deep) as daemon:
        mode = stat.S_IMODE((deep / CONTROL_FILE).stat().st_mode)
        with pytest.raises(CallFailed, match="sources: missing"):
            await call_daemon(deep, SYNC, {}, lambda progress: None)
        with pytest.raises(CallFailed, match="unknown method 'stop'"):
            await call_daemon(deep, "stop", {}, lambda progress: None)
        daemon.stop()
    with pytest.raises(StartupError, match="no mailserver answers"):
        await call_daemon(deep, SYNC, {}, lambda progress: None)

    assert mode == 0o600


async def test_daemon_outlives_commands_that_break_off_and_strange_ones(tmp_path: Path, source: Daemon) -> None:
    with running_daemon(tmp_path / "new") as daemon:
        params: dict[str, Json] = {
            "sources": [str(source.enode)],
            "since": int(time.time()) - 86_400,
            "until": int(time.time()),
        }
        folder = os.open(daemon.data_dir, os.O_RDONLY)
        path = f"/proc/self/fd/{folder}/{CONTROL_FILE}"
        try:
            for text in (b"\n", b"garbage\n", b"[" * 5000 + b"\n", b"x" * (2 << 20), b'{"jsonrpc":"2.0"'):
                _, writer = await asyncio.open_unix_connection(path)
                writer.write(text)
                writer.close()
            reader, writer = await asyncio.open_unix_connection(path)
            request = {"jsonrpc": "2.0", "id": 1, "method": SYNC, "params": params}
            writer.write(json.dumps(request).encode() + b"\n")
            first = json.loads(await reader.readline())
            writer.transport.abort()
        finally:
            os.close(folder)
        result = await call_daemon(daemon.data_dir, SYNC, params, lambda progress: None)

        assert "method" in first
        assert result[0]["state"] == "done"
        assert daemon.stop() == 0
        assert stored(daemon.data_dir) == COUNT


_KEY = (
    "79be667ef9dcbbac55a06295ce870b07029bfcdb2dce28d959f2815b16f81798"
    "483ada7726a3c4655da4fbfc0e1108a8fd17b448a68554199c47d08ffb10d4b8"
)


def _port(daemon: Daemon, text: str) -> int:
    return int(daemon.wait_for_line(text).partition(text)[2].split()[0])


def _get(url: str) -> str:
    with urllib.request.urlopen(url, timeout=10) as answer:
        body: bytes = answer.read()
    return body.decode()
