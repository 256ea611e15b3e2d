"""tests.measuring: what is measured, and that measuring goes on after it."""

import sys
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.measuring import MEASURED_EXAMPLES, first_examples_measured, unmeasured_from_here

Trace = Callable[[FrameType, str, Any], None]


def measures(frame: FrameType, event: str, argument: object) -> None:
    """A tracer of nothing."""


@pytest.fixture
def traced() -> Iterator[Trace]:
    """This thread has a tracer."""
    before = sys.gettrace()
    sys.settrace(measures)
    yield measures
    sys.settrace(before)


def test_measuring_ends_and_goes_on(traced: Trace) -> None:
    in_threads = threading.gettrace()

    with unmeasured_from_here() as stop:
        assert sys.gettrace() is traced
        stop()
        assert (sys.gettrace(), threading.gettrace()) == (None, None)

    assert (sys.gettrace(), threading.gettrace()) == (traced, in_threads)


def test_first_examples_of_a_property_are_measured_each_time(traced: Trace) -> None:
    measured: list[bool] = []

    @given(st.integers())
    def test(_: int) -> None:
        measured.append(sys.gettrace() is traced)

    for _ in range(2):
        measured.clear()
        with unmeasured_from_here() as stop, first_examples_measured(test, stop):
            test()
        assert len(measured) > MEASURED_EXAMPLES
        assert measured == [number < MEASURED_EXAMPLES for number in range(len(measured))]


def test_other_tests_are_measured_whole(traced: Trace) -> None:
    with unmeasured_from_here() as stop, first_examples_measured(test_measuring_ends_and_goes_on, stop):
        assert sys.gettrace() is traced
