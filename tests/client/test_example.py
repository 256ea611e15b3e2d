"""docs/examples against a daemon, and docs/python-client.md, which shows their parts."""

import contextlib
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.daemons import DEADLINE_S, run_command, running_daemon

DOCS = Path(__file__).parents[2] / "docs"
EXAMPLES = DOCS / "examples"
PROGRAM = (sys.executable, str(EXAMPLES / "chat.py"))
IDS_PROGRAM = (sys.executable, str(EXAMPLES / "ids.py"))


@pytest.mark.parametrize("program", [PROGRAM, IDS_PROGRAM], ids=["chat", "ids"])
def test_example_without_its_arguments_says_how_it_is_used(program: tuple[str, ...]) -> None:
    done = subprocess.run(
        [*program, "enode://"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )

    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert f"python docs/examples/{Path(program[1]).name} ENODE CHAT" in done.stderr


class Follower:
    """The example as it follows a chat. Made by `following`."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def read_to(self, text: str) -> list[str]:
        """Read lines up to one with `text` in it."""
        assert self._process.stdout is not None
        lines: list[str] = []
        killing = threading.Timer(DEADLINE_S, self._process.kill)  # then the lines end
        killing.start()
        for line in self._process.stdout:
            lines.append(line)
            if text in line:
                killing.cancel()
                return lines
        raise AssertionError(f"no line with {text!r} in {lines}, {self._process.communicate()}")

    def end(self) -> str:
        """Wait until it has failed; return its last words."""
        _, errors = self._process.communicate(timeout=DEADLINE_S)
        assert self._process.returncode == 1
        return errors


@contextlib.contextmanager
def following(node: str, chat: str) -> Iterator[Follower]:
    """Have the example follow a chat; kill it at the end, if it still runs."""
    with subprocess.Popen(
        [*PROGRAM, node, chat],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield Follower(process)
        finally:
            process.kill()


@pytest.mark.integration
def test_example_posts_and_shows_what_was_said_and_what_is_said(tmp_path: Path) -> None:
    with running_daemon(tmp_path / "data") as daemon:
        node = str(daemon.enode)
        posted = run_command(node, "garden", "it is spring", program=PROGRAM)
        assert (posted.returncode, posted.stdout) == (0, "confirmed\n")
        with following(node, "garden") as follower:
            past = follower.read_to("that was the last hour")
            assert run_command(node, "kitchen", "another chat", program=PROGRAM).returncode == 0
            assert run_command(node, "garden", "it is summer", program=PROGRAM).returncode == 0
            new = follower.read_to("summer")
            assert daemon.stop() == 0
            last_words = follower.end()

    assert [line.split(" ", 1)[1] for line in past] == [
        "b'it is spring'\n",
        "was the last hour; not as asked for: nothing\n",
    ]
    assert [line.split(" ", 1)[1] for line in new] == ["b'it is summer'\n"]
    assert last_words == "peer disconnected: CLIENT_QUITTING\n"


@pytest.mark.integration
def test_example_lists_ids_and_fetches_by_them(tmp_path: Path) -> None:
    with running_daemon(tmp_path / "data") as daemon:
        node = str(daemon.enode)
        for number in range(5):
            assert run_command(node, "garden", f"flower {number}", program=PROGRAM).returncode == 0
        listed = run_command(node, "garden", program=IDS_PROGRAM)

    assert (listed.returncode, listed.stderr) == (0, "")
    count, *shown = listed.stdout.splitlines()
    assert count == "5 ids"
    assert len(shown) == 3
    assert all(re.fullmatch(r"[0-9a-f]{16} b'flower \d'", line) for line in shown)


def test_page_shows_parts_of_the_examples() -> None:
    blocks = re.findall(r"```python\n(.*?)```", (DOCS / "python-client.md").read_text("utf-8"), re.DOTALL)
    examples = "".join(path.read_text("utf-8") for path in EXAMPLES.glob("*.py"))

    assert len(blocks) == 4
    assert [block for block in blocks if block not in examples] == []
