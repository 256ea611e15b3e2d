"""mailserver.archive.access.bucket: an archive on S3 answers as in a folder, and each fault of S3 is told in time."""

import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from mailserver.archive.access import bucket as bucket_module
from mailserver.archive.access.bucket import LEASES, READING, BucketFiles, endpoint
from mailserver.archive.access.folder import FolderFiles
from mailserver.archive.access.places import files_of
from mailserver.archive.archive import Archive
from mailserver.archive.errors import ArchiveBusy, ArchiveError, ArchiveFault, ArchiveFileUnreadable
from mailserver.archive.files import FileVersion, ReadableFiles
from mailserver.archive.holdings import check_day
from mailserver.archive.reading import catalog as catalog_module
from mailserver.archive.reading.catalog import Catalog
from mailserver.archive.reading.reads import READ_TIMEOUT_S
from mailserver.archive.reading.source import ArchiveSource
from mailserver.archive.set_aside import set_aside_of
from mailserver.metrics.registry import Metrics
from mailserver.store.interface import Query
from mailserver.waku.bloom import Interest
from tests.archive.archives import make_archive
from tests.archive.reading.asking import Asking
from tests.archive.reading.parquet import envelope, write_period
from tests.s3 import FakeS3, fake_s3
from tests.store.engines import EVERYTHING
from tests.store.samples import DAY, EVER, FULL, NEWS, SPORT, START, answer, raws

pytestmark = pytest.mark.integration

STORE, RECEIVED_DAY = "ab" * 16, 20_777
KEPT = [
    envelope(number, created=START + 3600 * number, topic=(NEWS, SPORT)[number % 2], size=100) for number in range(40)
]


@pytest.fixture
def s3(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeS3]:
    with fake_s3(monkeypatch) as fake:
        yield fake


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    """An archive of two days in a folder."""
    first = [one for one in KEPT if one.received < START + DAY]
    write_period(tmp_path / "archive", first, snapshot=False)
    write_period(tmp_path / "archive", [one for one in KEPT if one not in first], snapshot=False)
    return tmp_path / "archive"


def files_at(url: str) -> ReadableFiles:
    files = files_of(url)
    assert files is not None
    return files


class Reading(Asking):
    """A source that reads an archive, as a daemon does."""

    def __init__(self, url: str, *, cache_bytes: int = 0) -> None:
        self.source = ArchiveSource(
            files_at(url), at_once=2, cache_bytes=cache_bytes, is_expected=lambda: True, metrics=Metrics()
        )


@pytest.mark.parametrize("scheme", ["s3", "s3a"])
@pytest.mark.parametrize("interest", [FULL, Interest(topics=frozenset({NEWS}))])
async def test_archive_on_s3_answers_as_in_its_folder(
    s3: FakeS3, archive: Path, scheme: str, interest: Interest
) -> None:
    s3.upload(archive)
    query = Query(*EVER, interest)

    read = await Reading(s3.url.replace("s3", scheme, 1)).answer(query)

    assert read == await Reading(str(archive)).answer(query) == raws(answer(KEPT, query))


async def test_no_data_file_is_fetched_whole(s3: FakeS3, tmp_path: Path) -> None:
    many = [envelope(number, created=START + number, topic=NEWS, size=2000) for number in range(400)]
    (file,) = write_period(tmp_path, many, snapshot=False, group_rows=20)
    s3.upload(tmp_path)
    reading = Reading(s3.url)
    s3.fetched.clear()

    await reading.answer(Query(START, START + 5, FULL))

    assert 0 < s3.fetched[".parquet"] < file.stat().st_size / 10


async def test_periods_are_looked_into_and_read_at_the_same_time(s3: FakeS3, tmp_path: Path) -> None:
    """All but the first, with which most answers are complete."""
    kept = [envelope(day, created=START + day * DAY, topic=NEWS) for day in range(5)]
    for one in kept:
        write_period(tmp_path, [one], snapshot=False)
    s3.upload(tmp_path)
    reading = Reading(s3.url, cache_bytes=2**24)
    await reading.answer(Query(START + 4 * DAY, EVER[1], FULL))

    with s3.answering_together(2, ".index"):
        assert await reading.answer(Query(START, EVER[1], FULL)) == raws(answer(kept, EVERYTHING))
    with s3.answering_together(2, ".parquet"):
        query = Query(START, START + DAY, FULL)
        assert await reading.answer(query) == raws(answer(kept, query))


async def test_second_request_asks_only_whether_records_have_changed(s3: FakeS3, archive: Path) -> None:
    s3.upload(archive)
    reading = Reading(s3.url, cache_bytes=2**24)
    before = await reading.answer(Query(START, START, FULL))
    s3.asked.clear()

    assert await reading.answer(Query(START, START, FULL)) == before

    listing = [one for one in s3.asked if one.startswith("GET") and one.strip("/").endswith(s3.bucket)]
    assert len(listing) == 1
    assert not [one for one in s3.asked if "_records/" in one]


