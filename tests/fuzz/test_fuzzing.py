"""A short run of every target under atheris, in a process of its own, always the same; and what it must find."""

import platform
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fuzz.runner import Forks, fuzz
from tests.fuzz.target import names
from tests.planted import plant

HAS_ATHERIS = sys.platform == "linux" and platform.machine() == "x86_64" and sys.version_info < (3, 14)

pytestmark = [
    pytest.mark.fuzz,
    pytest.mark.skipif(not HAS_ATHERIS, reason="atheris has wheels for Linux on x86-64 and Python 3.11 to 3.13 only"),
]

RUNS = 300
"""Beyond what is in the corpus: a second or two of the slowest. `make fuzz` takes its time."""

PLANTED_RUNS = 20_000


@pytest.fixture(scope="module")
def forks() -> Iterator[Forks]:
    """What runs one target after another."""
    forks = Forks(names())
    yield forks
    forks.close()


@pytest.mark.parametrize("name", names())
def test_short_run_finds_nothing(name: str, forks: Forks, tmp_path: Path) -> None:
    row, problem = fuzz(name, tmp_path, runs=RUNS, engine=forks)

    assert problem is None
    assert int(row.figures["runs"]) >= RUNS
    assert int(row.figures["edges"]) > 0


def test_bound_that_is_not_kept_is_found_in_a_fork_and_the_next_fork_runs(tmp_path: Path) -> None:
    root = plant(tmp_path, "codec/snappy.py", "if announced > max_bytes:", "if False:")
    forks = Forks(["codec-snappy", "codec-rlp"], root)

    _, problem = fuzz("codec-snappy", tmp_path, runs=PLANTED_RUNS, root=root, engine=forks)
    row, nothing = fuzz("codec-rlp", tmp_path, runs=RUNS, root=root, engine=forks)
    forks.close()

    assert problem is not None
    assert "codec-snappy: AssertionError: " in problem
    assert nothing is None
    assert int(row.figures["runs"]) >= RUNS


def test_run_of_one_seed_is_always_the_same(tmp_path: Path) -> None:
    runs = [fuzz("codec-snappy", tmp_path / name, runs=RUNS, seed=7)[0] for name in ("one", "two")]

    assert runs[0] == runs[1]
    assert len({path.name for path in tmp_path.glob("*/codec-snappy/found/*")}) == len(
        list((tmp_path / "one" / "codec-snappy" / "found").iterdir())
    )


@pytest.mark.parametrize(
    ("name", "file", "code", "bug", "found"),
    [
        pytest.param(
            "waku-status",
            "waku/packets.py",
            "if len(pair) < 2:",
            "if len(pair) < 1:",
            "IndexError",
            id="an error that is not documented",
        ),
        pytest.param(
            "codec-rlp",
            "codec/rlp.py",
            'raise DecodeError("RLP string of one byte is not in its shortest form")',
            "pass",
            "AssertionError",
            id="bytes that are not canonical",
        ),
        pytest.param(
            "libp2p-handshake",
            "libp2p/noise.py",
            "if not key.has_signed(_SIGNED_PREFIX + static_key, self.identity_sig):",
            "if False:",
            "AssertionError",
            id="a peer that proves nothing",
        ),
        pytest.param(
            "libp2p-connection",
            "libp2p/connection.py",
            "elif event.stream not in gone:",
            "else:",
            "KeyError",
            id="what comes for a stream that is gone",
        ),
        pytest.param(
            "machine-recipient",
            "rlpx/liveness.py",
            "self._next_ping = now + PING_INTERVAL_S\n            return",
            "return",
            "AssertionError",
            id="a timer that is due again at once",
        ),
        pytest.param(
            "machine-initiator",
            "waku/peer.py",
            'raise RemoteProtocolError(DisconnectReason.SUBPROTOCOL_ERROR, f"packet {code} before Status")',
            "pass",
            "AssertionError",
            id="a rule of the machine",
        ),
    ],
)
def test_planted_bug_is_found(name: str, file: str, code: str, bug: str, found: str, tmp_path: Path) -> None:
    root = plant(tmp_path, file, code, bug)

    _, problem = fuzz(name, tmp_path, runs=PLANTED_RUNS, root=root)

    assert problem is not None
    assert f"{name}: {found}: " in problem
