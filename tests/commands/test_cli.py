"""mailserver.commands.cli: arguments, settings and error lines. No daemon and no node: tests/integration has those.

A node that is asked for is one that does not answer: exit code 1 then tells that the arguments were taken, 2 that
they were not.
"""

import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import NoReturn

import pytest

from mailserver import __version__
from mailserver.app.config import Config
from mailserver.codec.keys import Enode
from mailserver.commands import cli, community
from mailserver.commands import enode as enode_command
from mailserver.commands.cli import main
from mailserver.data_dir.folder import write_enode
from mailserver.errors import StartupError
from mailserver.mail.request import CURSOR_BYTES
from tests.pairs import private_key

COMMANDS = (
    "run",
    "gateway",
    "sync",
    "request",
    "post",
    "id",
    "status",
    "enode",
    "stats",
    "check",
    "backup",
    "config",
    "doctor",
)
SOURCES = ("default", "file", "environment", "flag")
"""From the weakest to the strongest."""
NOBODY = f"enode://{private_key('nobody').public_key.hex()}@127.0.0.1:1"


@pytest.fixture(autouse=True)
def _place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty folder, and none of the settings of whoever runs the tests."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    for variable in [name for name in os.environ if name.startswith("MAILSERVER_")]:
        monkeypatch.delenv(variable)


