"""`python -m tests.leveldb.record`: writes tests/vectors/leveldb.json, databases of goleveldb with recorded envelopes.

Needs Debian's golang-go and golang-github-syndtr-goleveldb-dev. GOPATH names another folder than theirs.
"""

import json
import os
import subprocess
import tempfile
from pathlib import Path

from mailserver.waku.envelope import decode_envelope
from tests.data import VECTORS, load
from tests.moving.go_keys import key_of

WRITER = Path(__file__).parent / "goleveldb" / "write.go"
GO = {"GO111MODULE": "off", "GOPATH": "/usr/share/gocode", "CGO_ENABLED": "0"}
KEPT = ("CURRENT", "MANIFEST-*", "*.log", "*.ldb")

RAWS = [bytes.fromhex(each["raw"]) for each in load("envelopes.json")["envelopes"]]
KEYS = [key_of(decode_envelope(raw)) for raw in RAWS]
EARLY = [key[:36] for key in KEYS]


def put(keys: list[bytes], numbers: range) -> list[str]:
    """Save envelopes under these keys, by their numbers."""
    return [f"put {keys[number].hex()} {RAWS[number].hex()}" for number in numbers]


def delete(keys: list[bytes], numbers: range) -> list[str]:
    """Delete envelopes."""
    return [f"delete {keys[number].hex()}" for number in numbers]


CASES: tuple[tuple[str, list[str], list[str]], ...] = (
    ("one journal", [], put(KEYS, range(30))),
    ("early keys", [], [*put(EARLY, range(12)), "reopen", *put(KEYS, range(12, 20))]),
    (
        "a table and a journal",
        [],
        [*put(KEYS, range(25)), "reopen", *delete(KEYS, range(5)), *put(KEYS, range(20, 30))],
    ),
    (
        "many tables",
        ["2000", "3000"],
        [*put(KEYS, range(30)), *delete(KEYS, range(0, 30, 3)), *put(KEYS, range(0, 30, 6)), "reopen"],
    ),
    ("compacted", ["4000", "4000"], [*put(KEYS, range(30)), *delete(KEYS, range(10)), "compact"]),
    ("nothing left", [], [*put(KEYS, range(3)), *delete(KEYS, range(3)), "reopen"]),
)
"""Name, sizes of buffers and tables if they are not the usual ones, and what the writer is told."""


def record(sizes: list[str], lines: list[str]) -> dict[str, object]:
    """The files that goleveldb writes, and what is in the database."""
    with tempfile.TemporaryDirectory() as folder:
        command = ["go", "run", str(WRITER), folder, *sizes]
        subprocess.run(command, input="\n".join(lines), env=GO | os.environ, check=True, text=True)
        paths = sorted(path for pattern in KEPT for path in Path(folder).glob(pattern))
        files = {path.name: path.read_bytes().hex() for path in paths}
    left: dict[str, int] = {}
    for line in lines:
        match line.split():
            case ["put", key, value]:
                left[key] = RAWS.index(bytes.fromhex(value))
            case ["delete", key]:
                left.pop(key, None)
    return {"files": files, "entries": sorted(left.items())}


def main() -> None:
    """Write the file."""
    about = "databases of goleveldb: files, and entries as keys and numbers of envelopes in envelopes.json"
    databases = [{"name": name, **record(sizes, lines)} for name, sizes, lines in CASES]
    text = json.dumps({"about": about, "databases": databases}, indent=1)
    (VECTORS / "leveldb.json").write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
