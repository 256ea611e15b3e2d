"""What these tests share: where a store is to be, and stores of whatever envelopes they give."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from mailserver.store.engine import index_wait
from mailserver.store.interface import NewEnvelope
from mailserver.store.sqlite import writer
from mailserver.store.sqlite.schema import STORE_FILE
from tests.store.samples import make_store
from tests.store.sqlite.statements import Made, Statements


@pytest.fixture(scope="module", autouse=True)
def _indexed_at_once() -> Iterator[None]:
    """Message ids are indexed as soon as nothing waits for the disk."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(index_wait, "INDEX_DELAY_S", 0.0)
        patch.setattr(writer, "INDEX_INTERVAL_S", 0.0)
        yield


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
