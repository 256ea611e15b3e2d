"""`waku-mailserver config`: what is in force, from where, and no secret."""

import json
import os
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from mailserver.app.config import Config
from mailserver.codec.keys import Enode
from mailserver.commands.cli import main
from tests.pairs import private_key

SECRET = "hush-hush-hush-hush"


@pytest.fixture(autouse=True)
def _place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for variable in [name for name in os.environ if name.startswith("MAILSERVER_")]:
        monkeypatch.delenv(variable)


def show(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    assert main(["config", "--json", *arguments]) == 0
    settings: dict[str, Any] = json.loads(capsys.readouterr().out)
    return settings


def test_every_setting_is_there_with_its_default(capsys: pytest.CaptureFixture[str]) -> None:
    settings = show(capsys)

    assert list(settings) == [setting.name for setting in fields(Config)]
    assert {setting["from"] for setting in settings.values()} == {"default"}
    assert settings["listen"]["value"] == Config().listen
    assert settings["data_dir"]["value"] == "data"
    assert settings["packet_rate_limits"]["value"] == list(Config().packet_rate_limits)
    assert settings["password"]["value"] == Config().password  # all clients know it


def test_strongest_place_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file.toml").write_text("max_peers = 1\nmin_pow = 1.0\nsync_days = 1.0\n")
    monkeypatch.setenv("MAILSERVER_MIN_POW", "2")
    monkeypatch.setenv("MAILSERVER_SYNC_DAYS", "2")

    settings = show(capsys, "--config", "file.toml", "--sync-days", "3", "--no-allow-clear-requests")

    names = ("max_peers", "min_pow", "sync_days", "allow_clear_requests", "listen")
    assert [(settings[name]["value"], settings[name]["from"]) for name in names] == [
        (1, "file"),
        (2.0, "environment"),
        (3.0, "flag"),
        (False, "flag"),
        (Config().listen, "default"),
    ]


def test_file_that_the_environment_names_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file.toml").write_text("max_peers = 1\n")
    monkeypatch.setenv("MAILSERVER_CONFIG", "file.toml")

    assert show(capsys)["max_peers"] == {"value": 1, "from": "file"}


@pytest.mark.parametrize("form", [["--json"], []])
def test_secrets_are_hidden(tmp_path: Path, form: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "token").write_text(f"{SECRET}\n")
    (tmp_path / "token").chmod(0o600)
    archive = f"s3a://me:{SECRET}@bucket/archive"

    code = main(["config", *form, "--password", SECRET, "--rpc-token-file", "token", "--archive", archive])

    out = capsys.readouterr().out
    assert code == 0
    assert SECRET not in out
    assert "s3a://(hidden)@bucket/archive" in out
    assert "token" in out


def test_password_that_is_the_default_is_no_secret_wherever_it_comes_from(capsys: pytest.CaptureFixture[str]) -> None:
    assert show(capsys, "--password", Config().password)["password"] == {"value": Config().password, "from": "flag"}


def test_enode_urls_are_shown_whole(capsys: pytest.CaptureFixture[str]) -> None:
    url = str(Enode(private_key("nobody").public_key, "192.0.2.1", 30303))

    assert show(capsys, "--static-peers", url)["static_peers"]["value"] == [url]


def test_infinity_is_written_as_json_can(capsys: pytest.CaptureFixture[str]) -> None:
    assert show(capsys, "--rate-limit-tolerance-s", "inf")["rate_limit_tolerance_s"]["value"] == "inf"


@pytest.mark.parametrize(
    "arguments", [["--max-peers", "0"], ["--max-peers", "many"], ["--listen", "nowhere"], ["--config", "none.toml"]]
)
def test_wrong_settings_are_told_of_as_by_run(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    codes, messages = [], []
    for command in ("run", "config", "doctor"):
        codes.append(main([command, *arguments]))
        messages.append(capsys.readouterr().err)

    assert codes == [2, 2, 2]
    assert len(set(messages)) == 1
    assert messages[0].count("\n") == 1


def test_table_has_a_line_for_each(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "--max-peers", "7", "--light-node"]) == 0

    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["SETTING", "VALUE", "FROM"]
    assert len(lines) == 1 + len(fields(Config))
    by_name = {line.split()[0]: line.split()[1:] for line in lines[1:]}
    assert by_name["max_peers"] == ["7", "flag"]
    assert by_name["light_node"] == ["on", "flag"]
    assert by_name["rpc"] == ["-", "default"]
    assert by_name["packet_rate_limits"] == ["2500,", "500,", "0", "default"]


def test_nothing_is_made(tmp_path: Path) -> None:
    main(["config"])

    assert list(tmp_path.iterdir()) == []
