"""That the harness sees what it is there to see: without it, every scenario would pass."""

from dataclasses import replace

from bench.daemon import Usage
from tests.faults.peers.harness import MAX_ANSWER_S, MAX_LEFT_BYTES, MAX_MEMORY_BYTES, broken_promises
from tests.faults.peers.honest import Served

BEFORE = Usage(memory_bytes=80_000_000, peak_bytes=90_000_000, open_files=20, threads=3, cpu_s=1.0)
SERVED = Served(answers_s=[0.1, 0.6], own_answers_s=[0.05, MAX_ANSWER_S], confirmations_s=[0.1])


def after(*rounds: Usage) -> list[Usage]:
    """The daemon's usage before the attack, after each round, and at the end."""
    return [BEFORE, *(rounds or [BEFORE]), (rounds or [BEFORE])[-1]]


def test_all_that_holds_is_no_news() -> None:
    assert [*broken_promises(SERVED, after(BEFORE, replace(BEFORE, peak_bytes=MAX_MEMORY_BYTES)))] == []


def test_slow_answers_are_told() -> None:
    slow = replace(SERVED, own_answers_s=[0.1, MAX_ANSWER_S + 0.001])

    assert [*broken_promises(slow, after())] == [
        "an answer took 501 ms, and 600 ms with what was waited for a processor"
    ]


def test_wrong_answers_are_told() -> None:
    assert [*broken_promises(replace(SERVED, wrong=["one is missing"]), after())] == ["one is missing"]


def test_too_much_memory_is_told() -> None:
    usages = after(BEFORE, replace(BEFORE, peak_bytes=MAX_MEMORY_BYTES + 1_000_000))

    assert [*broken_promises(SERVED, usages)] == ["the daemon had 301 MB"]


def test_memory_that_one_attack_leaves_is_no_leak() -> None:
    grown = replace(BEFORE, memory_bytes=BEFORE.memory_bytes + 2 * MAX_LEFT_BYTES)

    assert [*broken_promises(SERVED, after(grown, grown))] == []


def test_memory_that_each_attack_leaves_is_told() -> None:
    grown = replace(BEFORE, memory_bytes=BEFORE.memory_bytes + MAX_LEFT_BYTES + 1)

    assert [*broken_promises(SERVED, after(BEFORE, grown))] == ["the daemon keeps 34 MB more after each attack"]


def test_connections_that_are_kept_are_told() -> None:
    usages = after(BEFORE, replace(BEFORE, open_files=21))

    assert [*broken_promises(SERVED, usages)] == ["21 files are open, 20 were"]
