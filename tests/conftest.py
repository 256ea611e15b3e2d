"""For all tests: restores logging after each, chooses the examples of property tests, makes Spark start quickly,
keeps garbage collection short, and has several processes share the tests as `tests.sharing` says."""

import asyncio.constants
import gc
import linecache
import logging
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling

from mailserver.app import logs
from tests.in_memory import keep_in_memory
from tests.measuring import UNMEASURED, first_examples_measured, only_imports_measured, unmeasured_from_here
from tests.properties import register_profiles
from tests.quick_spark import OPTIONS, WORKERS, QuickJvm, quick_python
from tests.sharing import SHARES_SPARK, FilesAndFolders, give_way, rank
from tests.store.postgres.server import FORGETFUL, QUICK, Server, running_server

register_profiles()
keep_in_memory()

# In asyncio's debug mode, futures and calls keep the stack of their making: with whole ones, that took a third of such
# tests' time. The innermost frames say where it was.
sys.tracebacklimit = 8
asyncio.constants.DEBUG_STACK_DEPTH = 3  # type: ignore[misc]  # "final" there; our tests are not the library


def _unchecked(filename: str | None = None) -> None:
    """Files of source do not change while tests run. For each of these stacks all of theirs would be looked at anew."""


linecache.checkcache = _unchecked

GC_THRESHOLDS = (50_000, 10, 100)
"""As of gc.set_threshold: garbage is collected rarely, since next to nothing of a test is in cycles."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Some of the processes that share the tests may be of another kind than the others."""
    for name, does in (("waiting", "take what mostly waits"), ("patient", "run while the others wait")):
        parser.addoption(f"--{name}", type=int, default=0, metavar="NUM", help=f"so many of the processes of -n {does}")


def pytest_configure(config: pytest.Config) -> None:
    """Have a patient process give way from the start."""
    give_way(config)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> LoadScopeScheduling:
    """Say which tests stay together when several processes share them."""
    return FilesAndFolders(config, log)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Collect what is not measured, but for what it imports."""
    with only_imports_measured():
        yield


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
        items.sort(key=rank)


def pytest_collection_finish() -> None:
    """Have the garbage collector leave alone what stays until the end. That took a third of the unit tests' time."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)


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


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """Leave some tests unmeasured. (The marker `no_cover` of pytest-cov 7.1 has no effect with several processes.)"""
    with unmeasured_from_here() as stop:
        if item.nodeid.startswith(UNMEASURED):
            stop()
        with first_examples_measured(getattr(item, "obj", None), stop):
            yield


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
def _logging_as_it_was() -> Iterator[None]:
    """A command that runs in this process sets up logging, which later tests must not see."""
    root = logging.getLogger()
    loggers = [root, *map(logging.getLogger, logs.OUR_PACKAGES)]
    levels, hook = [logger.level for logger in loggers], sys.excepthook
    yield
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
