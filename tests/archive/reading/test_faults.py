"""What is wrong with an archive is an error of the request that meets it, and of no other; nothing wrong is sent."""

# ruff: noqa: ASYNC240 - the folders of a test are on a disk that answers

import asyncio
import json
import logging
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from io import BytesIO
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from mailserver.archive import files as archive_files
from mailserver.archive.access import folder
from mailserver.archive.access.folder import FolderFiles
from mailserver.archive.index.reader import read_directory, read_fragment
from mailserver.archive.index.writer import IndexWriter
from mailserver.archive.manifest import decode_record, encode_record
from mailserver.archive.paths import RECORDS
from mailserver.archive.reading import catalog, reads
from mailserver.archive.reading.source import REMEMBERED_S, ArchiveSource
from mailserver.errors import StoreError
from mailserver.metrics.registry import Metrics, count_of
from mailserver.store.interface import OURSELVES, Query
from mailserver.waku.bloom import Interest
from tests.archive.reading.asking import Asking
from tests.archive.reading.parquet import envelope, publish, settle, write_period
from tests.loops import without_debug
from tests.nobody import as_nobody, folder_for_all
from tests.store.engines import EVERYTHING
from tests.store.samples import DAY, EVER, FULL, NEWS, SPORT, START, answer, raws
from tests.waiting import DEADLINE_S

KEPT = [
    envelope(number, created=START + 3600 * number, topic=(NEWS, SPORT)[number % 2], size=100) for number in range(40)
]
ON_FIRST_DAY = [one for one in KEPT if one.received < START + DAY]


class Reading(Asking):
    """A source, and a clock for how long it remembers."""

    def __init__(self, archive: Path, *, cache_bytes: int = 0, expected: bool = True) -> None:
        self.now = 0.0
        self.metrics = Metrics()
        self.source = ArchiveSource(
            FolderFiles(archive),
            at_once=1,
            cache_bytes=cache_bytes,
            is_expected=lambda: expected,
            metrics=self.metrics,
            clock=lambda: self.now,
        )


