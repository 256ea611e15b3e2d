"""`make demo`, run as a person runs it: until it has shown everything, then Ctrl-C."""

import os
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.integration, pytest.mark.spark]

ROOT = Path(__file__).parents[2]
DEADLINE_S = 120.0


def test_everything_it_tells_to_try_works_and_ctrl_c_leaves_nothing_behind(tmp_path: Path) -> None:
    """A process that ignores Ctrl-C, or leaves others behind, keeps its pipe open: reading to its end would hang."""
    with subprocess.Popen(
        [sys.executable, "-m", "docs.demo"],
        cwd=ROOT,
        env={**os.environ, "TMPDIR": str(tmp_path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as demo:
        assert demo.stdout is not None
        try:
            said = ""
            for line in demo.stdout:
                said += line
                if "report --archive" in line:
                    break
            commands = [shlex.split(line) for line in re.findall(r"^  (/.+)$", said, re.MULTILINE)]
            tried = [subprocess.run(command, capture_output=True, text=True, check=False) for command in commands[:4]]

            demo.send_signal(signal.SIGINT)
            said += demo.stdout.read()
            demo.wait(DEADLINE_S)
        finally:
            demo.kill()

    assert [Path(command[0]).name for command in commands] == ["waku-mailserver"] * 3 + ["spark-export"] * 2
    assert [done.returncode for done in tried] == [0] * 4, [done.stderr for done in tried]
    assert "yesterday's message" in tried[0].stdout, "south has fetched what north had"
    assert " message 1\n" in tried[0].stdout
    assert demo.returncode == 0, said
    assert list(tmp_path.glob("waku-mailserver-demo-*")) == []
