"""Output of commands into pipes, files and terminals, and what interrupts them."""

import contextlib
import os
import pty
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import pytest

from mailserver.data_dir.folder import read_enode
from tests.integration.commands import NEWS, assert_fails, listening, post
from tests.integration.daemons import (
    DEADLINE_S,
    PROGRAM,
    Daemon,
    assert_no_traceback,
    run_command,
    running_daemon,
)
from tests.waiting import wait_until

pytestmark = pytest.mark.integration


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """What is started here heeds SIGINT, even if these tests run in the background of a shell, which ignores it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def run_into(out: BinaryIO, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a command that writes to this file."""
    done = subprocess.run(
        [*PROGRAM, *arguments], stdout=out, stderr=subprocess.PIPE, text=True, timeout=DEADLINE_S, check=False
    )
    assert_no_traceback(done.stderr)
    return done


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
            done = run_into(nobody, *arguments)

        assert done.returncode == 1


def closed(streams: str) -> tuple[str, ...]:
    """The program, with streams closed by the shell."""
    return "sh", "-c", f'exec "$0" "$@" {streams}', *PROGRAM


@pytest.mark.parametrize(
    "arguments",
    [["--help"], ["--version"], ["config"], ["status", "--help"], ["stats", "--data-dir", "DIR"]],
    ids=lambda arguments: " ".join(arguments[:2]),
)
def test_closed_stdout_is_output_that_cannot_be_written(arguments: list[str], archive: Daemon) -> None:
    words = [str(archive.data_dir) if word == "DIR" else word for word in arguments]

    done = run_command(*words, program=closed(">&-"))

    assert_fails(done, 1, "cannot write the output: Bad file descriptor")


def test_command_without_any_stream_fails_in_silence() -> None:
    done = run_command("config", program=closed(">&- 2>&- <&-"))

    assert (done.returncode, done.stdout, done.stderr) == (1, "", "")


def test_command_that_reads_a_closed_stdin_has_nothing_to_read() -> None:
    done = run_command("id", program=closed("<&-"))

    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_daemon_whose_stdout_is_closed_serves(tmp_path: Path) -> None:
    with running_daemon(tmp_path, program=closed(">&- <&-")) as daemon:
        post(daemon.enode, "hello")

        assert daemon.stop() == 0


def test_daemon_without_any_stream_keeps_its_store_to_itself(tmp_path: Path) -> None:
    with running_daemon(tmp_path, program=closed(">&- 2>&- <&-"), listening=False) as daemon:
        wait_until((tmp_path / "enode").exists)
        post(read_enode(tmp_path), "hello")
        names = [str(Path(f"/proc/{daemon.process.pid}/fd/{number}").readlink()) for number in (0, 1, 2)]

        assert daemon.stop() == 0
    assert names == [os.devnull] * 3


@pytest.mark.parametrize("command", ["request", "stats"])
def test_output_that_cannot_be_written_is_one_line(command: str, archive: Daemon) -> None:
    full = Path("/dev/full")
    if not full.exists():
        pytest.skip("no /dev/full here")
    arguments = [str(archive.enode)] if command == "request" else ["--data-dir", str(archive.data_dir)]

    with full.open("wb") as out:
        done = run_into(out, command, *arguments)

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
