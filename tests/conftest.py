"""For all tests: restores logging after each, chooses the examples of property tests, makes Spark start quickly,
keeps garbage collection short, and shares tests among processes.

In `make test` several processes share the tests. Each takes the next file when it has finished one. Some folders
are taken as if they were one file, so that Spark and the containers start once. The longest begin first, so that no
process has much left when the others have nothing.
"""

import asyncio.constants
import gc
import linecache
import logging
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling

from mailserver.app import logs
from tests.in_memory import keep_in_memory
from tests.properties import register_profiles
from tests.quick_spark import OPTIONS, WORKERS, QuickJvm, quick_python
from tests.store.postgres.server import FORGETFUL, QUICK, Server, running_server

# Garbage is collected rarely, since next to nothing of a test is in cycles. From here on: while pytest collects tests,
# it took a tenth of the time to look through them.
gc.set_threshold(50_000, 10, 100)

register_profiles()
keep_in_memory()

# In asyncio's debug mode, futures and calls keep the stack of their making: with whole ones, that took a third of such
# tests' time. The innermost frames say where it was.
sys.tracebacklimit = 8
asyncio.constants.DEBUG_STACK_DEPTH = 3  # type: ignore[misc]  # "final" there; our tests are not the library


def _unchecked(filename: str | None = None) -> None:
    """Files of source do not change while tests run. For each of these stacks all of theirs would be looked at anew."""


linecache.checkcache = _unchecked

SHARES_SPARK = ("tests/spark_export/compaction/", "tests/spark_export/archives/")
"""Folders whose tests have one Spark in their process; two, so that two processes can share the work."""

TAKEN_TOGETHER = (*SHARES_SPARK, "tests/docker/")
"""Folders whose tests all run in one process: they share something that is slow to start, or that may exist only once.
They come first."""

JVMS_OF_THEIR_OWN = "tests/spark_export/compaction/test_commands.py"
"""Of a folder that is taken together, what comes last: it starts one JVM after the other, and each takes 11 s of CPU
until there is the archive of classes that the first process makes (`QuickJvm`), and 5 then."""

MINUTES = (
    "tests/faults/test_kills.py",
    "tests/bench/test_bench.py",
    "tests/faults/test_power.py",
    "tests/spark_export/test_service.py",
    "tests/faults/test_network.py",
    "tests/soak/",
    "tests/integration/test_cluster.py",
    "tests/spark_export/test_s3_publishing.py",
    "tests/gateway/test_hostile.py",
    "tests/store/test_comparison.py",
    "tests/faults/",
    "tests/fuzz/",
    "tests/crowd/",
    "tests/docs/",
)
"""Files and folders whose tests take the better part of a minute, or several; they come next, in this order."""

LONGEST_FIRST = ("spark", "fuzz", "browser", "integration", "slow")
"""Markers of other long tests, in the order in which they run. Tests without any of these markers come last."""


class _FilesAndFolders(LoadScopeScheduling):  # type: ignore[misc]
    """Gives each process the next file, or the next of TAKEN_TOGETHER.

    The groups of xdist 3.8 have no effect: it renames tests by `_nodeid`, which pytest 9.2 does not read.
    """

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        return next((folder for folder in TAKEN_TOGETHER if file.startswith(folder)), file)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> LoadScopeScheduling:
    """Say which tests stay together when several processes share them."""
    return _FilesAndFolders(config, log)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put tests in order when several processes share them.

    Raises:
        pytest.UsageError: a test would start one more Spark.
    """
    if elsewhere := [
        item.nodeid
        for item in items
        if "spark" in getattr(item, "fixturenames", ()) and not item.nodeid.startswith(SHARES_SPARK)
    ]:
        raise pytest.UsageError(f"only tests in {SHARES_SPARK} may share Spark, and not {elsewhere}")
    if "PYTEST_XDIST_WORKER" in os.environ:
        items.sort(key=_rank)


def pytest_collection_finish() -> None:
    """Have the garbage collector leave alone what stays until the end. That took a third of the unit tests' time."""
    gc.collect()
    gc.freeze()


def pytest_unconfigure() -> None:
    """Have it collect everything at the end. Extensions report on stderr whatever is left, as leaked."""
    gc.unfreeze()


@pytest.fixture(scope="session", autouse=True)
def _quick_spark(request: pytest.FixtureRequest) -> Iterator[None]:
    """Spark's JVMs and workers start quickly. The first of several processes makes what that takes."""
    if any(item.get_closest_marker("spark") for item in request.session.items):
        cache = request.config.cache.mkdir("jvm")
        jvm = QuickJvm(cache)
        os.environ[OPTIONS] = jvm.options
        os.environ[WORKERS] = str(quick_python(cache))
        if os.environ.get("PYTEST_XDIST_WORKER", "gw0") == "gw0":
            jvm.begin()
        yield
        jvm.end()
    else:
        yield


def _rank(item: pytest.Item) -> int:
    if item.nodeid.startswith(TAKEN_TOGETHER):
        return -len(MINUTES) - 2 + item.nodeid.startswith(JVMS_OF_THEIR_OWN)
    for rank, path in enumerate(MINUTES, -len(MINUTES)):
        if item.nodeid.startswith(path):
            return rank
    return next((rank for rank, name in enumerate(LONGEST_FIRST) if item.get_closest_marker(name)), len(LONGEST_FIRST))


@pytest.fixture
def screenshots(tmp_path: Path) -> Path:
    """Where screenshots of pages go: the folder SCREENSHOTS, for a person to look at, or a temporary one."""
    folder = Path(os.environ.get("SCREENSHOTS", tmp_path / "screenshots"))
    folder.mkdir(parents=True, exist_ok=True)
    return folder


SLOW_STEPS = (
    "Executing %s took",
    "Executing %r took",  # uvloop's timers
)


def _is_no_slow_step(record: logging.LogRecord) -> bool:
    return not str(record.msg).startswith(SLOW_STEPS)


# Tests compare what is logged, and on a busy machine the debug mode of asyncio reports slow steps.
logging.getLogger("asyncio").addFilter(_is_no_slow_step)


@pytest.fixture(autouse=True)
def _process_as_it_was() -> Iterator[None]:
    """A command that runs in this process sets up logging and handles SIGTERM, which later tests must not see."""
    root = logging.getLogger()
    loggers = [root, *map(logging.getLogger, (*logs.OUR_PACKAGES, "py4j"))]
    levels, hook, on_sigterm = [logger.level for logger in loggers], sys.excepthook, signal.getsignal(signal.SIGTERM)
    yield
    if signal.getsignal(signal.SIGTERM) is not on_sigterm:
        signal.signal(signal.SIGTERM, on_sigterm)
    for handler in [handler for handler in root.handlers if type(handler).__module__ == logs.__name__]:
        root.removeHandler(handler)
    for logger, level in zip(loggers, levels, strict=True):
        logger.setLevel(level)
    logging.captureWarnings(capture=False)
    sys.excepthook = hook


@pytest.fixture(scope="module")
def own_server() -> Iterator[Server]:
    """A PostgreSQL of a module's own, which may be stopped."""
    with running_server(QUICK) as server:
        yield server


@pytest.fixture(scope="module")
def durable_server() -> Iterator[Server]:
    """The same, which has on disk only what somebody has asked it to have there."""
    with running_server({**FORGETFUL, "autovacuum": "off"}) as server:
        yield server
