"""That the harness sees what it is there to see: without it, every scenario would pass."""

from dataclasses import replace

from tests.faults.peers.harness import MAX_ANSWER_S, MAX_LEFT_BYTES, MAX_MEMORY_BYTES, broken_promises
from tests.faults.peers.honest import Served
from tests.faults.peers.usage import Usage

BEFORE = Usage(memory_bytes=80_000_000, peak_bytes=90_000_000, open_files=20, threads=3, cpu_s=1.0)
SERVED = Served(answers_s=[0.6], own_answers_s=[MAX_ANSWER_S], confirmations_s=[0.1])


def test_all_that_holds_is_no_news() -> None:
    assert [*broken_promises(SERVED, BEFORE, replace(BEFORE, peak_bytes=MAX_MEMORY_BYTES))] == []


def test_slow_answers_are_told() -> None:
    slow = replace(SERVED, own_answers_s=[0.1, MAX_ANSWER_S + 0.001])

    assert [*broken_promises(slow, BEFORE, BEFORE)] == ["an answer took 501 ms"]


def test_wrong_answers_are_told() -> None:
    assert [*broken_promises(replace(SERVED, wrong=["one is missing"]), BEFORE, BEFORE)] == ["one is missing"]


def test_too_much_memory_is_told() -> None:
    after = replace(BEFORE, peak_bytes=MAX_MEMORY_BYTES + 1_000_000)

    assert [*broken_promises(SERVED, BEFORE, after)] == ["the daemon had 301 MB"]


def test_memory_that_is_kept_is_told() -> None:
    after = replace(BEFORE, memory_bytes=BEFORE.memory_bytes + MAX_LEFT_BYTES + 1)

    assert [*broken_promises(SERVED, BEFORE, after)] == ["the daemon keeps 67 MB"]
