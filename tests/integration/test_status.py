"""`waku-mailserver status` beside a running daemon: it shows what that has done, and it is the page's state."""

import json
import stat
import urllib.request
from pathlib import Path

import pytest

from mailserver.data_dir.running import CONTROL_FILE
from tests.integration.daemons import run_command, running_daemon

pytestmark = pytest.mark.integration


def test_clients_that_come_and_go_between_two_looks_are_counted(tmp_path: Path) -> None:
    with running_daemon(tmp_path, "--metrics", "127.0.0.1:0") as daemon:
        port = daemon.wait_for_line("serving metrics port=").rpartition("=")[2]
        for number in range(3):
            run_command("post", daemon.enode, "--topic", "news", "--payload", str(number))
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
            exposed = answer.read().decode()

    assert '\nmailserver_connections_total{direction="in"} 3.0\n' in exposed
    assert '\nmailserver_peers{client="waku-mailserver",direction="in"} 0.0\n' in exposed


def test_daemon_says_how_it_is_as_long_as_it_runs(tmp_path: Path) -> None:
    with running_daemon(tmp_path, "--metrics", "127.0.0.1:0") as daemon:
        port = daemon.wait_for_line("serving metrics port=").rpartition("=")[2]
        done = run_command("status", "--data-dir", tmp_path, "--json")
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/status.json") as answer:
            served = json.load(answer)
        table = run_command("status", "--data-dir", tmp_path)

        assert (done.returncode, done.stderr) == (0, "")
        said = json.loads(done.stdout)
        assert said["enode"] == str(daemon.enode) == served["enode"]
        assert said["ready"] is True
        assert said.keys() == served.keys()
        assert (table.returncode, table.stderr) == (0, "")
        assert str(daemon.enode) in table.stdout
        assert stat.S_IMODE((tmp_path / CONTROL_FILE).stat().st_mode) == 0o600  # for its owner only
        assert daemon.stop() == 0

    done = run_command("status", "--data-dir", tmp_path)
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1
    assert "no mailserver answers" in done.stderr
