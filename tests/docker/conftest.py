"""One project of the real compose file for all tests that need an engine; they are marked `docker`."""

import os
from collections.abc import Iterator

import pytest

from tests.docker.engine import engine_fault
from tests.docker.stack import Stack


@pytest.fixture(scope="session")
def engine() -> None:
    """A Docker engine. CI always has one; elsewhere, tests are skipped without."""
    fault = engine_fault()
    if fault and os.environ.get("CI"):
        pytest.fail(fault)
    if fault:
        pytest.skip(fault)


@pytest.fixture(scope="session")
def built(engine: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """The project with its images, nothing started."""
    stack = Stack(tmp_path_factory.mktemp("stack"))
    try:
        stack.build()
        yield stack
    finally:
        stack.remove()
