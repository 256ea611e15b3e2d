"""mailserver.app.history: where requests are answered from, by the settings and by what is installed."""

import importlib.util
import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest

from mailserver.app.config import Config
from mailserver.app.history import open_history, reads_at_once
from mailserver.errors import StoreError
from mailserver.history.merged import MergedHistory
from mailserver.metrics.registry import Metrics
from mailserver.store.interface import Query
from mailserver.store.sqlite.schema import STORE_FILE
from mailserver.store.sqlite.store import open_store
from tests.archive.reading.parquet import envelope, write_period
from tests.s3 import fake_s3
from tests.store.samples import EVER, EVERY_BYTE, FULL, NEWS, START


def said(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [f"{record.levelname} {record.message}" for record in caplog.records]


@pytest.mark.parametrize("config", [Config(), Config(archive="/archive", answer_from_archive=False)])
async def test_store_answers_alone_where_nothing_else_is_asked_for(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, config: Config
) -> None:
    caplog.set_level(logging.INFO, "mailserver.app")
    async with open_store(tmp_path / STORE_FILE) as store:
        with open_history(config, store, Metrics()) as history:
            await history.prepare()
            assert history.source is store
            assert history.archive_problem() == ""
    assert said(caplog) == []


async def test_store_answers_alone_where_the_archive_cannot_be_seen_from_here(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "mailserver.app")
    async with open_store(tmp_path / STORE_FILE) as store:
        with open_history(Config(archive="hdfs://host/archive"), store, Metrics()) as history:
            assert history.source is store
    assert said(caplog) == [
        "WARNING history is not answered from the archive cause='it is neither in a local folder nor on S3'"
    ]


@pytest.mark.parametrize("library", ["pyarrow", "numpy"])
async def test_absence_of_a_library_is_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, library: str
) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, package=None: None if name == library else find(name, package)
    )
    caplog.set_level(logging.INFO, "mailserver.app")
    async with open_store(tmp_path / STORE_FILE) as store:
        with open_history(Config(archive=str(tmp_path)), store, Metrics()) as history:
            assert history.source is store
    assert said(caplog) == [f"WARNING history is not answered from the archive cause='{library} is not installed'"]


def test_daemon_needs_no_library_of_the_archive_where_it_is_not_asked_for() -> None:
    look = (
        "import importlib, pkgutil, sys, mailserver.app.daemon, mailserver.commands as all\n"
        "for _, name, _ in pkgutil.iter_modules(all.__path__): importlib.import_module(f'{all.__name__}.{name}')\n"
        "print({'pyarrow', 'numpy'} & sys.modules.keys())"
    )

    done = subprocess.run([sys.executable, "-c", look], capture_output=True, text=True, check=True)

    assert done.stdout == "set()\n"


async def test_archive_answers_what_the_store_has_no_more(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "mailserver.app")
    archive, kept = tmp_path / "archive", envelope(1, created=START, topic=NEWS)
    (file,) = write_period(archive, [kept], snapshot=False)
    async with open_store(tmp_path / STORE_FILE) as store:
        with open_history(Config(archive=f"file://{archive}", archive_reads=2), store, Metrics()) as history:
            assert isinstance(history.source, MergedHistory)
            page = await history.source.find(Query(*EVER, FULL), 10)
            assert (await page.read(1, EVERY_BYTE)).split() == [kept.raw]
            assert history.archive_problem() == ""

            file.write_bytes(b"")
            page = await history.source.find(Query(*EVER, FULL), 10)  # what is in memory says where it is
            with pytest.raises(StoreError):
                await page.read(1, EVERY_BYTE)
            assert "0 bytes instead of" in history.archive_problem()
    told, failed = said(caplog)
    assert told == f"INFO history is answered from the archive, too archive={archive} reads=2 cache_bytes=67108864"
    assert failed.startswith("ERROR archive cannot be read error=")


async def test_archive_on_s3_answers(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.INFO, "mailserver.app")
    kept = envelope(1, created=START, topic=NEWS)
    write_period(tmp_path / "archive", [kept], snapshot=False)
    async with open_store(tmp_path / STORE_FILE) as store:
        with fake_s3(monkeypatch) as s3:
            s3.upload(tmp_path / "archive")
            with open_history(Config(archive=s3.url), store, Metrics()) as history:
                page = await history.source.find(Query(*EVER, FULL), 10)
                assert (await page.read(1, EVERY_BYTE)).split() == [kept.raw]
    assert f"archive={s3.url} " in said(caplog)[0]


async def test_archive_that_was_never_written_is_none_unless_a_run_says_so(tmp_path: Path) -> None:
    path = tmp_path / STORE_FILE
    async with open_store(path) as store:
        with open_history(Config(archive=str(tmp_path / "archive")), store, Metrics()) as history:
            page = await history.source.find(Query(*EVER, FULL), 10)
            assert page.left == 0

            path.with_name("mailserver.db-archived.json").write_text("no record")
            with pytest.raises(StoreError, match="is its disk mounted"):
                await history.source.find(Query(*EVER, FULL), 10)


@pytest.mark.parametrize(
    ("archive", "cpus", "threads"),
    [("/archive", 1, 1), ("/archive", 2, 1), ("/archive", 3, 2), ("/archive", 64, 4), ("s3://bucket/archive", 1, 4)],
)
def test_so_many_threads_read_that_others_find_a_cpu(
    archive: str, cpus: int, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(cpus)))

    assert reads_at_once(archive) == threads