@pytest.mark.parametrize(
    "name",
    [
        *(name for name, *_ in cli.COMMANDS if name not in ("run", "gateway", "community")),
        *(f"community {name}" for name, *_ in community.COMMANDS if name != "serve"),
    ],
)
def test_every_command_that_ends_takes_json(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        main([*name.split(), "--help"])

    assert "--json" in capsys.readouterr().out


@pytest.mark.parametrize("arguments", [["--version"], ["run", "--help"], ["status", "--help"]])
def test_command_loads_no_other_command(arguments: list[str]) -> None:
    code = (
        "import contextlib, sys; from mailserver.commands.cli import COMMANDS, main\n"
        f"with contextlib.suppress(SystemExit): main({arguments!r})\n"
        "print('loaded:', *(name for name, module, *_ in COMMANDS if f'mailserver.commands.{module}' in sys.modules))"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout

    assert shown.splitlines()[-1].split() == ["loaded:", *arguments[:-1]]


def test_daemon_loads_nothing_that_takes_long_and_is_not_needed() -> None:
    code = "import sys; from mailserver.commands import run; print(*sys.modules)"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()

    assert "mailserver.app.daemon" in shown
    assert {"Crypto", "pycparser", "aiohttp", "asyncpg", "numpy", "pyarrow", "rich"}.isdisjoint(shown)


def test_no_garbage_is_looked_for_while_a_command_is_loaded_and_what_it_brings_is_left_alone() -> None:
    code = (
        "import contextlib, gc, sys; from mailserver.commands import cli\n"
        "name = 'mailserver.commands.run'\n"
        "def look(phase, info): looked.append(name in sys.modules and not hasattr(sys.modules[name], 'add'))\n"
        "looked = []; gc.callbacks.append(look); gc.set_threshold(1)\n"
        "with contextlib.suppress(SystemExit): cli.main(['run', '--help'])\n"
        "print('looked:', any(looked), len(looked) > 0, gc.isenabled(), gc.get_freeze_count() > 10_000)"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout

    assert shown.splitlines()[-1].split() == ["looked:", "False", "True", "True", "True"]


def test_commands_load_nothing_that_serves_peers() -> None:
    modules = [module for name, module, *_ in cli.COMMANDS if name not in ("run", "sync", "status")]  # the daemon's own
    code = f"import sys; from mailserver.commands import {', '.join(modules)}; print(*sys.modules)"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()

    assert {"mailserver.commands.post", "mailserver.commands.check", "mailserver.commands.gateway"} <= set(shown)
    assert {"mailserver.peers.node", "mailserver.catchup.catchup", "mailserver.api.waku"}.isdisjoint(shown)


@pytest.fixture
def enode() -> Iterator[str]:
    """Of a node that nobody runs: its port is taken, and not listened on."""
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        yield str(Enode(private_key("nobody").public_key, "127.0.0.1", holder.getsockname()[1]))


WITHOUT_WEBSOCKETS = (
    "import sys; sys.modules['websockets'] = None; from mailserver.commands.cli import main; sys.exit(main({!r}))"
)


def usage_error(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """Run what argparse refuses; return its last line."""
    with pytest.raises(SystemExit) as refused:
        main(arguments)
    captured = capsys.readouterr()
    assert refused.value.code == 2
    assert captured.out == ""
    assert captured.err.startswith("usage: waku-mailserver")
    return captured.err.splitlines()[-1]


def failure(arguments: list[str], code: int, capsys: pytest.CaptureFixture[str]) -> str:
    """Run what fails with one line; return what stands after the program's name."""
    assert main(arguments) == code
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    prefix, _, message = captured.err.rstrip("\n").partition(": ")
    assert prefix == "waku-mailserver"
    return message


# Usage


def test_command_is_required(capsys: pytest.CaptureFixture[str]) -> None:
    assert "COMMAND" in usage_error([], capsys)


def test_unknown_command_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert "'serve'" in usage_error(["serve"], capsys)


def test_version_is_the_packages(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main(["--version"])

    assert left.value.code == 0
    assert capsys.readouterr().out == f"waku-mailserver {__version__}\n"


def test_help_names_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main(["--help"])

    out = capsys.readouterr().out
    assert left.value.code == 0
    assert all(re.search(rf"^ +{command} +\w", out, re.MULTILINE) for command in COMMANDS)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main([command, "--help"])

    assert left.value.code == 0
    assert capsys.readouterr().out.startswith(f"usage: waku-mailserver {command} ")


def test_help_of_run_names_every_setting_with_its_default(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["run", "--help"])

    out = " ".join(capsys.readouterr().out.split())
    for setting in fields(Config):
        assert f"--{setting.name.replace('_', '-')}" in out
        assert setting.metadata["help"] in out
    assert "(default: 0.0.0.0:30303)" in out
    assert "(default: 1000)" in out
    assert f"(default: {','.join(map(str, Config().packet_rate_limits))})" in out  # a list as it is given
    assert "(default: )" not in out
    assert "(default: ())" not in out


@pytest.mark.parametrize("command", ["enode", "stats", "check", "backup", "salvage"])
def test_commands_beside_the_daemon_take_the_data_folder_and_nothing_else_of_it(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "--listen" in usage_error([command, "--data-dir", "data", "--listen", "127.0.0.1:0"], capsys)


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["run", "--colour"], "--colour"),
        (["run", "extra"], "extra"),
        (["request"], "ENODE"),
        (["request", "enode://1@host:1"], "ENODE"),
        (["request", "http://example.org"], "ENODE"),
        (["post", "ENODE"], "ENODE"),
        (["post"], "ENODE, --topic"),
        (["post", NOBODY, "--topic", "x"], "--payload --payload-file"),
        (["request", NOBODY, "--password", "x", "--seal-to", "node"], "--seal-to"),
        (["request", NOBODY, "--seal-to", "xyz"], "is not hex"),
        (["request", NOBODY, "--open-with", "key", "--sym-key-password", "x"], "--sym-key-password"),
        (["request", NOBODY, "--seal-to", "00" * 64], "not on the curve"),
        (["stats", "--json=yes"], "--json"),
        (["sync"], "--since"),
        (["sync", "--since", "0", "--listen", "127.0.0.1:0"], "--listen"),
        (["sync", "--since", "0", "ENODE"], "ENODE"),
    ],
)
def test_wrong_argument_is_named(arguments: list[str], named: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert named in usage_error(arguments, capsys)


@pytest.mark.parametrize("bad", ["host:0", "host:65536"])
def test_enode_with_an_impossible_port_is_named(bad: str, capsys: pytest.CaptureFixture[str]) -> None:
    url = f"enode://{private_key('nobody').public_key.hex()}@{bad}"

    assert "argument ENODE: enode port is out of range" in usage_error(["request", url], capsys)


@pytest.mark.parametrize(
    ("flag", "value", "why"),
    [
        ("--from", "tomorrow", "neither Unix seconds nor ISO 8601"),
        ("--from", "", "neither Unix seconds nor ISO 8601"),
        ("--from", "-1", "neither Unix seconds nor ISO 8601"),
        ("--from", "1969-12-31", "not a time between 1970 and 2106"),
        ("--to", "2026-13-01", "neither Unix seconds nor ISO 8601"),
        ("--to", "4294967296", "not a time between 1970 and 2106"),
        ("--to", "2106-02-07T06:28:16Z", "not a time between 1970 and 2106"),
        ("--limit", "many", "'many' is not a "),
        ("--limit", "1.5", "'1.5' is not a "),
        ("--limit", "-1", "is not between 0 and 4294967295"),
        ("--limit", "4294967296", "is not between 0 and 4294967295"),
        ("--cursor", "xyz", "'xyz' is not hex"),
        ("--cursor", "00" * (CURSOR_BYTES - 1), "cursor has the wrong length"),
        ("--format", "xml", "'xml'"),
        ("--topic", "0xzz", "topic is not 0x and 8 hex digits"),
        ("--topic", "\udcff", "is not UTF-8"),
        ("--password", "\udcff", "is not UTF-8"),
        ("--sym-key-password", "\udcff", "is not UTF-8"),
    ],
)
def test_wrong_flag_of_request_is_named(
    flag: str, value: str, why: str, enode: str, capsys: pytest.CaptureFixture[str]
) -> None:
    said = usage_error(["request", enode, f"{flag}={value}"], capsys)

    assert f"argument {flag}: " in said
    assert why in said


@pytest.mark.parametrize(
    ("flag", "value", "why"),
    [
        ("--ttl", "0", "'0' is not between 1 and "),
        ("--ttl", "4294967296", "is not between 1 and "),
        ("--ttl", "1m", "'1m' is not a "),
        ("--pow", "-0.1", "'-0.1' is not between 0 and "),
        ("--pow", "1001", "'1001' is not between 0 and "),
        ("--pow", "nan", "'nan' is not between 0 and "),
        ("--pow", "hard", "'hard' is not a number"),
        ("--topic", "0xzz", "topic is not 0x and 8 hex digits"),
        ("--topic", "\udcff", "is not UTF-8"),
        ("--payload", "\udcff", "is not UTF-8"),
    ],
)
def test_wrong_flag_of_post_is_named(
    flag: str, value: str, why: str, enode: str, capsys: pytest.CaptureFixture[str]
) -> None:
    said = usage_error(["post", enode, "--topic", "t", "--payload", "p", f"{flag}={value}"], capsys)

    assert f"argument {flag}: " in said
    assert why in said


@pytest.mark.parametrize(
    ("flag", "value", "why"),
    [
        ("--from", "nowhere", "not an enode URL"),
        ("--from", "enode://1@host:1", "not an enode URL"),
        ("--since", "yesterday", "neither Unix seconds nor ISO 8601"),
        ("--since", "4294967296", "not a time between 1970 and 2106"),
        ("--until", "1969-12-31", "not a time between 1970 and 2106"),
    ],
)
def test_wrong_flag_of_sync_is_named(
    flag: str, value: str, why: str, enode: str, capsys: pytest.CaptureFixture[str]
) -> None:
    said = usage_error(["sync", "--from", enode, "--since", "0", f"{flag}={value}"], capsys)

    assert f"argument {flag}: " in said
    assert why in said


def test_sync_needs_someone_to_fetch_from(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = failure(["sync", "--since", "0"], 2, capsys)

    assert said == "no mailserver to fetch from: give --from ENODE, or set trusted_peers"
    assert not list(tmp_path.iterdir())


def test_sync_stores_what_other_mailservers_send(
    enode: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said = failure(["sync", "--from", enode, "--since", "0", "--dry-run"], 2, capsys)

    assert said == "--dry-run goes with --from-archive"
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("since", "until"), [("2", "1"), ("1", "0"), ("2020-11-22", "2020-11-21")])
def test_sync_of_a_range_that_ends_before_it_begins_is_refused(
    since: str, until: str, enode: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said = failure(["sync", "--from", enode, "--since", since, "--until", until], 2, capsys)

    assert said.startswith("--since ")
    assert " is after --until " in said
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("until", ["4294967294", "4294967295", None])
def test_sync_of_a_range_that_begins_in_the_future_is_refused(
    until: str | None, enode: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = [] if until is None else ["--until", until]

    said = failure(["sync", "--from", enode, "--since", "4294967294", *flags], 2, capsys)

    assert said == "--since 4294967294 is in the future"
    assert not list(tmp_path.iterdir())


def test_wrong_setting_of_sync_is_named(enode: str, capsys: pytest.CaptureFixture[str]) -> None:
    said = failure(["sync", "--from", enode, "--since", "0", "--archive-topics", "0x12"], 2, capsys)

    assert said.startswith("archive_topics: '0x12': ")


def test_folder_that_sync_cannot_write_is_a_failure(
    enode: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "data").write_text("a file")

    said = failure(["sync", "--from", enode, "--since", "0"], 1, capsys)

    assert said == "cannot write the data directory data: File exists"


@pytest.mark.parametrize(
    "flags",
    [
        [],
        ["--from", "0", "--to", "4294967295"],
        ["--from", "2026-11-21", "--to", "2026-11-21T12:00:00+02:00"],
        ["--limit", "0"],
        ["--limit", "4294967295", "--all"],
        ["--cursor", "00" * CURSOR_BYTES],
        ["--topic", "news", "--topic", "0x01020304", "--topic", ""],
        ["--password", "", "--sym-key-password", ""],
    ],
)
def test_request_with_right_flags_gets_as_far_as_the_node(
    flags: list[str], enode: str, capsys: pytest.CaptureFixture[str]
) -> None:
    said = failure(["request", enode, "--format", "json", *flags], 1, capsys)

    assert said.startswith("cannot connect to 127.0.0.1:")


@pytest.mark.parametrize(
    "flags",
    [[], ["--ttl", "1"], ["--ttl", "4294967295"], ["--pow", "0"], ["--pow", "1000"], ["--sym-key-password", ""]],
)
def test_post_with_right_flags_gets_as_far_as_the_node(
    flags: list[str], enode: str, capsys: pytest.CaptureFixture[str]
) -> None:
    said = failure(["post", enode, "--topic", "news", "--payload", "", *flags], 1, capsys)

    assert said.startswith("cannot connect to 127.0.0.1:")


# Settings


@pytest.mark.parametrize(
    ("flags", "environment", "file", "message"),
    [
        (["--max-peers", "many"], {}, "", "--max-peers: 'many' is not a "),
        (["--min-pow", ""], {}, "", "--min-pow: '' is not a number"),
        (["--min-pow=-1"], {}, "", "min_pow: -1 is not "),
        (["--listen", "nowhere"], {}, "", "listen: 'nowhere' is not HOST:PORT"),
        (["--static-peers", "nobody"], {}, "", "static_peers: 'nobody': not an enode URL"),
        (["--packet-rate-limits", "1,2"], {}, "", "packet_rate_limits: 1, 2 is not three numbers"),
        (["--packet-rate-limits", "1,2,many"], {}, "", "--packet-rate-limits: 'many' is not a whole number"),
        (["--config", "mailserver.toml"], {}, "static_peers = 'x'", "mailserver.toml: static_peers: 'x' is not a list"),
        (["--log-level", "loud"], {}, "", "log_level: 'loud' is not one of debug, info, warning, error"),
        (["--completion-format", "json"], {}, "", "completion_format: 'json' is not one of "),
        ([], {"MAILSERVER_MAX_PEERS": "0"}, "", "max_peers: 0 is less than 1"),
        ([], {"MAILSERVER_MAX_PEERS": "many"}, "", "MAILSERVER_MAX_PEERS: 'many' is not a "),
        ([], {"MAILSERVER_MAX_PEARS": "5"}, "", "unknown environment variable MAILSERVER_MAX_PEARS"),
        (["--config", "mailserver.toml"], {}, "max_pears = 5", "mailserver.toml: unknown key 'max_pears'"),
        (["--config", "mailserver.toml"], {}, "max_peers = '5'", "mailserver.toml: max_peers: '5' is not "),
        (["--config", "mailserver.toml"], {}, "max_peers", "mailserver.toml is not valid TOML: "),
        (["--config", "absent.toml"], {}, "", "cannot read absent.toml: No such file or directory"),
        ([], {"MAILSERVER_CONFIG": "mailserver.toml"}, "min_pow = -1", "min_pow: -1 is not "),
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
    Path("mailserver.toml").write_text(file)
    for variable, value in environment.items():
        monkeypatch.setenv(variable, value)

    said = failure(["run", *flags], 2, capsys)

    assert said.startswith(message)
    assert [path.name for path in tmp_path.iterdir()] == ["mailserver.toml"]


@pytest.mark.parametrize(
    "flag", ["--allow-clear-requests", "--no-allow-clear-requests", "--light-node", "--no-light-node"]
)
def test_boolean_setting_is_a_flag_with_its_opposite(flag: str, capsys: pytest.CaptureFixture[str]) -> None:
    said = failure(["run", flag, "--max-peers", "0"], 2, capsys)

    assert said == "max_peers: 0 is less than 1"


@pytest.mark.parametrize(
    ("weaker", "stronger"), [(weaker, stronger) for at, weaker in enumerate(SOURCES) for stronger in SOURCES[at + 1 :]]
)
def test_stronger_source_of_a_setting_goes_before_the_weaker(
    weaker: str, stronger: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The data folder as each source says; the enode in it tells which of them was read."""
    arguments = ["enode"]
    for port, source in enumerate(SOURCES, start=1):
        folder = Path("data" if source == "default" else f"of the {source}")
        folder.mkdir()
        write_enode(folder, Enode(private_key("server").public_key, source, port))
    if "file" in {weaker, stronger}:
        Path("mailserver.toml").write_text('data_dir = "of the file"\n')
        arguments += ["--config", "mailserver.toml"]
    if "environment" in {weaker, stronger}:
        monkeypatch.setenv("MAILSERVER_DATA_DIR", "of the environment")
    if "flag" in {weaker, stronger}:
        arguments += ["--data-dir", "of the flag"]

    assert main(arguments) == 0

    assert Enode.parse(capsys.readouterr().out).host == stronger


# enode and stats, without a daemon


def test_enode_is_printed_as_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    Path("data").mkdir()
    write_enode(Path("data"), Enode(private_key("server").public_key, "127.0.0.1", 30303))

    assert main(["enode"]) == 0

    assert capsys.readouterr().out == f"enode://{private_key('server').public_key.hex()}@127.0.0.1:30303\n"


def test_enode_of_a_folder_without_one_is_a_failure(capsys: pytest.CaptureFixture[str]) -> None:
    said = failure(["enode", "--data-dir", "elsewhere"], 1, capsys)

    assert said.startswith("no enode at elsewhere/enode: ")


@pytest.mark.parametrize("flags", [[], ["--json"]])
def test_stats_of_a_folder_without_a_store_are_a_failure(
    flags: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said = failure(["stats", *flags], 1, capsys)

    assert said == "cannot open the store data/mailserver.db: there is none"
    assert not list(tmp_path.iterdir())


def test_store_that_cannot_be_opened_is_a_failure(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "data" / "mailserver.db").mkdir(parents=True)

    assert failure(["stats"], 1, capsys).startswith("cannot open the store data/mailserver.db: ")


@pytest.mark.parametrize("host", ["a..b", "a" * 64])
def test_host_that_cannot_be_a_name_is_a_failure(host: str, capsys: pytest.CaptureFixture[str]) -> None:
    url = str(Enode(private_key("nobody").public_key, host, 1))

    assert failure(["request", url], 1, capsys) == f"cannot connect to {host}:1: not a host name"


# Whatever else may happen


def failing_strangely(path: object) -> NoReturn:
    raise StartupError("two\nlines \x1b[2J")


def test_message_is_one_line_that_cannot_command_the_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(enode_command, "read_enode", failing_strangely)

    assert failure(["enode"], 1, capsys) == "two\\nlines \\x1b[2J"


def interrupted(path: object) -> NoReturn:
    raise KeyboardInterrupt


def test_interrupt_from_the_keyboard_has_the_shells_exit_code(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(enode_command, "read_enode", interrupted)

    assert main(["enode"]) == 130
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("command", ["run", "gateway"])
def test_daemon_rarely_looks_for_garbage_and_its_threads_soon_hand_over(command: str) -> None:
    program = (
        "import gc, sys, uvloop; uvloop.run = lambda daemon: daemon.close();"
        "from mailserver.app.interpreter import GC_THRESHOLDS, SWITCH_INTERVAL_S;"
        f"from mailserver.commands.cli import main; main(['{command}']);"
        "print(gc.get_threshold() == GC_THRESHOLDS, gc.get_freeze_count() > 10_000,"
        "sys.getswitchinterval() == SWITCH_INTERVAL_S)"
    )

    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)

    assert done.stdout.split() == ["True", "True", "True"]


@pytest.mark.parametrize(
    ("variables", "allocator"), [({}, "jemalloc"), ({"ARROW_DEFAULT_MEMORY_POOL": "system"}, "system")]
)
def test_pyarrow_allocates_in_the_daemon_as_costs_least_memory(variables: dict[str, str], allocator: str) -> None:
    program = (
        "import sys, uvloop; uvloop.run = lambda daemon: daemon.close();"
        "from mailserver.commands.cli import main; main(['run']); before = 'pyarrow' in sys.modules;"
        "import pyarrow; print(before, pyarrow.default_memory_pool().backend_name)"
    )
    environment = {name: value for name, value in os.environ.items() if name != "ARROW_DEFAULT_MEMORY_POOL"}

    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**environment, **variables},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )

    assert done.stdout.split() == ["False", allocator]


def test_gateway_says_what_to_install_and_other_commands_do_not_need_it() -> None:
    gateway, enode = (
        subprocess.run(
            [sys.executable, "-c", WITHOUT_WEBSOCKETS.format([command, "--data-dir", "d"])],
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        for command in ("gateway", "enode")
    )

    assert gateway.returncode == enode.returncode == 1
    assert re.fullmatch(
        r"waku-mailserver: websockets[.a-z0-9]* is not installed: pip install -r requirements-gateway\.lock\n",
        gateway.stderr,
    )
    assert "not installed" not in enode.stderr


LOADED = """
import sys
from mailserver.commands.cli import main
try:
    main(sys.argv[1:])
except SystemExit:
    pass
print(*sys.modules, file=sys.stderr)
"""


@pytest.mark.parametrize(
    "arguments",
    [["status", "--help"], ["enode", "--help"], ["config", "--help"], ["community", "status", "--help"]],
    ids=" ".join,
)
def test_command_loads_nothing_of_what_serves(arguments: list[str]) -> None:
    done = subprocess.run([sys.executable, "-c", LOADED, *arguments], capture_output=True, text=True, check=True)

    loaded = set(done.stderr.split())
    assert "mailserver.commands.settings" in loaded
    serving = {"aiohttp", "mailserver.app.daemon", "mailserver.app.communities", "mailserver.catchup.catchup"}
    serving |= {"mailserver.live.intake", "mailserver.monitoring.state"}
    assert loaded & serving == set()


# Places without a store


@pytest.mark.parametrize(
    "command", [["reindex"], ["check"], ["stats"], ["backup", "copy"], ["salvage", "copy"]], ids=lambda words: words[0]
)
@pytest.mark.parametrize("folder", ["", "data"], ids=["no folder", "an empty folder"])
def test_command_on_a_store_makes_none_where_there_is_none(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], command: list[str], folder: str
) -> None:
    (tmp_path / folder).mkdir(exist_ok=True)

    code = main([*command, "--data-dir", "data"])

    assert code == 1
    assert capsys.readouterr().err.splitlines() == [
        "waku-mailserver: cannot open the store data/mailserver.db: there is none"
    ]
    assert [name.name for name in tmp_path.rglob("*")] == ([folder] if folder else [])


def test_description_of_a_command_keeps_its_capitals(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["enode", "--help"])

    assert "Print the enode URL of the mailserver." in capsys.readouterr().out
