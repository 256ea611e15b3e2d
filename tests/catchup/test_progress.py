"""mailserver.catchup.progress: what is said of a source, as text, as JSON, and of a part of the time."""

import logging
from dataclasses import replace

import pytest

from mailserver.catchup.page_rules import Wrong
from mailserver.catchup.progress import SourceProgress, SourceState

BEFORE = SourceProgress(
    "abcd1234@192.0.2.1:30303", SourceState.DONE, 0, 0, 3, 250, 200, {Wrong.LOW_POW: 7, Wrong.OVERSIZE: 1}, 1.5, "", 0
)


def test_what_was_done_since_then_is_counted_alone() -> None:
    now = replace(
        BEFORE,
        state=SourceState.WAITING,
        ranges=2,
        left_s=500,
        pages=5,
        fetched=300,
        stored=210,
        wrong={Wrong.LOW_POW: 7, Wrong.OVERSIZE: 3, Wrong.OUT_OF_RANGE: 2},
        seconds=4.0,
        problem="no",
        failures=1,
    )

    assert now.since(BEFORE) == replace(
        now, pages=2, fetched=50, stored=10, wrong={Wrong.OVERSIZE: 2, Wrong.OUT_OF_RANGE: 2}, seconds=2.5
    )
    assert now.since(now).wrong == {}


def test_lines_of_the_log_have_the_numbers(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "mailserver")

    BEFORE.log_state()
    BEFORE.log_end()

    source = "source=abcd1234@192.0.2.1:30303"
    assert caplog.messages == [
        f"catching up {source} left_s=0 pages=3 fetched=250 stored=200 wrong=8 seconds=1.5",
        f"caught up {source} pages=3 fetched=250 stored=200 wrong=8 seconds=1.5",
    ]


def test_what_is_written_as_json_is_read_again() -> None:
    assert SourceProgress.from_json(BEFORE.as_json()) == BEFORE
