"""A plugin of pytest, `-p tests.measuring`: measures which statements and branches of ours the tests run.

SlipCover puts probes into our modules as they are imported, and takes each out once it was reached. To trace every
line, as coverage.py does before Python 3.14, would make the unit tests take two thirds more CPU. Each process leaves a
file in FOLDER, which tests/coverage_floors.py adds up.
"""

import json
import os
import tracemalloc

import slipcover

from tests.coverage_floors import FOLDER, ROOT, TREES


class _Slipcover(slipcover.Slipcover):  # type: ignore[misc]  # it has no types
    def deinstrument_seen(self) -> None:
        """Take out probes; not while a test measures memory, since that takes some."""
        if not tracemalloc.is_tracing():
            super().deinstrument_seen()


_sources = [str(ROOT / tree) for tree in TREES]
_worker = os.environ.get("PYTEST_XDIST_WORKER")
_measured = _Slipcover(branch=True, source=None if _worker else _sources)
slipcover.ImportManager(_measured, slipcover.FileMatcher(sources=_sources)).__enter__()


def pytest_sessionfinish() -> None:
    """Leave what was measured. The process that hands out the tests adds the modules that nothing has imported."""
    folder = ROOT / FOLDER
    folder.mkdir(exist_ok=True)
    (folder / f"{_worker or 'main'}.json").write_text(json.dumps(_measured.get_coverage()), encoding="utf-8")
