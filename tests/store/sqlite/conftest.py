"""What these tests share: where a store is to be, and stores of whatever envelopes they give."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from mailserver.store.interface import NewEnvelope
from mailserver.store.sqlite.schema import STORE_FILE
from tests.store.samples import make_store
from tests.store.sqlite.statements import Made, Statements


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where a store is to be, in a folder of its own; nothing is there yet."""
    folder = tmp_path / "data"
    folder.mkdir()
    return folder / STORE_FILE


@pytest.fixture
def made(tmp_path: Path) -> Iterator[Made]:
    """Makes a store of these envelopes and opens it."""
    opened: list[Statements] = []

    def make(envelopes: Sequence[NewEnvelope]) -> Statements:
        path = tmp_path / f"{len(opened)}.db"
        make_store(path, envelopes)
        opened.append(Statements(path))
        return opened[-1]

    yield make
    for statements in opened:
        statements.connection.close()
