"""Where coverage is measured and where not: what goes the same ways thousands of times takes several times as long when
each line is noted."""

import contextlib
import functools
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from types import ModuleType
from typing import Any

MEASURED = ("mailserver", "spark_export")
"""The packages whose coverage is measured."""

UNMEASURED = (
    "tests/archive/reading/test_faults.py::test_no_flipped_bit_is_ever_sent",
    "tests/bench/",
    "tests/communities/test_index.py::test_index_of_ten_years_is_read_in_50_ms",
    "tests/crowd/",
    "tests/docker/",
    "tests/docs/",
    "tests/faults/",
    "tests/fuzz/",
    "tests/history/test_merged.py::test_any_split_is_answered_as_by_one_store_that_holds_all",
    "tests/limits/test_admission.py::test_one_line_with_ipv6_does_not_lock_out_the_others",
    "tests/limits/test_packet_rates.py::test_peer_that_takes_little_is_not_disconnected_for_its_neighbours",
    "tests/limits/test_packet_rates.py::test_with_endless_tolerance_it_is_only_slowed",
    "tests/limits/test_request_quotas.py::test_ten_of_them_behind_one_address_are_not_either",
    "tests/limits/test_request_quotas.py::test_thousands_of_phones_behind_one_address_catch_up_on_a_day_one_after_another",
    "tests/live/test_bundles.py::test_packets_of_the_tiniest_envelopes_take_no_more_memory_than_any",
    "tests/peers/served/test_backpressure.py::test_flood_faster_than_the_disk_is_held_back_and_confirmed_in_the_end",
    "tests/soak/",
    "tests/store/sqlite/test_snapshots.py::test_wal_stays_short_beside_snapshots_that_never_leave_it_alone",
    "tests/store/sqlite/test_wal.py::test_damage_before_the_last_transaction_is_found",
    "tests/store/sqlite/test_writer_disk.py::test_wal_stays_short_beside_readers_that_never_leave_it_alone",
    "tests/test_errors.py",
    "tests/test_layers.py",
    "tests/test_log_calls.py",
    "tests/upkeep/test_pruning.py::test_envelopes_come_and_are_found_while_fifty_thousand_go",
    "tests/waku2/test_criteria.py::test_matching_does_not_depend_on_how_many_criteria_there_are",
    "tests/waku2/test_criteria.py::test_memory_is_at_most_what_is_counted",
)
"""Where coverage is not measured. Some go the same ways thousands of times, and take up to 25 times as long when each
line is noted; some compare memory; what faults, containers and benches try runs in processes of its own, and of what
only the corpus of a fuzzer reaches, no test says what it should do."""

MEASURED_EXAMPLES = 10
"""Of each property. Which these are does not change, so the coverage does not, either."""


@contextlib.contextmanager
def unmeasured_from_here() -> Iterator[Callable[[], None]]:
    """Give a function that ends the measuring, in this thread and in those that begin after it, until the exit."""
    trace, trace_of_threads = sys.gettrace(), threading.gettrace()

    def stop() -> None:
        sys.settrace(None)
        threading.settrace(None)

    try:
        yield stop
    finally:
        sys.settrace(trace)
        threading.settrace(trace_of_threads)


@contextlib.contextmanager
def first_examples_measured(test: object, stop: Callable[[], None]) -> Iterator[None]:
    """Call `stop` before the first example of a property that is not measured. Other tests are measured whole."""
    drawn = getattr(test, "hypothesis", None)
    inner = getattr(drawn, "inner_test", None)
    if drawn is None or inner is None:
        yield
        return
    examples = 0

    @functools.wraps(inner)
    def count(*args: object, **kwargs: object) -> object:
        nonlocal examples
        examples += 1
        if examples > MEASURED_EXAMPLES:
            stop()
        return inner(*args, **kwargs)

    drawn.inner_test = count
    try:
        yield
    finally:
        drawn.inner_test = inner


@contextlib.contextmanager
def only_imports_measured() -> Iterator[None]:
    """Of all that happens within, measure how modules of MEASURED are imported: while tests are collected.

    To note each line of other packages' imports, and of pytest's own work, takes 5 s of CPU in each process.
    """
    trace = sys.gettrace()
    if trace is None:
        yield
        return
    finder = _MeasuredFinder(trace)
    with unmeasured_from_here() as stop:
        stop()
        sys.meta_path.insert(0, finder)
        try:
            yield
        finally:
            sys.meta_path.remove(finder)


class _MeasuredFinder(MetaPathFinder):
    """Finds modules of MEASURED as Python does, and has them measured as they are run."""

    def __init__(self, trace: Any) -> None:
        self._trace = trace

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname.partition(".")[0] not in MEASURED:
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and isinstance(spec.loader, SourceFileLoader):
            spec.loader = _MeasuredLoader(spec.loader.name, spec.loader.path, self._trace)
        return spec


class _MeasuredLoader(SourceFileLoader):
    def __init__(self, fullname: str, path: str, trace: Any) -> None:
        super().__init__(fullname, path)
        self._trace = trace

    def exec_module(self, module: ModuleType) -> None:
        before = sys.gettrace()  # a module that imports another is measured to its end
        sys.settrace(self._trace)
        try:
            super().exec_module(module)
        finally:
            sys.settrace(before)
