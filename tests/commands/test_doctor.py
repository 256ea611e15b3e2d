"""`waku-mailserver doctor`: table, JSON, exit codes. What it looks at is in tests/doctor."""

import json
import os
import socket
from pathlib import Path

import pytest

from mailserver.commands.cli import main
from mailserver.store.sqlite.schema import STORE_FILE
from tests.store.samples import change, contents_of, make_store


@pytest.fixture(autouse=True)
def _place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for variable in [name for name in os.environ if name.startswith("MAILSERVER_")]:
        monkeypatch.delenv(variable)


def test_every_check_is_a_line_and_no_problem_is_exit_code_0(capsys: pytest.CaptureFixture[str]) -> None:
    code = main(["doctor", "--listen", "127.0.0.1:0", "--json"])

    found = json.loads(capsys.readouterr().out)
    assert code == 0, found
    checks = {finding["check"] for finding in found}
    wanted = {"python", "sqlite", "packages", "listen", "enode", "clock", "data directory", "disk", "file system"}
    assert wanted | {"open files", "memory"} <= checks
    assert {finding["verdict"] for finding in found} <= {"ok", "warning"}
    assert all(finding["advice"] for finding in found if finding["verdict"] != "ok")


def test_problem_is_exit_code_1_with_what_to_do(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        address = f"127.0.0.1:{other.getsockname()[1]}"

        code = main(["doctor", "--listen", address])

    out = capsys.readouterr().out
    assert code == 1
    assert "problem  listen" in out
    assert f"{address} is taken by another program. End it, or choose another port: --listen" in out


def test_nothing_is_changed(tmp_path: Path) -> None:
    make_store(tmp_path / STORE_FILE, [])
    change(tmp_path / STORE_FILE, "PRAGMA journal_mode = WAL")
    before = contents_of(tmp_path)

    main(["doctor", "--data-dir", str(tmp_path), "--listen", "127.0.0.1:0"])

    assert contents_of(tmp_path) == before
