"""Stores whose message ids do not wait to be indexed, for tests that do not judge how long they wait."""

import contextlib
from collections.abc import Iterator

import pytest

from mailserver.store.engine import index_wait
from mailserver.store.postgres import indexing
from mailserver.store.sqlite import writer


@contextlib.contextmanager
def ids_indexed_at_once() -> Iterator[None]:
    """Message ids are indexed as soon as nothing waits for the disk."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(index_wait, "INDEX_DELAY_S", 0.0)
        patch.setattr(index_wait, "FLOOD_S", 0.0)
        patch.setattr(writer, "INDEX_INTERVAL_S", 0.0)
        patch.setattr(indexing, "INDEX_INTERVAL_S", 0.0)
        yield
