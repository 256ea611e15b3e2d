"""Every command as an operator types it, against real daemons on loopback: output, messages, exit codes.

Commands whose exit code, streams or signals matter run as processes (`run_command`), which takes half a second each;
the others run here (`call`), by the same arguments and over the same sockets.
"""

import contextlib
import io
import json
import os
import pty
import re
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from mailserver.codec.keys import Enode, PrivateKey
from mailserver.commands.cli import main
from mailserver.data_dir.folder import read_enode
from mailserver.rlpx import session as session_module
from mailserver.waku.envelope import decode_envelope
from mailserver.waku.topics import topic_of
from tests.integration.daemons import (
    DEADLINE_S,
    PROGRAM,
    Daemon,
    assert_no_traceback,
    run_command,
    running_daemon,
)

pytestmark = pytest.mark.integration

NEWS, SPORT = "news", "sport"
NOBODY = 65534
NODE_ID = PrivateKey(bytes(range(1, 33))).public_key


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    return tmp_path / "data"


@pytest.fixture
def daemon(data_dir: Path) -> Iterator[Daemon]:
    with running_daemon(data_dir) as running:
        yield running


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """A daemon for tests that keep to topics of their own and leave it running."""
    with running_daemon(tmp_path_factory.mktemp("shared")) as running:
        yield running


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """A daemon with five posted envelopes, for tests that only ask: four of news, one of sport, a second apart."""
    with running_daemon(tmp_path_factory.mktemp("archive"), "--max-request-limit", "2") as running:
        for number in range(4):
            post(running.enode, f"{NEWS} {number}")
        post(running.enode, "goal", topic=SPORT)
        yield running


def call(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """Run a command in this process."""
    words = [str(argument) for argument in arguments]
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()) as said:
        code = main(words)
    return subprocess.CompletedProcess(words, code, out.getvalue(), said.getvalue())


def post(enode: Enode, payload: str, *flags: str, topic: str = NEWS) -> str:
    """Post; return the hash of the confirmed envelope."""
    done = call("post", str(enode), "--topic", topic, "--payload", payload, *flags)
    assert (done.returncode, done.stderr) == (0, "")
    confirmed, envelope_hash = done.stdout.split()
    assert confirmed == "confirmed"
    return envelope_hash


def request(enode: Enode, *flags: str) -> subprocess.CompletedProcess[str]:
    return call("request", str(enode), *flags)


def found(enode: Enode, *flags: str) -> list[dict[str, object]]:
    """What `request` finds, of each envelope the fields."""
    done = request(enode, "--format", "json", *flags)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def payloads(enode: Enode, *flags: str) -> list[object]:
    return [envelope["payload"] for envelope in found(enode, "--sym-key-password", NEWS, *flags)]


def assert_fails(done: subprocess.CompletedProcess[str], code: int, message: str) -> None:
    """It failed with this exit code and one line that begins like this, and printed nothing else."""
    assert done.returncode == code, done.stderr
    assert done.stderr.startswith(f"waku-mailserver: {message}"), done.stderr
    assert done.stderr.count("\n") == 1, done.stderr


def refused_start(data_dir: Path, *flags: str) -> subprocess.CompletedProcess[str]:
    """Run a daemon that is not to start; return how it ended, its log left out of what it said."""
    done = run_command("run", "--data-dir", data_dir, "--listen", "127.0.0.1:0", *flags)
    said = [line for line in done.stderr.splitlines(keepends=True) if not re.match(r"\d{4}-\d\d-\d\dT", line)]
    return subprocess.CompletedProcess(done.args, done.returncode, done.stdout, "".join(said))


