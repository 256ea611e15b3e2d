"""How the daemon starts as a process: data directory, permissions, addresses, settings."""

import os
import re
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from mailserver.data_dir.folder import read_enode
from tests.integration.commands import NEWS, assert_fails, call, found, post, request
from tests.integration.daemons import (
    DEADLINE_S,
    Daemon,
    run_command,
    running_daemon,
)
from tests.nobody import NOBODY

pytestmark = pytest.mark.integration


def refused_start(data_dir: Path, *flags: str) -> subprocess.CompletedProcess[str]:
    """Run a daemon that is not to start; return how it ended, its log left out of what it said."""
    done = run_command("run", "--data-dir", data_dir, "--listen", "127.0.0.1:0", *flags)
    said = [line for line in done.stderr.splitlines(keepends=True) if not re.match(r"\d{4}-\d\d-\d\dT", line)]
    return subprocess.CompletedProcess(done.args, done.returncode, done.stdout, "".join(said))


def test_enode_file_says_where_the_shared_listens(shared: Daemon) -> None:
    file = shared.data_dir / "enode"

    assert file.read_text() == f"{shared.enode}\n"
    assert shared.enode.port != 0
    assert call("enode", "--data-dir", shared.data_dir).stdout == file.read_text()
    assert not list(shared.data_dir.glob("*.tmp"))
    with socket.create_connection((shared.enode.host, shared.enode.port), DEADLINE_S):
        pass


def test_second_daemon_on_the_same_folder_is_refused_and_the_first_goes_on(shared: Daemon) -> None:
    done = refused_start(shared.data_dir)

    pid = shared.process.pid
    assert_fails(done, 1, f"another mailserver (pid {pid}) uses the data directory {shared.data_dir}\n")
    assert read_enode(shared.data_dir) == shared.enode
    post(shared.enode, "still here")


AS_NOBODY = f"""
import os, sys
import mailserver.commands.run  # its modules may be in a folder that only root may read
from mailserver.commands.cli import main
if os.geteuid() == 0:
    os.setgid({NOBODY})
    os.setuid({NOBODY})
sys.exit(main())
"""
"""The program, by a user whom permissions bind: root may do everything."""


@pytest.mark.parametrize(
    ("mode", "why"),
    [
        (0o000, "cannot write the data directory {data_dir}: Permission denied\n"),
        pytest.param(
            0o555,
            "{data_dir} is open to others (mode 0555) and belongs to uid 0; run: chown 65534 {data_dir}\n",
            marks=pytest.mark.skipif(os.geteuid() != 0, reason="only root can have a folder that is not the program's"),
        ),
    ],
)
def test_folder_without_permission_is_refused(mode: int, why: str) -> None:
    with tempfile.TemporaryDirectory() as folder:  # pytest's own folders are closed to others
        Path(folder).chmod(0o755)
        data_dir = Path(folder) / "data"
        data_dir.mkdir()
        data_dir.chmod(mode)

        done = run_command("run", "--data-dir", data_dir, program=[sys.executable, "-c", AS_NOBODY])

        assert_fails(done, 1, why.format(data_dir=data_dir))
        data_dir.chmod(0o700)
        assert list(data_dir.iterdir()) == []


def test_daemon_listens_on_ipv6(data_dir: Path) -> None:
    if not socket.has_ipv6:
        pytest.skip("no IPv6 here")
    with running_daemon(data_dir, "--listen", "[::1]:0") as daemon:
        assert daemon.enode.host == "::1"
        post(daemon.enode, "over IPv6")


def test_settings_reach_the_daemon_from_flags_environment_and_file(tmp_path: Path) -> None:
    """One setting from each source, and one from all of them; the log level shows itself."""
    (tmp_path / "mailserver.toml").write_text('password = "of the file"\nmin_pow = 0.5\nlog_level = "error"\n')
    environment = {
        "MAILSERVER_CONFIG": str(tmp_path / "mailserver.toml"),
        "MAILSERVER_MIN_POW": "0.1",
        "MAILSERVER_LOG_LEVEL": "warning",
    }

    with running_daemon(tmp_path / "data", "--log-level", "debug", environment=environment) as daemon:
        done = call("post", str(daemon.enode), "--topic", NEWS, "--payload", "x", "--ttl", "5")
        answers = found(daemon.enode, "--password", "of the file")
        assert_fails(request(daemon.enode), 1, "request could not be decrypted")
        daemon.wait_for_line("DEBUG")

    assert done.returncode == 0
    assert float(str(answers[0]["pow"])) >= 0.1
