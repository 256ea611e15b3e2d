"""mailserver.commands.gateway: arguments, settings, error lines. What the process does: `tests/app/test_gateway.py`."""

import os
from dataclasses import fields
from pathlib import Path

import pytest

from mailserver.app.gateway_config import GatewayConfig
from mailserver.commands.cli import main
from mailserver.data_dir.gateway_files import GATEWAY_KEY_FILE, gateway_locked
from mailserver.gateway.index.schema import INDEX_FILE
from mailserver.store.sqlite.schema import STORE_FILE
from tests.store.samples import make_store


@pytest.fixture(autouse=True)
def _place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty folder, and none of the settings of whoever runs the tests."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    for variable in [name for name in os.environ if name.startswith("GATEWAY_")]:
        monkeypatch.delenv(variable)


def failure(arguments: list[str], code: int, capsys: pytest.CaptureFixture[str]) -> str:
    """Run a gateway that cannot start; return its only line."""
    assert main(["gateway", *arguments]) == code
    captured = capsys.readouterr()
    assert captured.err.count("\n") == 1
    return captured.err.removeprefix("waku-mailserver: ").rstrip()


def test_help_names_every_setting_with_its_default(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main(["gateway", "--help"])

    out = " ".join(capsys.readouterr().out.split())
    assert left.value.code == 0
    for setting in fields(GatewayConfig):
        assert f"--{setting.name.replace('_', '-')}" in out
        assert setting.metadata["help"].split(",")[0] in out
    assert "(default: 0.0.0.0:60000)" in out
    assert "GATEWAY_MAX_CLIENTS" in out
    assert "(default: )" not in out
    assert "(default: ())" not in out


@pytest.mark.parametrize(
    ("flags", "environment", "file", "message"),
    [
        (["--max-clients", "many"], {}, "", "--max-clients: 'many' is not a whole number"),
        (["--pow-share", "2"], {}, "", "pow_share: 2 is more than 1"),
        (["--advertise", "nowhere"], {}, "", "advertise: "),
        (["--listen", "", "--websocket", ""], {}, "", "listen: one of --listen and --websocket is needed"),
        ([], {"GATEWAY_MAX_CLIENTS": "0"}, "", "max_clients: 0 is not between 1 and "),
        ([], {"GATEWAY_MAX_PEERS": "5"}, "", "unknown environment variable GATEWAY_MAX_PEERS"),
        (["--config", "gateway.toml"], {}, "max_peers = 5", "gateway.toml: unknown key 'max_peers'"),
        ([], {"GATEWAY_CONFIG": "gateway.toml"}, "ttl = 0", "ttl: 0 is not between 1 and "),
    ],
)
def test_wrong_setting_is_named_and_nothing_is_made(
    flags: list[str],
    environment: dict[str, str],
    file: str,
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    Path("gateway.toml").write_text(file)
    for variable, value in environment.items():
        monkeypatch.setenv(variable, value)

    assert failure(flags, 2, capsys).startswith(message)
    assert [path.name for path in tmp_path.iterdir()] == ["gateway.toml"]


def test_second_gateway_is_a_failure_that_names_the_first(capsys: pytest.CaptureFixture[str]) -> None:
    with gateway_locked(Path("data")):
        said = failure(["--listen", "127.0.0.1:0", "--websocket", "", "--log-level", "error"], 1, capsys)

    assert said == f"another gateway (pid {os.getpid()}) uses the data directory data"


def test_key_that_is_none_is_a_failure(capsys: pytest.CaptureFixture[str]) -> None:
    with gateway_locked(Path("data")):
        Path("data", GATEWAY_KEY_FILE).touch(0o600)

    assert f"{GATEWAY_KEY_FILE} holds no seed" in failure(["--log-level", "error"], 1, capsys)


def test_index_that_is_none_is_a_failure(capsys: pytest.CaptureFixture[str]) -> None:
    with gateway_locked(Path("data")):
        Path("data", INDEX_FILE).write_bytes(b"no database" * 1000)

    assert "cannot use the index of messages" in failure(["--log-level", "error"], 1, capsys)


def test_address_that_cannot_be_listened_on_is_a_failure(capsys: pytest.CaptureFixture[str]) -> None:
    Path("data").mkdir(mode=0o700)
    make_store(Path("data") / STORE_FILE, [])  # without one, an error may be logged before

    said = failure(["--listen", "192.0.2.1:60000", "--websocket", "", "--log-level", "error"], 1, capsys)

    assert said.startswith("cannot listen on 192.0.2.1:60000: ")