@contextlib.contextmanager
def listening(*, close_at_once: bool) -> Iterator[tuple[Enode, threading.Event]]:
    """Somebody who accepts connections and says nothing, or hangs up; the event tells that somebody has dialled."""
    dialled = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as server, contextlib.ExitStack() as held:

        def accept() -> None:
            with contextlib.suppress(OSError):
                while True:
                    connection = held.enter_context(server.accept()[0])
                    if close_at_once:
                        connection.close()
                    dialled.set()

        thread = threading.Thread(target=accept)
        thread.start()
        try:
            yield Enode(NODE_ID, "127.0.0.1", server.getsockname()[1]), dialled
        finally:
            server.shutdown(socket.SHUT_RDWR)  # wakes the accept
            thread.join()


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """What is started here heeds SIGINT, even if these tests run in the background of a shell, which ignores it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


@contextlib.contextmanager
def taken_port() -> Iterator[int]:
    """A port that belongs to somebody who does not listen."""
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        yield int(holder.getsockname()[1])


# From a post to its history, over a restart


def test_posted_envelope_is_in_the_history_before_and_after_a_restart(data_dir: Path) -> None:
    with running_daemon(data_dir) as daemon:
        posted = run_command("post", daemon.enode, "--topic", NEWS, "--payload", "hello")
        before = run_command("request", daemon.enode, "--topic", NEWS, "--sym-key-password", NEWS)
        assert daemon.stop(signal.SIGTERM) == 0
        assert daemon.lines[-1].endswith("stopped")

    with running_daemon(data_dir) as daemon:
        after = run_command("request", daemon.enode, "--topic", NEWS, "--sym-key-password", NEWS)
        assert daemon.stop(signal.SIGINT) == 0
        assert daemon.lines[-1].endswith("stopped")

    assert (posted.returncode, posted.stderr) == (0, "")
    assert re.fullmatch(r"confirmed [0-9a-f]{64}\n", posted.stdout)
    assert (before.returncode, before.stderr) == (0, "1 envelope\n")
    assert before.stdout.endswith(f" {posted.stdout.split()[1][:16]}.. hello\n")
    assert (after.returncode, after.stdout) == (0, before.stdout)


def test_installed_command_is_the_same_program(shared: Daemon) -> None:
    command = shutil.which("waku-mailserver", path=str(Path(sys.executable).parent))
    assert command is not None, "the project is not installed in this environment"

    installed = run_command("enode", "--data-dir", shared.data_dir, program=[command])

    assert installed.stdout == f"{shared.enode}\n"


# request


def test_table_shows_the_newest_first_and_their_number(archive: Daemon) -> None:
    done = request(archive.enode, "--topic", NEWS, "--sym-key-password", NEWS, "--limit", "2", "--all")

    heading, *rows = done.stdout.splitlines()
    assert heading.split()[0] == "CREATED"
    assert sorted(row[-6:] for row in rows) == [f"{NEWS} {number}" for number in range(4)]
    assert all(f"0x{topic_of(NEWS).hex()}" in row for row in rows)
    assert rows == sorted(rows, key=lambda row: row[:19], reverse=True)
    assert done.stderr == "4 envelopes\n"


def test_payloads_stay_closed_without_the_password(archive: Daemon) -> None:
    assert [envelope["payload"] for envelope in found(archive.enode, "--all")] == [None] * 5
    assert payloads(archive.enode, "--topic", SPORT) == [None]


def test_raw_lines_are_the_envelopes_as_they_were_posted(archive: Daemon) -> None:
    done = request(archive.enode, "--topic", NEWS, "--format", "raw", "--all")

    envelopes = [decode_envelope(bytes.fromhex(line)) for line in done.stdout.splitlines()]
    assert {envelope.topic for envelope in envelopes} == {topic_of(NEWS)}
    assert [envelope.hash().hex() for envelope in envelopes] == [
        envelope["hash"] for envelope in found(archive.enode, "--topic", NEWS, "--all")
    ]


def test_topic_is_asked_for_by_name_or_by_its_four_bytes(archive: Daemon) -> None:
    by_name = found(archive.enode, "--topic", SPORT)
    by_hex = found(archive.enode, "--topic", f"0x{topic_of(SPORT).hex()}")

    assert len(by_name) == 1
    assert by_hex == by_name


def test_several_topics_are_asked_for_at_once(archive: Daemon) -> None:
    both = found(archive.enode, "--topic", SPORT, "--topic", NEWS, "--all")
    none = found(archive.enode, "--topic", "weather")

    assert len(both) == 5
    assert none == []


def test_history_up_to_a_moment_is_that_of_the_day_before_it(archive: Daemon) -> None:
    newest = int(str(found(archive.enode)[0]["created"]))

    assert found(archive.enode, "--to", str(newest), "--all") == found(archive.enode, "--all")
    assert found(archive.enode, "--to", str(newest + 86400 + 60)) == []
    assert found(archive.enode, "--to", "2020-01-01") == []


def test_history_is_asked_for_from_one_moment_to_another(archive: Daemon) -> None:
    every = found(archive.enode, "--all")
    newest, oldest = (int(str(every[at]["created"])) for at in (0, -1))

    within = ["--from", str(oldest), "--to", str(newest), "--all"]
    before = ["--from", "0", "--to", str(oldest - 1)]
    after = ["--from", datetime.fromtimestamp(newest + 1, UTC).isoformat()]
    assert found(archive.enode, *within) == every
    assert found(archive.enode, *before) == []
    assert found(archive.enode, *after) == []


@pytest.fixture
def far_west(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A machine whose time zone is far from UTC."""
    with monkeypatch.context() as zone:
        zone.setenv("TZ", "XYZ+11:30")
        time.tzset()
        yield
    time.tzset()


