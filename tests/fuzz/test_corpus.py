"""What fuzzing has found worth keeping, replayed without a fuzzer: each input within its bounds of time and memory."""

from pathlib import Path

import pytest

from tests.fuzz.runner import CORPUS
from tests.fuzz.target import BoundBroken, Target, load, names, run_bounded

MAX_CORPUS_BYTES = 1024 * 1024
MAX_INPUTS = 300
"""Of one target: a corpus is minimised before it is kept."""


@pytest.mark.parametrize("name", names())
def test_target_holds_its_promises_on_its_corpus(name: str) -> None:
    target = load(name)
    files = sorted((CORPUS / name).iterdir())

    for data in target.seeds():
        run_bounded(target, data, measure_memory=True)
    for file in files:
        _replay(target, file)

    assert 0 < len(files) <= MAX_INPUTS


def _replay(target: Target, file: Path) -> None:
    try:
        run_bounded(target, file.read_bytes(), measure_memory=True)
    except Exception as error:
        error.add_note(f"input {file}")
        raise


def test_every_corpus_has_its_target_and_all_of_them_are_small() -> None:
    assert {folder.name for folder in CORPUS.iterdir()} == set(names())
    assert sum(file.stat().st_size for file in CORPUS.rglob("*") if file.is_file()) < MAX_CORPUS_BYTES


def test_input_that_takes_too_much_memory_breaks_a_promise() -> None:
    hoarded = []

    def hoard(data: bytes) -> None:
        hoarded.append(bytes(2 * 1024 * 1024))

    with pytest.raises(BoundBroken, match="bytes of memory for 5 bytes of input"):
        run_bounded(Target(hoard, list), b"input", measure_memory=True)


def test_input_that_takes_too_long_breaks_a_promise(monkeypatch: pytest.MonkeyPatch) -> None:
    def waste(data: bytes) -> None:
        sum(range(1_000_000))

    monkeypatch.setattr("tests.fuzz.target.MAX_CPU_S", 0.001)

    with pytest.raises(BoundBroken, match="s of CPU for 5 bytes"):
        run_bounded(Target(waste, list), b"input")