async def test_period_that_is_published_is_seen_by_the_next_request(s3: FakeS3, archive: Path) -> None:
    s3.upload(archive)
    reading = Reading(s3.url, cache_bytes=2**24)
    await reading.answer()
    new = envelope(100, created=START + 10 * DAY, topic=NEWS)
    write_period(archive, [new], snapshot=False)
    s3.upload(archive)

    assert await reading.answer() == raws(answer([*KEPT, new], EVERYTHING))


async def test_each_fault_fails_the_request_and_recovers_by_itself(s3: FakeS3, archive: Path) -> None:
    reading = Reading(s3.url)
    assert f"there is no archive at {s3.url}: is that the right bucket" in await reading.refusal()

    s3.upload(archive)
    whole = await reading.answer()
    with s3.denying():
        assert "ACCESS_DENIED" in await reading.refusal()
    assert await reading.answer() == whole

    (path, *_) = s3.paths(".parquet")
    content = s3.files.open_input_file(path).read()
    with s3.files.open_output_stream(path) as stream:
        stream.write(content[:-1])
    assert f"it has {len(content) - 1} bytes instead of {len(content)}" in await reading.refusal()
    s3.files.delete_file(path)
    assert f"s3://{path} is missing" in await reading.refusal()
    assert "could not be answered" in reading.source.problem
    with s3.files.open_output_stream(path) as stream:
        stream.write(content)

    assert await reading.answer() == whole