@pytest.mark.usefixtures("far_west")
def test_moment_without_a_zone_is_utc_and_with_one_is_not(archive: Daemon) -> None:
    newest = int(str(found(archive.enode)[0]["created"]))
    naive = datetime.fromtimestamp(newest, UTC).strftime("%Y-%m-%dT%H:%M:%S")

    in_utc = request(archive.enode, "--from", naive)
    an_hour_later = request(archive.enode, "--from", f"{naive}-01:00", "--to", str(newest + 7200))

    assert in_utc.stdout.count("\n") > 1
    assert an_hour_later.stderr == "0 envelopes\n"


def test_cursor_leads_from_page_to_page_to_the_same_end_as_all(archive: Daemon) -> None:
    whole = request(archive.enode, "--format", "raw", "--all")

    pages: list[list[str]] = []
    cursor: list[str] = []
    while True:
        page = request(archive.enode, "--format", "raw", "--limit", "2", *cursor)
        assert page.returncode == 0
        pages.append(page.stdout.splitlines())
        more = re.fullmatch(r"\d envelopes, more with (--cursor) ([0-9a-f]{72})\n", page.stderr)
        if more is None:
            break
        cursor = list(more.groups())

    assert [len(page) for page in pages] == [2, 2, 1]
    assert [line for page in pages for line in page] == whole.stdout.splitlines()
    assert whole.stderr == "5 envelopes\n"


def test_limit_beyond_the_mailservers_own_is_capped_and_a_cursor_given(archive: Daemon) -> None:
    for limit in ("0", "1000"):
        done = request(archive.enode, "--limit", limit)

        assert done.returncode == 0
        assert done.stderr.startswith("2 envelopes, more with --cursor ")


def test_payload_is_opened_with_the_password_it_was_sealed_with(shared: Daemon) -> None:
    post(shared.enode, "h\u00e9llo", "--sym-key-password", "our secret", topic="passwords")

    opened = found(shared.enode, "--topic", "passwords", "--sym-key-password", "our secret")
    closed = found(shared.enode, "--topic", "passwords", "--sym-key-password", "passwords")

    assert [envelope["payload"] for envelope in opened] == ["h\u00e9llo"]
    assert [envelope["payload"] for envelope in closed] == [None]


def test_request_with_another_password_is_answered_with_an_error(archive: Daemon) -> None:
    done = request(archive.enode, "--password", "guess")

    assert_fails(done, 1, "request could not be decrypted")


def test_reader_that_has_seen_enough_is_no_error_worth_a_word(archive: Daemon) -> None:
    command = '"$0" -m mailserver request "$1" --format raw --all | head -1; exit "${PIPESTATUS[0]}"'

    done = run_command("-c", command, sys.executable, archive.enode, program=["bash"])

    assert done.returncode in {0, 1}  # 0 if all was written before `head` went
    assert done.stdout.count("\n") == 1


def test_reader_that_is_gone_before_the_first_line_is_no_error_worth_a_word(archive: Daemon) -> None:
    for arguments in (["request", str(archive.enode)], ["stats", "--data-dir", str(archive.data_dir)]):
        reading, writing = os.pipe()
        os.close(reading)

        with os.fdopen(writing, "wb") as nobody:
            done = subprocess.run(
                [*PROGRAM, *arguments],
                stdout=nobody,
                stderr=subprocess.PIPE,
                text=True,
                timeout=DEADLINE_S,
                check=False,
            )

        assert_no_traceback(done.stderr)
        assert done.returncode == 1


