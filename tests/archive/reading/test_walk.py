"""mailserver.archive.reading.walk: all envelopes of a period, and those of some seconds."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from mailserver.archive.access.folder import FolderFiles
from mailserver.archive.reading import walk
from mailserver.archive.reading.source import ArchiveSource
from mailserver.errors import StoreError
from mailserver.metrics.registry import Metrics
from mailserver.store.interface import OURSELVES, NewEnvelope
from tests.archive.reading.parquet import envelope, write_period
from tests.store.samples import NEWS, SPORT, START


@contextmanager
def reading(archive: Path) -> Iterator[ArchiveSource]:
    source = ArchiveSource(
        FolderFiles(archive), at_once=2, cache_bytes=2**20, is_expected=lambda: True, metrics=Metrics()
    )
    try:
        yield source
    finally:
        source.close()


def some(count: int, *, created: int | None = None) -> list[NewEnvelope]:
    """Envelopes one a second, or all of one, topics in turns."""
    return [
        envelope(number, created=START + number if created is None else created, topic=(NEWS, SPORT)[number % 2])
        for number in range(count)
    ]


@pytest.mark.parametrize("index", [True, False], ids=["index", "no index"])
async def test_period_is_read_whole_and_from_any_row_group_on(tmp_path: Path, *, index: bool) -> None:
    kept = some(21)
    write_period(tmp_path, kept, group_rows=4, index=index)

    with reading(tmp_path) as source:
        (period,) = await source.periods()
        parts = [part async for part in source.walk(period, 0)]
        rest = [part async for part in source.walk(period, 2)]

    assert sorted(raw for part in parts for raw in part.raws) == sorted(each.raw for each in kept)
    assert [part.end for part in parts] == [*range(1, len(parts) + 1)]
    assert [part.is_all for part in parts] == [False] * (len(parts) - 1) + [True]
    assert rest == parts[2:]


async def test_walk_of_a_period_that_was_replaced_ends_and_that_of_a_damaged_one_fails(tmp_path: Path) -> None:
    files = write_period(tmp_path, some(9), snapshot=False)

    with reading(tmp_path) as source:
        (period,) = await source.periods()
        for file in files:
            file.unlink()
        newer = write_period(tmp_path, some(10), run="run-2", snapshot=False)
        assert [part async for part in source.walk(period, 0) if part.is_all] == []

        (period,) = await source.periods()
        for file in newer:
            file.unlink()
        with pytest.raises(StoreError, match="is missing"):
            await anext(source.walk(period, 0))


async def test_envelopes_of_some_seconds_and_topics_are_read_and_no_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(walk, "MATCHES_AT_ONCE", 3)
    kept = [*some(20), *(envelope(number, created=START + 4, topic=NEWS) for number in range(100, 110))]
    write_period(tmp_path, kept)
    wanted = [each for each in kept if each.topic == NEWS and each.created in (START + 4, START + 9, START + 10)]
    known = {wanted[0].hash, wanted[-1].hash}

    with reading(tmp_path) as source:
        seconds = {START + 4, START + 9, START + 10}
        parts = source.of_seconds({NEWS}, seconds, known=known, payer=OURSELVES)
        found = [each async for part in parts for each in part]

    assert sorted(found) == sorted((each.hash, None if each.hash in known else each.raw) for each in wanted)
