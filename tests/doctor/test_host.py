"""mailserver.doctor.host: clock, open files, memory."""

import resource

import pytest

from mailserver.doctor.findings import FindingVerdict
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
        (NOW, True, FindingVerdict.OK, "synchronised"),
        (NOW, False, FindingVerdict.WARNING, "not synchronised"),
        (NOW, None, FindingVerdict.WARNING, "does not say"),
        (0.0, True, FindingVerdict.PROBLEM, "it says 1970-01-01 00:00:00 UTC"),
        (EARLIEST - 1, True, FindingVerdict.PROBLEM, "2025-12-31"),
        (2.0**32, True, FindingVerdict.PROBLEM, "2106-02-07"),
    ],
)
def test_clock(now: float, synchronised: bool | None, verdict: FindingVerdict, words: str) -> None:
    finding = check_clock(now, lambda: synchronised)

    assert finding.verdict is verdict
    assert words in finding.text
    assert bool(finding.advice) == (verdict is not FindingVerdict.OK)


@pytest.mark.parametrize(
    ("limit", "verdict"),
    [
        (500 + SPARE_FILES, FindingVerdict.OK),
        (500 + SPARE_FILES - 1, FindingVerdict.PROBLEM),
        (resource.RLIM_INFINITY, FindingVerdict.OK),
    ],
)
def test_open_files(limit: int, verdict: FindingVerdict) -> None:
    assert check_open_files(500, limit).verdict is verdict


def test_limit_of_this_process_is_read() -> None:
    assert str(resource.getrlimit(resource.RLIMIT_NOFILE)[1]) in check_open_files(1).text


@pytest.mark.parametrize(
    ("total", "verdict"), [(MIN_MEMORY_BYTES, FindingVerdict.OK), (MIN_MEMORY_BYTES - 1, FindingVerdict.WARNING)]
)
def test_memory(total: int, verdict: FindingVerdict) -> None:
    assert judge_memory(total).verdict is verdict


def test_memory_of_this_machine_is_read() -> None:
    assert check_memory().text.endswith((" MiB", " GiB"))