class CountedReads(FolderFiles):
    """`read_names`: which small files were read."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.read_names: list[str] = []

    def read(self, name: str) -> str | None:
        self.read_names.append(name)
        return super().read(name)


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    """An archive of two days."""
    return archive_in(tmp_path)


def archive_in(folder: Path) -> Path:
    archive = folder / "archive"
    write_period(archive, ON_FIRST_DAY)
    write_period(archive, [one for one in KEPT if one not in ON_FIRST_DAY])
    return archive


def files(archive: Path) -> list[Path]:
    """Every name of a file of the first day."""
    return [path for path in archive.rglob("part-*") if "2024-10-04" in str(path)]


def truncate(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-20])


def flip(file: Path) -> None:
    metadata = pq.ParquetFile(file).metadata
    column = metadata.row_group(0).column(metadata.num_columns - 1)  # raw
    content = bytearray(file.read_bytes())
    content[column.data_page_offset + column.total_compressed_size - 20] ^= 1
    file.unlink()
    file.write_bytes(content)


def overwrite(file: Path) -> None:
    file.write_bytes(bytes(file.stat().st_size))


def put_a_folder_there(file: Path) -> None:
    file.unlink()
    file.mkdir()


BREAKS: list[tuple[Callable[[Path], None], str]] = [
    (truncate, "instead of"),
    (flip, "cannot read"),
    (overwrite, "cannot read"),
    (Path.unlink, "is missing"),
    (put_a_folder_there, "cannot read"),
]


@pytest.mark.parametrize(("spoil", "cause"), BREAKS)
async def test_file_that_is_spoilt_fails_what_needs_it_and_nothing_else(
    archive: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, spoil: Callable[[Path], None], cause: str
) -> None:
    shutil.copytree(archive, tmp_path / "whole")
    reading = Reading(archive)
    assert await reading.answer() == raws(answer(KEPT, EVERYTHING))
    for file in files(archive):
        if file.exists():
            spoil(file)

    assert cause in await reading.refusal()
    assert reading.source.problem
    assert count_of(reading.metrics.archive_read_failures) == 1
    after = Query(START + DAY, EVER[1], FULL)
    assert await reading.answer(after) == raws(answer(KEPT, after))
    await reading.refusal()
    assert [record.levelno for record in caplog.records if "archive cannot be read" in record.message] == [
        logging.ERROR
    ]

    shutil.rmtree(archive)
    (tmp_path / "whole").rename(archive)
    assert await reading.answer() == raws(answer(KEPT, EVERYTHING))
    reading.now = REMEMBERED_S
    assert reading.source.problem == ""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("digests", "index", "noticed_one_in"),
    [(True, False, 4), (False, False, 20), (False, True, 100)],
    ids=["digest", "nothing", "index"],
)
async def test_no_flipped_bit_is_ever_sent(tmp_path: Path, *, digests: bool, index: bool, noticed_one_in: int) -> None:
    kept = [one for one in KEPT[:12] if one.topic == NEWS]
    (file,) = write_period(tmp_path, kept, snapshot=False, digests=digests, index=index)
    expected = raws(answer(kept, EVERYTHING))
    content = file.read_bytes()
    footer_bytes = int.from_bytes(content[-8:-4], "little")
    is_footer_believed = not digests and not index
    reading = Reading(tmp_path)
    refused = 0

    assert await reading.answer() == expected
    with without_debug():
        for at in range(0, len(content) - (footer_bytes + 8 if is_footer_believed else 0), 3):
            file.write_bytes(content[:at] + bytes([content[at] ^ 4]) + content[at + 1 :])
            try:
                found = await reading.answer()
            except StoreError:
                refused += 1
                continue
            assert found == expected, at
    assert refused > len(content) // noticed_one_in


@pytest.mark.slow
async def test_without_its_index_a_period_is_answered_all_the_same(
    archive: Path, caplog: pytest.LogCaptureFixture
) -> None:
    index = archive / "_index" / "date=2024-10-04" / "run=run-1.index"
    content = index.read_bytes()
    reading = Reading(archive)
    spoilt = [content[:at] + bytes([content[at] ^ 4]) + content[at + 1 :] for at in range(0, len(content), 97)]

    with without_debug():
        for one in (*spoilt, content[:-1], b""):
            index.write_bytes(one)
            assert await reading.answer() == raws(answer(KEPT, EVERYTHING))
    index.unlink()
    assert await reading.answer() == raws(answer(KEPT, EVERYTHING))

    assert [record.message.partition(" error=")[0] for record in caplog.records] == [
        "archive is read without its index"
    ]
    assert reading.source.problem == f"requests are answered from the archive slowly: {index} is missing"
    assert count_of(reading.metrics.archive_read_failures) == 0
    index.write_bytes(content)
    reading.now = REMEMBERED_S
    assert await reading.answer() == raws(answer(KEPT, EVERYTHING))
    assert reading.source.problem == ""


async def test_keys_that_are_damaged_in_the_index_are_read_of_the_file(archive: Path) -> None:
    reading = Reading(archive, cache_bytes=2**20)
    only_news = Query(*EVER, Interest(topics=frozenset({NEWS})))
    await reading.answer(only_news)
    index = archive / "_index" / "date=2024-10-04" / "run=run-1.index"
    content = bytearray(index.read_bytes())
    content[16:1000] = bytes(984)
    index.write_bytes(content)

    assert await reading.answer() == raws(answer(KEPT, EVERYTHING))
    assert "the digest of a row group's keys does not match" in reading.source.problem


async def test_index_of_other_files_is_not_used(archive: Path) -> None:
    write_period(archive, [*ON_FIRST_DAY, KEPT[-1]], period="2024-10-04", files_of=3, snapshot=False)
    record = archive / "_records" / "2024-10-04.json"
    said = decode_record(record.read_text(), "record")
    record.write_text(encode_record(replace(said, files=said.files[1:])))
    reading = Reading(archive)

    await reading.answer()

    assert "the index is of other files" in reading.source.problem


@pytest.mark.parametrize(
    ("folder", "mode"), [(".", 0), (RECORDS, 0), (RECORDS, 0o744)], ids=["all", "records", "names"]
)
async def test_permission_that_is_taken_away_is_a_fault_until_it_is_given_back(folder: str, mode: int) -> None:
    with folder_for_all() as place:
        archive = archive_in(place)
        reading = Reading(archive)

        (archive / folder).chmod(mode)
        with as_nobody():
            refusal = await reading.refusal()
        (archive / folder).chmod(0o755)

        assert "Permission denied" in refusal
        assert await reading.answer() == raws(answer(KEPT, EVERYTHING))


async def test_archive_that_is_gone_is_a_fault_until_it_is_back(archive: Path) -> None:
    reading = Reading(archive, expected=False)  # it was seen
    assert len(await reading.answer()) == 40
    archive.rename(archive.with_name("elsewhere"))

    assert "is its disk mounted?" in await reading.refusal()
    archive.mkdir()  # where its disk was mounted
    assert "is its disk mounted?" in await reading.refusal()
    archive.rmdir()
    archive.with_name("elsewhere").rename(archive)
    assert len(await reading.answer()) == 40


async def test_archive_that_must_be_there_and_never_was_seen_is_a_fault(tmp_path: Path) -> None:
    assert "is its disk mounted?" in await Reading(tmp_path / "nothing").refusal()


SETTINGS, RECORD, OTHER_RECORD = "_archive.json", "_records/2024-10-04.json", "_records/2024-10-05.json"


def later(text: str) -> str:
    return text.replace('"version": 1', '"version": 2')


def rewritten(text: str) -> str:
    """As a person writes it, or an earlier version: no digest is in its place."""
    return json.dumps(json.loads(text))


TEXTS: list[Callable[[str], str]] = [
    lambda text: text[: len(text) // 2],
    lambda text: "",
    lambda text: "[" * 100_000,
    lambda text: rewritten(text.replace("2024-10-04", "2024-10-05")),
    lambda text: rewritten(text.replace("run-1", "../1")),
    lambda text: text.replace('"created_max": 17', '"created_max": 16'),
]
TEXT_IDS = ["half", "nothing", "deep", "other period", "other folder", "other time"]


def told(caplog: pytest.LogCaptureFixture) -> list[str]:
    """The files that were said to be damaged."""
    return [
        record.message.partition("error=")[2] for record in caplog.records if "archive is damaged" in record.message
    ]


async def test_archive_of_a_later_version_is_not_read(archive: Path) -> None:
    text = (archive / SETTINGS).read_text()
    (archive / SETTINGS).write_text(later(text))
    reading = Reading(archive)

    assert "has version 2, this program knows 1" in await reading.refusal()
    (archive / SETTINGS).write_text(text)
    assert await reading.answer() == raws(answer(KEPT, EVERYTHING))


async def test_record_that_is_too_long_is_one_that_is_not_whole(
    archive: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    records = [*(archive / RECORDS).iterdir()]
    longest = max(record.stat().st_size for record in records)
    for module in (folder, archive_files):
        monkeypatch.setattr(module, "MAX_RECORD_BYTES", longest)
    (archive / RECORD).write_text((archive / RECORD).read_text().ljust(longest + 1))
    reading = Reading(archive)
    after = Query(START + 2 * DAY, EVER[1], FULL)

    assert await reading.answer(after) == []
    assert f"it has more than {longest} bytes" in await reading.refusal()
    assert len(told(caplog)) == 1


async def test_several_damaged_files_are_counted_and_one_is_named(archive: Path) -> None:
    for record in (archive / RECORDS).iterdir():
        record.write_text("")
    (archive / SETTINGS).write_text("")
    reading = Reading(archive)

    assert await reading.answer(Query(START + 4 * DAY, EVER[1], FULL)) == []
    assert reading.source.problem.endswith(", and 2 more")


async def test_record_under_another_name_is_told_and_keeps_nothing_from_anybody(
    archive: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (archive / RECORDS / "2024-10-04 (1).json").write_text((archive / RECORD).read_text())
    reading = Reading(archive)

    assert await reading.answer() == raws(answer(KEPT, EVERYTHING))
    (line,) = told(caplog)
    assert "2024-10-04 (1).json is the record of '2024-10-04'" in line


@pytest.mark.parametrize("name", [SETTINGS, RECORD])
async def test_damaged_file_that_is_put_back_in_its_place_is_read(archive: Path, name: str) -> None:
    text = (archive / name).read_text()
    (archive / name).write_text("")
    settle(archive)
    reading = Reading(archive)
    await reading.source.periods()
    assert reading.source.problem

    (archive / name).write_text(text)  # no name changes in its folder
    settle(archive)

    assert await reading.answer() == raws(answer(KEPT, EVERYTHING))
    assert reading.source.problem == ""


async def test_record_of_which_bits_had_turned_is_read_again_though_its_time_was_set_back(archive: Path) -> None:
    """As `cp -p` puts it back: inode, size and time of modification are what they were."""
    record = archive / RECORD
    text, was = record.read_text(), record.stat()
    record.write_text(text.replace("version", "versiom"))
    os.utime(record, ns=(was.st_atime_ns, was.st_mtime_ns))
    damaged = record.stat()
    reading = Reading(archive)
    assert "is damaged" in await reading.refusal()

    record.write_text(text)
    while (found := record.stat()).st_ctime_ns == damaged.st_ctime_ns or found.st_mtime_ns != damaged.st_mtime_ns:
        os.utime(record, ns=(was.st_atime_ns, was.st_mtime_ns))

    assert (found.st_ino, found.st_size) == (damaged.st_ino, damaged.st_size)
    assert await reading.answer() == raws(answer(KEPT, EVERYTHING))


async def test_damaged_period_comes_last_to_whoever_reads_all(archive: Path) -> None:
    (archive / OTHER_RECORD).write_text("")
    reading = Reading(archive)

    whole, damaged = await reading.source.periods()

    assert (whole.name, damaged.name) == ("2024-10-04", "2024-10-05")
    assert [part.is_all async for part in reading.source.walk(whole, 0)][-1]
    with pytest.raises(StoreError, match="is damaged"):
        await anext(aiter(reading.source.walk(damaged, 0)))


async def test_archive_of_which_the_settings_are_made_anew_is_answered_from(archive: Path) -> None:
    (archive / SETTINGS).unlink()
    reading = Reading(archive)

    assert await reading.answer() == raws(answer(KEPT, EVERYTHING))
    assert reading.source.problem == f"files of the archive are damaged: {archive / SETTINGS} is missing"


@pytest.mark.parametrize("change", TEXTS[:3], ids=TEXT_IDS[:3])
async def test_archive_with_damaged_settings_is_answered_from_and_they_are_told_once(
    archive: Path, caplog: pytest.LogCaptureFixture, change: Callable[[str], str]
) -> None:
    text = (archive / SETTINGS).read_text()
    (archive / SETTINGS).write_text(change(text))
    reading = Reading(archive)

    for _ in range(3):
        assert await reading.answer() == raws(answer(KEPT, EVERYTHING))

    assert reading.source.problem.startswith(f"files of the archive are damaged: {archive / SETTINGS} is damaged: ")
    (line,) = told(caplog)
    assert str(archive / SETTINGS) in line
    assert count_of(reading.metrics.archive_read_failures) == 0

    (archive / SETTINGS).write_text(text)
    write_period(archive, ON_FIRST_DAY, run="run-2")  # a compaction
    assert await reading.answer() == raws(answer(KEPT, EVERYTHING))
    assert reading.source.problem == ""


@pytest.mark.parametrize("change", [later, *TEXTS], ids=["later version", *TEXT_IDS])
async def test_record_that_is_not_whole_fails_what_may_need_it_and_nothing_else(
    archive: Path, caplog: pytest.LogCaptureFixture, change: Callable[[str], str]
) -> None:
    newest = [envelope(number, created=START + 2 * DAY, topic=NEWS) for number in (50, 51)]
    write_period(archive, newest)
    text = (archive / RECORD).read_text()
    (archive / RECORD).write_text(change(text))
    reading = Reading(archive)
    after = Query(START + 2 * DAY, EVER[1], FULL)

    for _ in range(3):
        assert await reading.answer(after) == raws(answer(newest, after))
        first_page = await reading.source.find(EVERYTHING, len(newest), above=None, payer=OURSELVES)
        assert [match.hash for match in first_page.matches] == [one.hash for one in answer(newest, EVERYTHING)]
    assert count_of(reading.metrics.archive_read_failures) == 0
    assert f"{archive / RECORD} " in reading.source.problem
    await reading.refusal()
    await reading.refusal(Query(0, START - DAY, FULL))  # of an earlier day, received on this one
    assert count_of(reading.metrics.archive_read_failures) == 2
    assert len(told(caplog)) == 1

    (archive / RECORD).write_text(text)
    assert len(await reading.answer()) == 42


def link_to(target: str) -> Callable[[Path], None]:
    """Put a link in the place of a file."""

    def put_a_link_there(file: Path) -> None:
        file.unlink()
        file.symlink_to(target)

    return put_a_link_there


UNREADABLE: list[tuple[Callable[[Path], None], str]] = [
    (put_a_folder_there, "cannot read {}: Is a directory"),
    (link_to("/proc/self/mem"), "cannot read {}: Input/output error"),  # its first page is not mapped
    (link_to("2024-10-04.json"), "cannot read {}: Too many levels of symbolic links"),
    (link_to("moved-away"), "{} is listed, but missing: is it a link to what is gone?"),
]


@pytest.mark.parametrize(("spoil", "cause"), UNREADABLE, ids=["folder", "disk", "loop", "link"])
async def test_record_that_cannot_be_read_fails_what_may_need_it_and_nothing_else(
    archive: Path, caplog: pytest.LogCaptureFixture, spoil: Callable[[Path], None], cause: str
) -> None:
    text = (archive / RECORD).read_text()
    spoil(archive / RECORD)
    settle(archive)
    reading = Reading(archive)
    after = Query(START + 2 * DAY, EVER[1], FULL)

    for _ in range(3):
        assert await reading.answer(after) == []
    assert count_of(reading.metrics.archive_read_failures) == 0
    assert cause.format(archive / RECORD) in reading.source.problem
    assert cause.format(archive / RECORD) in await reading.refusal()
    assert told(caplog) == [repr(cause.format(archive / RECORD))]

    if (archive / RECORD).is_dir():
        (archive / RECORD).rmdir()
    else:
        (archive / RECORD).unlink()
    (archive / RECORD).write_text(text)
    settle(archive)
    assert await reading.answer() == raws(answer(KEPT, EVERYTHING))


async def test_link_is_followed_as_soon_as_it_leads_to_a_record(archive: Path) -> None:
    elsewhere = (archive / RECORD).rename(archive / "elsewhere.json")
    (archive / RECORD).symlink_to("../elsewhere.json.gz")
    settle(archive)
    reading = Reading(archive)
    assert "is it a link to what is gone?" in await reading.refusal()

    elsewhere.rename(archive / "elsewhere.json.gz")

    assert await reading.answer() == raws(answer(KEPT, EVERYTHING))


@pytest.mark.parametrize("name", [SETTINGS, RECORD])
async def test_file_that_may_not_be_read_fails_no_more_than_a_damaged_one(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(catalog, "RETRY_S", 0.0)  # nothing about the file changes when we may do more
    with folder_for_all() as place:
        archive = archive_in(place)
        (archive / name).chmod(0o600)
        settle(archive)
        reading = Reading(archive)
        after = Query(START + 2 * DAY, EVER[1], FULL)

        with as_nobody():
            assert await reading.answer(after) == []
            refused = "" if name == SETTINGS else await reading.refusal()
            problem = reading.source.problem

        assert f"cannot read {archive / name}: Permission denied" in problem
        assert ("Permission denied" in refused) == (name == RECORD)
        assert await reading.answer() == raws(answer(KEPT, EVERYTHING))


async def test_record_that_cannot_be_read_is_not_tried_at_each_request(archive: Path) -> None:
    """A disk may take seconds to fail."""
    put_a_folder_there(archive / RECORD)
    files = CountedReads(archive)
    source = ArchiveSource(files, at_once=1, cache_bytes=0, is_expected=lambda: True, metrics=Metrics())
    await source.periods()
    del files.read_names[:]

    await source.periods()

    assert RECORD not in files.read_names


@pytest.mark.parametrize("path", ["../../secret", "topic=0x12/part-1", "other=1/part-1", "topic_prefix=x/part-1"])
async def test_record_of_foreign_files_is_a_fault(archive: Path, path: str) -> None:
    record = archive / "_records" / "2024-10-04.json"
    (name,) = {name for name in record.read_text().split('"') if name.startswith("topic_prefix=9/")}
    record.write_text(rewritten(record.read_text().replace(name, path)))

    assert "the record of 2024-10-04 has" in await Reading(archive).refusal()


async def test_envelope_under_a_wrong_hash_is_not_sent(tmp_path: Path) -> None:
    forged = [one._replace(hash=KEPT[number + 1].hash) for number, one in enumerate(KEPT[:3])]
    write_period(tmp_path, forged)

    assert "is not what its hash says" in await Reading(tmp_path).refusal()


async def test_disk_that_does_not_answer_fails_requests_in_time_and_serves_again(
    archive: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reads, "READ_TIMEOUT_S", 0.1)
    held: list[tuple[Path, Path]] = []
    for file in files(archive):
        held.append((file, tmp_path / str(len(held))))
        file.rename(held[-1][1])
        os.mkfifo(file)  # to open it waits for a writer
    reading = Reading(archive)

    assert "has not answered within" in await reading.refusal()
    monkeypatch.setattr(reads, "TURN_TIMEOUT_S", 0.1)
    async with asyncio.timeout(DEADLINE_S):  # on a busy machine, a read that has an answer may be late, too
        while "none of the threads that read it was free" not in await reading.refusal():
            pass

    for pipe, file in held:
        pipe.rename(pipe.with_suffix(".pipe"))
        file.rename(pipe)
    monkeypatch.undo()
    for pipe in archive.rglob("*.pipe"):
        try:
            os.close(os.open(pipe, os.O_WRONLY | os.O_NONBLOCK))
        except OSError:
            continue
    assert await reading.answer() == raws(answer(KEPT, EVERYTHING))


async def test_index_that_does_not_answer_fails_requests_in_time(
    archive: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reads, "READ_TIMEOUT_S", 0.1)
    index = archive / "_index" / "date=2024-10-04" / "run=run-1.index"
    index.unlink()
    os.mkfifo(index)  # to open it waits for a writer
    reading = Reading(archive)
    only_first = Query(START, START + DAY - 1, FULL)

    assert "has not answered within" in await reading.refusal(only_first)

    os.close(os.open(index, os.O_WRONLY | os.O_NONBLOCK))


async def test_index_that_is_written_anew_is_used(archive: Path) -> None:
    reading = Reading(archive, cache_bytes=2**20)
    of_one_row_group = Query(START, START, FULL)
    assert await reading.answer(of_one_row_group) == raws(answer(KEPT, of_one_row_group))
    index = archive / "_index" / "date=2024-10-04" / "run=run-1.index"
    record = archive / "_records" / "2024-10-04.json"
    said = decode_record(record.read_text(), "record")
    with index.open("r+b") as file, BytesIO() as rest:
        assert said.index is not None
        entries = [*read_directory(file, said.index).entries.values()]
        writer = IndexWriter(rest)
        for entry in reversed(entries):  # all is elsewhere
            writer.add(entry.path, read_fragment(file, entry))
        now = replace(said, index=writer.finish())
        index.write_bytes(rest.getvalue())
    publish(archive, now)

    assert await reading.answer() == raws(answer(KEPT, EVERYTHING))
    assert reading.source.problem == ""


async def test_request_that_is_given_up_leaves_the_thread_to_the_next(archive: Path) -> None:
    reading = Reading(archive)
    for turns in range(12):
        asking = asyncio.create_task(reading.answer())
        for _ in range(turns):
            await asyncio.sleep(0)
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking

    assert len(await reading.answer()) == 40