@pytest.mark.parametrize("command", ["request", "stats"])
def test_output_that_cannot_be_written_is_one_line(command: str, archive: Daemon) -> None:
    full = Path("/dev/full")
    if not full.exists():
        pytest.skip("no /dev/full here")
    arguments = [str(archive.enode)] if command == "request" else ["--data-dir", str(archive.data_dir)]

    with full.open("wb") as out:
        done = subprocess.run(
            [*PROGRAM, command, *arguments],
            stdout=out,
            stderr=subprocess.PIPE,
            text=True,
            timeout=DEADLINE_S,
            check=False,
        )

    assert_no_traceback(done.stderr)
    assert_fails(done, 1, "cannot write the output: No space left on device\n")


def test_payload_is_shown_where_the_terminal_has_no_such_letters(shared: Daemon) -> None:
    post(shared.enode, "h\u00e9llo", topic="letters")

    done = run_command(
        *("request", shared.enode, "--topic", "letters", "--sym-key-password", "letters"),
        environment={"PYTHONIOENCODING": "ascii"},
    )

    assert done.returncode == 0
    assert done.stdout.endswith(".. h\\xe9llo\n")


def test_progress_is_counted_on_the_terminal_while_rows_go_to_a_file(archive: Daemon, tmp_path: Path) -> None:
    terminal, child_side = pty.openpty()
    arguments = ["request", str(archive.enode), "--format", "raw", "--all"]

    with (tmp_path / "rows").open("wb") as rows:
        process = subprocess.Popen([*PROGRAM, *arguments], stdin=child_side, stdout=rows, stderr=child_side)
        os.close(child_side)
        try:
            seen = read_terminal(terminal)
        finally:
            process.kill()
            process.wait()
            os.close(terminal)

    assert "\r\x1b[K2 envelopes\r\x1b[K4 envelopes\r\x1b[K5 envelopes" in seen
    assert seen.replace("\r\n", "\n").endswith("\r\x1b[K5 envelopes\n\r\x1b[K") or seen.endswith("5 envelopes\r\n")
    assert len((tmp_path / "rows").read_text().splitlines()) == 5


def read_terminal(terminal: int) -> str:
    """All that is written to a terminal until its other side is closed."""
    seen = b""
    while select.select([terminal], [], [], DEADLINE_S)[0]:
        try:
            data = os.read(terminal, 4096)
        except OSError:  # Linux says EIO when the other side is closed
            data = b""
        if not data:
            return seen.decode()
        seen += data
    raise AssertionError(f"the terminal was not closed in time; so far: {seen!r}")


# post


def test_post_below_the_least_proof_of_work_is_refused(data_dir: Path) -> None:
    with running_daemon(data_dir, "--min-pow", "0.01") as daemon:
        arguments = ["post", str(daemon.enode), "--topic", NEWS, "--payload", "cheap", "--ttl", "3600"]

        refused = call(*arguments, "--pow", "0")
        assert_fails(refused, 1, "envelope refused: proof of work is too low")
        assert refused.stdout == ""
        assert found(daemon.enode) == []

        enough = call(*arguments)  # what the node asks for
        assert enough.returncode == 0


def test_ttl_of_a_post_is_the_envelopes(shared: Daemon) -> None:
    post(shared.enode, "short-lived", "--ttl", "15", topic="mayflies")

    (envelope,) = found(shared.enode, "--topic", "mayflies")
    assert envelope["ttl"] == 15
    assert envelope["created"] == int(str(envelope["expiry"])) - 15


def test_envelope_that_expires_before_its_work_is_found_is_not_posted(shared: Daemon) -> None:
    done = call(
        "post", str(shared.enode), "--topic", "status", "--payload", "x" * 20_000, "--ttl", "1", "--pow", "1000"
    )

    assert_fails(done, 1, "no proof of work within 1 s: ")


