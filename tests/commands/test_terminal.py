"""mailserver.commands.terminal: columns into a pipe, tables and bars on a terminal."""

import contextlib
import io
import re
import subprocess
import sys
from collections.abc import Iterator

import pytest

from mailserver.commands.terminal import print_table, progress_bar

NASTY = "a [red]b[/red] \x1b[31mc\nd"


class Terminal(io.StringIO):
    """What is written to a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def _colours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)


@contextlib.contextmanager
def on_terminal() -> Iterator[Terminal]:
    """Both streams, 60 columns wide."""
    terminal = Terminal()
    with contextlib.redirect_stdout(terminal), contextlib.redirect_stderr(terminal):
        yield terminal


def plain(text: str) -> str:
    """Without the commands of colours and the cursor."""
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text)


def test_pipe_gets_aligned_columns(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(("NAME", "VALUE"), [("a", "1"), ("longer", "")], ["red", "red"])

    assert capsys.readouterr().out == "NAME    VALUE\na       1\nlonger\n"


def test_pipe_gets_no_heading_where_there_is_none(capsys: pytest.CaptureFixture[str]) -> None:
    print_table((), [("a", "1"), ("longer", "2")])

    assert capsys.readouterr().out == "a       1\nlonger  2\n"


def test_long_value_is_folded_and_not_cut() -> None:
    with on_terminal() as terminal:
        print_table((), [("enode", "0123456789" * 16)])

    assert "".join(plain(terminal.getvalue()).split()) == "enode" + "0123456789" * 16


def test_terminal_gets_a_table_with_colours() -> None:
    with on_terminal() as terminal:
        print_table(("NAME", "VALUE"), [("a", "1")], ["red"])

    assert "\x1b[31ma\x1b[0m" in terminal.getvalue()
    assert [line.split() for line in plain(terminal.getvalue()).splitlines() if "─" not in line and line.strip()] == [
        ["NAME", "VALUE"],
        ["a", "1"],
    ]


def test_others_words_command_neither_the_terminal_nor_the_table() -> None:
    with on_terminal() as terminal:
        print_table(("NAME",), [(NASTY,)])

    assert r"a [red]b[/red] \x1b[31mc\nd" in plain(terminal.getvalue())
    assert "\x1b[31m" not in terminal.getvalue()


def test_others_words_stay_one_line_in_a_pipe(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(("NAME",), [(NASTY,)])

    assert capsys.readouterr().out == "NAME\na [red]b[/red] \\x1b[31mc\\nd\n"


def test_bar_is_drawn_and_gone_at_the_end() -> None:
    with on_terminal() as terminal, progress_bar() as bar:
        bar("pages", 0, None)
        bar(NASTY, 50, 200)

    drawn = plain(terminal.getvalue())
    assert "25%" in drawn
    assert r"a [red]b[/red] \x1b[31mc\nd" in drawn
    assert "\x1b[31mc" not in terminal.getvalue()
    assert terminal.getvalue().endswith("\x1b[2K")  # the line is cleared


def test_bar_that_counts_bytes_says_how_many() -> None:
    with on_terminal() as terminal, progress_bar(counts_bytes=True) as bar:
        bar("copying", 5 * 1024**2, 20 * 1024**2)

    assert "5.0/20.0 MiB" in plain(terminal.getvalue())


def test_step_of_unknown_length_after_a_known_one_pulses() -> None:
    with on_terminal() as terminal, progress_bar() as bar:
        bar("rows", 100, 100)
        terminal.truncate(0)
        bar("topics", 0, None)

    assert "topics" in plain(terminal.getvalue())
    assert "%" not in plain(terminal.getvalue())


def test_nothing_is_drawn_into_a_pipe(capsys: pytest.CaptureFixture[str]) -> None:
    with progress_bar() as bar:
        bar("rows", 1, 2)

    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("module", ["mailserver.commands.cli", "mailserver.commands.run", "mailserver.app.daemon"])
def test_what_the_daemon_imports_is_without_rich(module: str) -> None:
    program = f"import sys, {module}; print(sorted(name for name in sys.modules if name.startswith('rich')))"

    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)

    assert done.stdout == "[]\n"
