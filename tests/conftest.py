"""What every test leaves as it found it, which examples properties are tested with, and who runs what.

`make test` has two processes run the tests. Each takes the next file when it is done with one; some folders are
taken as one file, so that Spark and the containers start once. What takes longest begins first.
"""

import logging
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling

from mailserver.app import logs
from tests import properties

properties.register()
os.environ.setdefault("SPARK_CONF_DIR", str(Path(__file__).parent / "spark_conf"))

TAKEN_TOGETHER = ("tests/spark_export/", "tests/docker/")
"""Folders whose tests one process takes, all of them: they share what is slow to start, or may be there once. They come
first."""

LONGEST_FIRST = ("spark", "fuzz", "browser", "integration")
"""Markers of other tests that take long, in the order in which they come; what has none of them comes last."""


class _FilesAndFolders(LoadScopeScheduling):  # type: ignore[misc]
    """Gives each process the next file, or the next of TAKEN_TOGETHER.

    The groups of xdist 3.8 have no effect: it renames tests by `_nodeid`, which pytest 9.2 does not read.
    """

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        return next((folder for folder in TAKEN_TOGETHER if file.startswith(folder)), file)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> LoadScopeScheduling:
    """Say which tests belong together, where several processes share them."""
    return _FilesAndFolders(config, log)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put tests in order, where several processes share them."""
    if "PYTEST_XDIST_WORKER" in os.environ:
        items.sort(key=_rank)


def _rank(item: pytest.Item) -> int:
    if item.nodeid.startswith(TAKEN_TOGETHER):
        return -1
    return next((rank for rank, name in enumerate(LONGEST_FIRST) if item.get_closest_marker(name)), len(LONGEST_FIRST))


@pytest.fixture
def screenshots(tmp_path: Path) -> Path:
    """Where pictures of pages go: SCREENSHOTS, to be looked at, or a folder that goes with the test."""
    folder = Path(os.environ.get("SCREENSHOTS", tmp_path / "screenshots"))
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _is_no_slow_step(record: logging.LogRecord) -> bool:
    return not str(record.msg).startswith("Executing %s took")


# What asyncio says of its debug mode, on a machine that does other things, too: tests compare what is logged.
logging.getLogger("asyncio").addFilter(_is_no_slow_step)


@pytest.fixture(autouse=True)
def _logging_as_it_was() -> Iterator[None]:
    """A command that is run in this process sets logging up for all tests that come after it."""
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