def test_topic_of_a_post_may_be_four_bytes(shared: Daemon) -> None:
    post(shared.enode, "to whom it may concern", "--sym-key-password", "key", topic="0x01020304")

    (envelope,) = found(shared.enode, "--topic", "0x01020304", "--sym-key-password", "key")
    assert (envelope["topic"], envelope["payload"]) == ("0x01020304", "to whom it may concern")


@pytest.mark.parametrize("command", ["post", "request"])
def test_nobody_listens(command: str) -> None:
    more = ["--topic", NEWS, "--payload", "x"] if command == "post" else ["--format", "json"]

    with taken_port() as port:
        done = call(command, str(Enode(NODE_ID, "127.0.0.1", port)), *more)

    assert_fails(done, 1, f"cannot connect to 127.0.0.1:{port}: ")
    assert done.stdout == ""


@pytest.mark.parametrize("command", ["post", "request"])
def test_somebody_hangs_up_at_once(command: str) -> None:
    more = ["--topic", NEWS, "--payload", "x"] if command == "post" else ["--format", "json"]

    with listening(close_at_once=True) as (enode, _):
        done = call(command, str(enode), *more)

    assert_fails(done, 1, "")
    assert done.stdout == ""


def test_somebody_listens_and_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session_module, "HANDSHAKE_TIMEOUT_S", 0.25)

    with listening(close_at_once=False) as (enode, _):
        done = call("post", str(enode), "--topic", NEWS, "--payload", "x")

    assert_fails(done, 1, f"cannot connect to {enode.host}:{enode.port}: no handshake within 0.25 s")


def test_node_with_another_key_than_the_enodes_is_left(shared: Daemon) -> None:
    imposter = Enode(NODE_ID, shared.enode.host, shared.enode.port)

    done = call("post", str(imposter), "--topic", "imposters", "--payload", "x")

    assert_fails(done, 1, "")
    assert found(shared.enode, "--topic", "imposters") == []


def test_post_is_interrupted_from_the_keyboard() -> None:
    with listening(close_at_once=False) as (enode, dialled):
        arguments = ["post", str(enode), "--topic", NEWS, "--payload", "x"]
        with interruptible():
            process = subprocess.Popen([*PROGRAM, *arguments], stderr=subprocess.PIPE, text=True)
        try:
            assert dialled.wait(DEADLINE_S)
            process.send_signal(signal.SIGINT)
            said = process.communicate(timeout=DEADLINE_S)[1]
        finally:
            process.kill()

    assert process.returncode == 130
    assert said == ""


# enode and stats


def test_stats_are_the_same_beside_the_daemon_and_after_it(data_dir: Path) -> None:
    with running_daemon(data_dir) as daemon:
        post(daemon.enode, "one")
        post(daemon.enode, "two", topic=SPORT)
        envelopes = found(daemon.enode)

        beside = run_command("stats", "--json", "--data-dir", data_dir)
        assert daemon.stop() == 0

    after = run_command("stats", "--json", "--data-dir", data_dir)
    created = [int(str(envelope["created"])) for envelope in envelopes]
    assert json.loads(beside.stdout) == {
        "envelopes": 2,
        "bytes": sum(int(str(envelope["size"])) for envelope in envelopes),
        "topics": 2,
        "oldest": min(created),
        "newest": max(created),
    }
    assert after.stdout == beside.stdout


# For programs


def test_commands_of_clients_print_json(shared: Daemon) -> None:
    posted = call("post", str(shared.enode), "--topic", "json", "--payload", "hello", "--json")
    asked = call("request", str(shared.enode), "--topic", "json", "--json")
    enode = call("enode", "--data-dir", shared.data_dir, "--json")

    assert json.loads(posted.stdout) == {"confirmed": json.loads(asked.stdout)["hash"]}
    assert json.loads(enode.stdout) == {
        "enode": str(shared.enode),
        "node_id": shared.enode.node_id.hex(),
        "host": shared.enode.host,
        "port": shared.enode.port,
    }


# The data folder


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


# The port


def test_daemon_listens_on_ipv6(data_dir: Path) -> None:
    if not socket.has_ipv6:
        pytest.skip("no IPv6 here")
    with running_daemon(data_dir, "--listen", "[::1]:0") as daemon:
        assert daemon.enode.host == "::1"
        post(daemon.enode, "over IPv6")


# The store


# Settings, by the real environment


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