async def test_record_that_may_not_be_read_fails_what_may_need_it_and_nothing_else(
    s3: FakeS3, archive: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(catalog_module, "RETRY_S", 0.0)
    s3.upload(archive)
    reading = Reading(s3.url)
    after = Query(START + DAY + DAY, EVER[1], FULL)

    with s3.denying("2024-10-04.json"):
        assert await reading.answer(after) == raws(answer(KEPT, after))
        assert f"cannot read {s3.url}/_records/2024-10-04.json: " in await reading.refusal()
        assert "ACCESS_DENIED" in reading.source.problem
    with s3.denying("_archive.json"):
        assert await Reading(s3.url).answer() == raws(answer(KEPT, EVERYTHING))

    assert await reading.answer() == raws(answer(KEPT, EVERYTHING))


async def test_endpoint_that_goes_away_while_records_are_read_is_no_fault_of_theirs(s3: FakeS3, archive: Path) -> None:
    class Listed(BucketFiles):
        """S3 is gone as soon as it has listed what there is."""

        def versions(self, directory: str) -> dict[str, FileVersion]:
            found = super().versions(directory)
            s3.stop()
            return found

    s3.upload(archive)
    catalog = Catalog(Listed(s3.root), lambda: True)

    with pytest.raises(ArchiveError, match="cannot read") as refused:
        catalog.listing()
    assert not isinstance(refused.value, ArchiveFileUnreadable)


async def test_bucket_that_is_not_there_is_a_fault(s3: FakeS3) -> None:
    assert "there is no archive at s3://another/archive" in await Reading("s3://another/archive").refusal()


async def test_endpoint_that_says_nothing_is_given_up_with_its_cause(
    s3: FakeS3, archive: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert READING.attempts * max(READING.silence_s, READING.connect_s) < READ_TIMEOUT_S
    monkeypatch.setattr(BucketFiles, "patience", replace(READING, silence_s=1.0))
    s3.upload(archive)
    reading = Reading(s3.url)
    whole = await reading.answer()

    with s3.silent():
        began = time.monotonic()
        assert "Timeout was reached" in await reading.refusal()
        assert time.monotonic() - began < READ_TIMEOUT_S

    assert await reading.answer() == whole


async def test_endpoint_that_is_down_is_a_fault(s3: FakeS3, archive: Path) -> None:
    s3.upload(archive)
    reading = Reading(s3.url)
    s3.stop()

    assert "Could not connect to server" in await reading.refusal()


def test_object_that_is_deleted_while_it_is_read_is_missing(s3: FakeS3, archive: Path) -> None:
    s3.upload(archive)
    files = BucketFiles(s3.root)

    def read_late() -> None:
        with files.opened("_archive.json") as file:
            s3.files.delete_file(f"{s3.root}/_archive.json")
            file.read()

    with pytest.raises(FileNotFoundError, match=r"_archive\.json"):
        read_late()


def test_names_and_sizes_are_those_of_the_folder(s3: FakeS3, archive: Path) -> None:
    s3.upload(archive)
    here, there = FolderFiles(archive), files_at(s3.url)

    assert there.names("") == here.names("")
    assert there.names("_records") == here.names("_records")
    assert there.names("none") == []
    for name in (*filter(lambda name: name.startswith("date="), here.names("")), "", "none"):
        assert there.sizes(name) == here.sizes(name)
    assert there.size("_archive.json") == here.size("_archive.json")
    assert there.digest("_archive.json") == here.digest("_archive.json")
    assert there.size("none") is None
    assert there.read("none") is None
    assert Archive(there).records() == Archive(here).records()
    assert dict(there.read_each(["none", "_archive.json"])) == dict(here.read_each(["none", "_archive.json"]))


def test_records_are_read_at_the_same_time(s3: FakeS3, tmp_path: Path) -> None:
    for day in range(4):
        write_period(tmp_path, [envelope(day, created=START + day * DAY, topic=NEWS)], snapshot=False)
    s3.upload(tmp_path)
    archive = Archive(files_at(s3.url))

    with s3.answering_together(4, ".json"):
        assert len(archive.records()) == 4
        assert archive.damaged_records() == {}


def test_day_is_held_as_in_a_folder_unless_a_run_is_at_work(s3: FakeS3, tmp_path: Path) -> None:
    file = make_archive(tmp_path, STORE, RECEIVED_DAY, seq=70)
    s3.upload(tmp_path)
    files = files_at(s3.url)

    check_day(files, STORE, RECEIVED_DAY, 70)

    with pytest.raises(ArchiveFault, match=f"no record in {s3.url} says"):
        check_day(files, STORE, RECEIVED_DAY, 71)
    s3.files.delete_file(f"{s3.root}/{file.relative_to(tmp_path)}")
    with pytest.raises(ArchiveFault, match="is missing"):
        check_day(files, STORE, RECEIVED_DAY, 70)
    s3.upload(tmp_path)
    begin_a_run(s3)
    with pytest.raises(ArchiveBusy, match=f"{s3.url}/{LEASES}/run is there"):
        check_day(files, STORE, RECEIVED_DAY, 70)


def test_rows_that_were_set_aside_are_counted_as_in_a_folder(s3: FakeS3, tmp_path: Path) -> None:
    make_archive(tmp_path, STORE, RECEIVED_DAY, seq=70, quarantined=2)
    file = tmp_path / set_aside_of(RECEIVED_DAY) / f"{STORE}.jsonl"
    file.parent.mkdir(parents=True)
    file.write_text("one\n")
    s3.upload(tmp_path)
    files = files_at(s3.url)

    with pytest.raises(ArchiveFault, match=f"{s3.url}/{set_aside_of(RECEIVED_DAY)} has 1 of the 2 rows"):
        check_day(files, STORE, RECEIVED_DAY, 70)

    assert files.lines("none.jsonl") == 0
    file.write_text("one\ntwo\n")
    s3.upload(tmp_path)
    check_day(files, STORE, RECEIVED_DAY, 70)
    with s3.denying(), pytest.raises(ArchiveError, match="ACCESS_DENIED"):
        files.lines(f"{set_aside_of(RECEIVED_DAY)}/{STORE}.jsonl")


def begin_a_run(s3: FakeS3) -> None:
    s3.files.open_output_stream(f"{s3.root}/{LEASES}/run").close()


def fail_while_a_run_begins(s3: FakeS3) -> None:
    begin_a_run(s3)
    raise ArchiveFault("a file is missing")


def test_run_that_begins_while_the_archive_is_looked_at_is_noticed(s3: FakeS3) -> None:
    files = files_at(s3.url)

    with pytest.raises(ArchiveBusy), files.left_alone():
        begin_a_run(s3)
    s3.files.delete_file(f"{s3.root}/{LEASES}/run")
    with pytest.raises(ArchiveBusy), files.left_alone():
        fail_while_a_run_begins(s3)


def test_run_that_was_killed_long_ago_is_in_nobodys_way(s3: FakeS3, tmp_path: Path) -> None:
    make_archive(tmp_path, STORE, RECEIVED_DAY, seq=70)
    s3.upload(tmp_path)
    begin_a_run(s3)
    files = files_at(s3.url)

    s3.age(LEASES, 3600)
    with pytest.raises(ArchiveBusy):
        check_day(files, STORE, RECEIVED_DAY, 70)
    s3.age(LEASES, 310)
    check_day(files, STORE, RECEIVED_DAY, 70)


def test_refusal_names_the_file(s3: FakeS3) -> None:
    with s3.denying(), pytest.raises(ArchiveError, match=f"cannot read {s3.url}/_archive.json: .*ACCESS_DENIED"):
        files_at(s3.url).read("_archive.json")


def test_record_written_twice_in_a_second_is_told_apart(s3: FakeS3, monkeypatch: pytest.MonkeyPatch) -> None:
    def write(text: bytes) -> None:
        with s3.files.open_output_stream(f"{s3.root}/_records/2026-11-20.json") as stream:
            stream.write(text)

    files = files_at(s3.url)
    write(b"one")
    first = files.versions("_records")
    assert files.versions("_records") == first

    monkeypatch.setattr(bucket_module, "_SETTLED_S", 0.0)
    assert files.versions("_records") != first  # whoever has read it reads it again
    assert files.versions("_records") == files.versions("_records")


def test_endpoint_is_taken_from_the_environment() -> None:
    assert endpoint({}) is None
    assert endpoint({"AWS_ENDPOINT_URL": "http://all"}) == "http://all"
    assert endpoint({"AWS_ENDPOINT_URL": "http://all", "AWS_ENDPOINT_URL_S3": "http://s3"}) == "http://s3"
