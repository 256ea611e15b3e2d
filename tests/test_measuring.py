"""tests.measuring: what is measured, and that measuring goes on after it."""

import sys
import threading
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests import measuring
from tests.measuring import (
    MEASURED_EXAMPLES,
    first_examples_measured,
    only_imports_measured,
    unmeasured_from_here,
)

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


def test_of_what_is_collected_only_imports_of_ours_are_measured(
    traced: Trace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = "import sys\nTRACE = sys.gettrace()\n"
    (tmp_path / "of_ours").mkdir()
    (tmp_path / "of_ours" / "__init__.py").write_text(f"from of_ours import inner\n{looks}")
    (tmp_path / "of_ours" / "inner.py").write_text(looks)
    (tmp_path / "of_others.py").write_text(looks)
    monkeypatch.setattr(measuring, "MEASURED", ("of_ours",))
    monkeypatch.syspath_prepend(tmp_path)
    finders = list(sys.meta_path)

    with only_imports_measured():
        ours, others = import_module("of_ours"), import_module("of_others")
        within = sys.gettrace()

    assert ours.TRACE is traced
    assert ours.inner.TRACE is traced
    assert (others.TRACE, within) == (None, None)
    assert sys.gettrace() is traced
    assert sys.meta_path == finders
    for name in ("of_ours", "of_ours.inner", "of_others"):
        monkeypatch.delitem(sys.modules, name)


def test_where_nothing_is_measured_imports_are_not_either() -> None:
    trace, finders = sys.gettrace(), list(sys.meta_path)
    sys.settrace(None)

    with only_imports_measured():
        within = sys.meta_path == finders, sys.gettrace()
    sys.settrace(trace)

    assert within == (True, None)
