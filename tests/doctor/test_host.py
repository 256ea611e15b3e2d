"""mailserver.doctor.host: clock, open files, memory."""

import resource

import pytest

from mailserver.doctor.findings import Verdict
from mailserver.doctor.host import (
    EARLIEST,
    MIN_MEMORY_BYTES,
    SPARE_FILES,
    check_clock,
    check_memory,
    check_open_files,
    is_synchronised,
    judge_memory,
)

NOW = EARLIEST + 1e6


def test_kernel_is_asked_and_nothing_is_set() -> None:
    assert is_synchronised() in (True, False, None)


@pytest.mark.parametrize(
    ("now", "synchronised", "verdict", "words"),
    [
        (NOW, True, Verdict.OK, "synchronised"),
        (NOW, False, Verdict.WARNING, "not synchronised"),
        (NOW, None, Verdict.WARNING, "does not say"),
        (0.0, True, Verdict.PROBLEM, "it says 1970-01-01 00:00:00 UTC"),
        (EARLIEST - 1, True, Verdict.PROBLEM, "2025-12-31"),
        (2.0**32, True, Verdict.PROBLEM, "2106-02-07"),
    ],
)
def test_clock(now: float, synchronised: bool | None, verdict: Verdict, words: str) -> None:
    finding = check_clock(now, lambda: synchronised)

    assert finding.verdict is verdict
    assert words in finding.text
    assert bool(finding.advice) == (verdict is not Verdict.OK)


@pytest.mark.parametrize(
    ("limit", "verdict"),
    [
        (500 + SPARE_FILES, Verdict.OK),
        (500 + SPARE_FILES - 1, Verdict.PROBLEM),
        (resource.RLIM_INFINITY, Verdict.OK),
    ],
)
def test_open_files(limit: int, verdict: Verdict) -> None:
    assert check_open_files(500, limit).verdict is verdict


def test_limit_of_this_process_is_read() -> None:
    assert str(resource.getrlimit(resource.RLIMIT_NOFILE)[1]) in check_open_files(1).text


@pytest.mark.parametrize(
    ("total", "verdict"), [(MIN_MEMORY_BYTES, Verdict.OK), (MIN_MEMORY_BYTES - 1, Verdict.WARNING)]
)
def test_memory(total: int, verdict: Verdict) -> None:
    assert judge_memory(total).verdict is verdict


def test_memory_of_this_machine_is_read() -> None:
    assert check_memory().text.endswith((" MiB", " GiB"))
