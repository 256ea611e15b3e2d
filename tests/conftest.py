"""What every test leaves as it found it, and which examples properties are tested with."""

import logging
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from mailserver import logs
from tests import properties

properties.register()


@pytest.fixture
def screenshots(tmp_path: Path) -> Path:
    """Where pictures of pages go: SCREENSHOTS, to be looked at, or a folder that goes with the test."""
    folder = Path(os.environ.get("SCREENSHOTS", tmp_path / "screenshots"))
    folder.mkdir(parents=True, exist_ok=True)
    return folder


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
