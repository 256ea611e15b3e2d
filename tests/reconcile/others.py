"""Other implementations of negentropy v1, each in a process of Node.js: see `oracle/oracle.mjs`.

One is nostr-tools, whose whole algorithm is in its module nip77.
"""

import contextlib
import json
import subprocess
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ORACLE = Path(__file__).parent / "oracle"

Item = tuple[int, bytes]


@dataclass(frozen=True)
class Told:
    """What a side made of a message."""

    message: bytes | None
    have: list[bytes]
    need: list[bytes]


class Other:
    """A side whose every message another implementation makes."""

    def __init__(self, process: subprocess.Popen[str], items: Iterable[Item], frame_bytes: int) -> None:
        self._process = process
        self._ask(items=[[timestamp, item_id.hex()] for timestamp, item_id in items], frame_bytes=frame_bytes)

    def begin(self) -> bytes:
        """The first message."""
        return bytes.fromhex(self._ask(begin=True)["message"])

    def receive(self, message: bytes) -> Told:
        """What it answers, and which differences it found."""
        told = self._ask(receive=message.hex())
        answer = None if told["message"] is None else bytes.fromhex(told["message"])
        return Told(
            answer, [bytes.fromhex(each) for each in told["have"]], [bytes.fromhex(each) for each in told["need"]]
        )

    def _ask(self, **asked: Any) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(asked) + "\n")
        self._process.stdin.flush()
        told: dict[str, Any] = json.loads(self._process.stdout.readline())
        return told


@contextlib.contextmanager
def other(items: Iterable[Item], frame_bytes: int, module: Path | None = None) -> Iterator[Other]:
    """A side of nostr-tools, or of another module."""
    command = ["node", str(ORACLE / "oracle.mjs"), *([str(module)] if module else [])]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield Other(process, items, frame_bytes)
        finally:
            process.kill()
