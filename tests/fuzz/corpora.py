"""The corpora of the repository: one text file for each target, `corpus/TARGET.txt`.

Each line is one input in base64; an empty line is the empty input. The shortest input comes first, and inputs of one
length are in the order of their bytes, so the same inputs are always the same file, and a diff shows which were added
and which were dropped. libFuzzer reads folders, so a corpus is unpacked into one before a run.
"""

import base64
from collections.abc import Iterable
from hashlib import sha1
from pathlib import Path

CORPORA = Path(__file__).parent / "corpus"


def file_of(name: str, corpora: Path = CORPORA) -> Path:
    """Where the corpus of a target is."""
    return corpora / f"{name}.txt"


def read_corpus(name: str, corpora: Path = CORPORA) -> list[bytes]:
    """The inputs of a target; none if it has no corpus."""
    file = file_of(name, corpora)
    return [base64.b64decode(line, validate=True) for line in file.read_bytes().splitlines()] if file.exists() else []


def write_corpus(name: str, inputs: Iterable[bytes], corpora: Path = CORPORA) -> None:
    """Make these inputs the corpus of a target. Repeated ones are kept once."""
    ordered = sorted(set(inputs), key=lambda data: (len(data), data))
    file_of(name, corpora).write_bytes(b"".join(base64.b64encode(data) + b"\n" for data in ordered))


def unpack(inputs: Iterable[bytes], folder: Path) -> None:
    """Write inputs into a folder as libFuzzer does: each in a file named by its hash."""
    for data in inputs:
        (folder / sha1(data, usedforsecurity=False).hexdigest()).write_bytes(data)
