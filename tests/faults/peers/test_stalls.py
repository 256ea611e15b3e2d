"""tests.faults.peers.stalls: a loop that is held up again and again is told, whatever else the machine does."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.faults.peers.stalls import SINGLE_STALLS, STALL_S, Beat, stall_figures, stalled
from tests.planted import plant

ASKED = "        record.asks(request, lower=lower, upper=upper, limit=limit)\n"
"""Each history request comes by here, on the event loop."""


def beats(count: int, late_s: float, waited_s: float = 0.0) -> list[Beat]:
    return [Beat(at=float(number), late_s=late_s, waited_s=waited_s) for number in range(count)]


def test_single_stalls_are_nobodys_fault() -> None:
    assert [*stalled(beats(SINGLE_STALLS, 1.0), seconds=1.0)] == []
    assert [*stalled(beats(SINGLE_STALLS + 6, 1.0), seconds=60.0)] == []


def test_stalls_again_and_again_are_told() -> None:
    (told,) = stalled([*beats(4, 0.08), *beats(2, 0.09), *beats(50, STALL_S)], seconds=2.0)

    assert told == "the event loop was held up for more than 60 ms 6 times in 2 s, half of them for 80 ms or longer"


def test_what_was_waited_for_a_processor_is_no_stall_and_told_all_the_same() -> None:
    waited = beats(100, 0.3, waited_s=0.25)

    assert [*stalled(waited, seconds=2.0)] == []
    assert stall_figures(waited) == {
        "longest_stall_ms": pytest.approx(300),
        "longest_stall_own_ms": pytest.approx(50),
        "stalls": 100,
        "stalls_own": 0,
    }
    assert set(stall_figures([]).values()) == {0}


@pytest.mark.integration
@pytest.mark.parametrize(
    "block",
    [
        pytest.param('__import__("time").sleep(0.08)', id="waits"),
        pytest.param(
            'clock = __import__("time").thread_time; end = clock() + 0.08\n        while clock() < end: pass',
            id="works",
        ),
    ],
)
def test_mailserver_whose_loop_is_held_up_for_80_ms_by_each_request_is_found(block: str, tmp_path: Path) -> None:
    """By the short form of an attack that asks for nothing: the honest client's own requests are enough."""
    root = plant(tmp_path, "history/delivery.py", ASKED, f"{ASKED}        {block}\n")

    command = [sys.executable, "-m", "tests.faults", "--quick", "peers", "--only", "packets of no use"]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)

    assert done.returncode == 1, done.stdout + done.stderr
    assert "the event loop was held up for more than 60 ms" in done.stdout
