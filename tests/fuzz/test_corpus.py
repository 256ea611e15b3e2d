"""What fuzzing has found worth keeping, replayed without a fuzzer: each input within its bounds of time and memory."""

from pathlib import Path

import pytest

from tests.fuzz.corpora import CORPORA, file_of, read_corpus, unpack, write_corpus
from tests.fuzz.target import BoundBroken, Target, load, names, run_bounded

MAX_CORPUS_BYTES = 1024 * 1024
MAX_INPUTS = 300
"""Of one target: a corpus is minimised before it is kept."""


@pytest.mark.slow
@pytest.mark.parametrize("name", names())
def test_target_holds_its_promises_on_its_corpus(name: str) -> None:
    target = load(name)
    inputs = read_corpus(name)

    for data in target.seeds():
        run_bounded(target, data, measure_memory=True)
    for line, data in enumerate(inputs, 1):
        _replay(target, data, f"line {line} of {file_of(name)}")

    assert 0 < len(inputs) <= MAX_INPUTS


def _replay(target: Target, data: bytes, place: str) -> None:
    try:
        run_bounded(target, data, measure_memory=True)
    except Exception as error:
        error.add_note(f"input in {place}")
        raise


def test_every_corpus_has_its_target_and_all_of_them_are_small() -> None:
    assert {file.name for file in CORPORA.iterdir()} == {f"{name}.txt" for name in names()}
    assert sum(len(data) for name in names() for data in read_corpus(name)) < MAX_CORPUS_BYTES


@pytest.mark.parametrize("name", names())
def test_corpus_is_the_same_file_when_it_is_written_again(name: str, tmp_path: Path) -> None:
    write_corpus(name, reversed(read_corpus(name)), tmp_path)

    assert file_of(name, tmp_path).read_bytes() == file_of(name).read_bytes()


def test_corpus_keeps_each_input_once_and_the_shortest_first(tmp_path: Path) -> None:
    write_corpus("some", [b"\xff\n", b"", b"a", b"\x00\x01", b"a"], tmp_path)

    assert read_corpus("some", tmp_path) == [b"", b"a", b"\x00\x01", b"\xff\n"]
    assert read_corpus("none", tmp_path) == []


def test_each_unpacked_input_is_a_file(tmp_path: Path) -> None:
    unpack([b"", b"one", b"two"], tmp_path)

    assert {file.read_bytes() for file in tmp_path.iterdir()} == {b"", b"one", b"two"}


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
