"""mailserver.monitoring.last_day_file: the history outlives a restart, and a bad file stops nobody."""

import asyncio
import logging
import os
import stat
import threading
from pathlib import Path

import pytest

from mailserver.files import write_atomically
from mailserver.metrics.registry import Metrics
from mailserver.monitoring import last_day_file as file_module
from mailserver.monitoring.last_day import Column, LastDay, Minutes
from mailserver.monitoring.last_day_file import HISTORY_FILE, MAX_FILE_BYTES, LastDayFile
from tests.mailservers import NOW, Clock
from tests.monitoring.samples import NODE, minutes
from tests.waiting import turns, until


def history(taken: int = 0) -> LastDay:
    metrics = Metrics()
    made = LastDay(metrics, Clock(), lambda: 6000.0)
    made.begin(NODE)
    if taken:
        metrics.new.inc(taken)
        made.note(NODE, 0.0)
    return made


def taken(made: LastDay) -> list[float]:
    return list(made.minutes().columns[Column.TAKEN.value])


async def test_history_goes_on_after_a_restart(tmp_path: Path) -> None:
    await LastDayFile(tmp_path, history(7)).save()

    after = history()
    LastDayFile(tmp_path, after).load()

    assert taken(after) == [7]
    assert stat.S_IMODE((tmp_path / HISTORY_FILE).stat().st_mode) == 0o600


async def test_it_is_saved_again_and_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_module, "SAVE_INTERVAL_S", 0.01)
    keeping = asyncio.create_task(LastDayFile(tmp_path, history(7)).keep())

    for _ in range(2):
        await until((tmp_path / HISTORY_FILE).exists)
        (tmp_path / HISTORY_FILE).unlink()

    keeping.cancel()
    await asyncio.wait([keeping])


async def test_it_is_saved_at_the_end(tmp_path: Path) -> None:
    keeping = asyncio.create_task(LastDayFile(tmp_path, history(7)).keep())
    await turns()
    keeping.cancel()
    await asyncio.wait([keeping])

    after = history()
    LastDayFile(tmp_path, after).load()
    assert taken(after) == [7]


async def test_end_in_the_middle_of_a_save_waits_for_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_module, "SAVE_INTERVAL_S", 0.0)
    begun, go_on = threading.Event(), threading.Event()
    at_once = 0

    def slow_write(path: Path, text: str) -> None:
        nonlocal at_once
        at_once += 1
        assert at_once == 1, "two at once"
        begun.set()
        assert go_on.wait(10)
        write_atomically(path, text)
        at_once -= 1

    monkeypatch.setattr(file_module, "write_atomically", slow_write)
    keeping = asyncio.create_task(LastDayFile(tmp_path, history(7)).keep())
    await until(begun.is_set)
    keeping.cancel()
    asyncio.get_running_loop().call_later(0.05, go_on.set)
    await asyncio.wait([keeping])

    assert keeping.cancelled()
    assert (tmp_path / HISTORY_FILE).exists()


def test_without_a_file_it_begins_with_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    after = history()
    LastDayFile(tmp_path, after).load()

    assert taken(after) == []
    assert caplog.records == []


@pytest.mark.parametrize("data", [b"", b"{}", b"\x00" * 5000, b"[" * 100_000, b" " * (MAX_FILE_BYTES + 1)])
async def test_damaged_file_is_set_aside_with_one_line(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, data: bytes
) -> None:
    (tmp_path / HISTORY_FILE).write_bytes(data)
    after = history(3)

    file = LastDayFile(tmp_path, after)
    file.load()

    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert record.getMessage().startswith("figures of the last day are damaged, they begin anew aside=")
    assert (tmp_path / f"{HISTORY_FILE}.damaged").read_bytes() == data
    await file.save()
    assert taken(after) == [3]
    assert (tmp_path / HISTORY_FILE).exists()


def test_file_that_cannot_be_read_stops_nobody(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / HISTORY_FILE).mkdir()

    LastDayFile(tmp_path, history()).load()

    (record,) = caplog.records
    assert record.getMessage().startswith("figures of the last day not read error=")


async def test_file_that_cannot_be_written_is_said_once_until_it_can(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    blocked = tmp_path / f"{HISTORY_FILE}.tmp"
    blocked.mkdir()
    (blocked / "here").touch()
    file = LastDayFile(tmp_path, history(1))

    await file.save()
    await file.save()
    assert [record.getMessage().split(" error=")[0] for record in caplog.records] == [
        "figures of the last day not saved"
    ]

    (blocked / "here").unlink()
    blocked.rmdir()
    await file.save()
    (tmp_path / HISTORY_FILE).unlink()
    (tmp_path / HISTORY_FILE).mkdir()
    await file.save()
    assert len(caplog.records) == 2


async def test_full_disk_leaves_the_old_file(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    await LastDayFile(tmp_path, history(7)).save()
    before = (tmp_path / HISTORY_FILE).read_bytes()
    real_open = os.open

    def on_full_disk(path: os.PathLike[str] | str, flags: int, mode: int = 0o777) -> int:
        return real_open("/dev/full", os.O_WRONLY) if str(path).endswith(".tmp") else real_open(path, flags, mode)

    monkeypatch.setattr(os, "open", on_full_disk)
    monkeypatch.setattr(os, "fchmod", lambda descriptor, mode: None)
    await LastDayFile(tmp_path, history(8)).save()

    assert (tmp_path / HISTORY_FILE).read_bytes() == before
    assert "No space left on device" in caplog.text


async def test_whole_day_takes_little(tmp_path: Path) -> None:
    day: Minutes = minutes(1440, NOW - 1439 * 60, taken=1234567, bytes_out=123456789, lag_s=0.123456)
    made = history()
    made.resume(day)

    await LastDayFile(tmp_path, made).save()

    assert (tmp_path / HISTORY_FILE).stat().st_size < MAX_FILE_BYTES / 10
