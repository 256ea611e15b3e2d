"""spark_export.s3_storage: what a run does with objects, and what it says where S3 refuses something."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import cast

import pyarrow as pa
import pytest

from mailserver.archive import files
from mailserver.archive.access import bucket
from mailserver.archive.errors import ArchiveError
from spark_export import quarantine as quarantine_module
from spark_export.s3_bucket import WORKING, WritableBucket
from spark_export.s3_lease import MARGIN_S
from spark_export.s3_storage import S3Storage
from spark_export.source import Faulty
from spark_export.store import StoreSnapshot
from spark_export.task_files import TaskFiles
from tests.s3 import FakeS3, fake_s3

pytestmark = pytest.mark.integration


@pytest.fixture
def s3(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeS3]:
    with fake_s3(monkeypatch) as fake:
        yield fake


@pytest.fixture
def storage(s3: FakeS3) -> S3Storage:
    return S3Storage(s3.root)


def named(*names: str) -> dict[str, bytes]:
    """Objects that hold their own names."""
    return {name: name.encode() for name in names}


def test_text_is_read_as_written(s3: FakeS3, storage: S3Storage) -> None:
    storage.write("_records/one.json", "first\n")
    storage.write("_records/one.json", "second\n")

    assert storage.read("_records/one.json") == "second\n"
    assert s3.objects() == {"_records/one.json": b"second\n"}
    assert [one for one in s3.asked if "one.json" in one and "GET" not in one] == [
        *(f"PUT /{s3.root}/_records/one.json",) * 2,
        f"HEAD /{s3.root}/_records/one.json",
    ]


def test_put_moves_a_directory_beside_what_is_there(s3: FakeS3, storage: S3Storage) -> None:
    s3.hold(named("_staging/date=1/topic=1/new", "_staging/date=1/topic=2/new", "date=1/topic=1/old", "_staging/x"))

    storage.put("_staging/date=1", "date=1")

    assert s3.objects() == {
        "date=1/topic=1/new": b"_staging/date=1/topic=1/new",
        "date=1/topic=2/new": b"_staging/date=1/topic=2/new",
        **named("date=1/topic=1/old", "_staging/x"),
    }


def test_put_moves_an_object(s3: FakeS3, storage: S3Storage) -> None:
    s3.hold(named("date=1/topic=1/part", "date=1/topic=1/other"))

    storage.put("date=1/topic=1/part", "_damaged/date=1/part")

    assert s3.objects() == {"_damaged/date=1/part": b"date=1/topic=1/part", **named("date=1/topic=1/other")}


def test_put_that_is_killed_has_all_of_the_source(s3: FakeS3, storage: S3Storage) -> None:
    source = named(*(f"_staging/date=1/topic={number}/new" for number in range(5)))
    s3.hold(source)

    with s3.refusing_changes_after(3), pytest.raises(ArchiveError, match=f"cannot write {s3.url}/date=1: "):
        storage.put("_staging/date=1", "date=1")

    found = s3.objects()
    assert len(found) == 5 + 3
    assert source.items() <= found.items()


def test_source_is_kept_where_a_copy_is_not_there_afterwards(s3: FakeS3, storage: S3Storage) -> None:
    source = named("_staging/date=1/topic=1/new", "_staging/date=1/topic=2/new")
    s3.hold(source)

    with s3.forgetting("topic=2/new"), pytest.raises(ArchiveError, match="date=1/topic=2/new: it is not there"):
        storage.put("_staging/date=1", "date=1")

    assert source.items() <= s3.objects().items()


def test_put_of_nothing_is_an_archive_error(s3: FakeS3, storage: S3Storage) -> None:
    with pytest.raises(ArchiveError, match=f"cannot write {s3.url}/date=1: {s3.url}/none is missing"):
        storage.put("none", "date=1")


def test_remove_takes_objects_and_whole_directories(s3: FakeS3, storage: S3Storage) -> None:
    s3.hold(named("a/one", "a/b/two", "ab", "c", "d", "e/f"))

    storage.remove("a", "c", "e/f", "none", "none/at/all")

    assert s3.objects() == named("ab", "d")


def test_nothing_has_second_names(s3: FakeS3, storage: S3Storage) -> None:
    s3.hold(named("date=1/topic=1/a.parquet"))

    assert not storage.link("date=1", "_snapshots/date=1/run=1")
    assert not storage.restore("_snapshots/date=1/run=1/topic=1/a", "date=1/topic=1/a.parquet")
    assert not storage.is_same("a", "b")
    assert storage.is_same("a", "a")
    storage.sync("date=1")
    storage.touch("date=1")
    assert s3.objects() == named("date=1/topic=1/a.parquet")


def test_directory_is_as_old_as_its_youngest_object(s3: FakeS3, storage: S3Storage) -> None:
    s3.hold(named("_snapshots/a/one", "_snapshots/a/two"))
    s3.age("_snapshots/a/one", 5000)
    s3.age("_snapshots", 1000)

    assert 1000 <= storage.age("_snapshots/a") < 2000
    with pytest.raises(ArchiveError, match="is missing"):
        storage.age("none")


def test_tasks_write_and_read_the_same_objects(s3: FakeS3, storage: S3Storage) -> None:
    files = TaskFiles(storage.url)

    files.write("_staging/run/part", pa.py_buffer(b"data"), "ways/part")

    assert s3.objects() == {"_staging/run/part": b"data"}
    assert files.read("_staging/run/part") == pa.py_buffer(b"data")
    with pytest.raises(ArchiveError, match=f"cannot read {s3.url}/none: "):
        files.read("none")


def fail_amidst_a_file(files: TaskFiles) -> None:
    with files.created("_index/one", "ways/one") as stream:
        stream.write(b"half")
        raise ZeroDivisionError


def test_file_that_a_task_does_not_finish_is_not_there(s3: FakeS3, storage: S3Storage) -> None:
    with pytest.raises(ZeroDivisionError):
        fail_amidst_a_file(TaskFiles(storage.url))

    assert s3.objects() == {}


EVERY_ACCESS: list[Callable[[S3Storage], object]] = [
    lambda storage: storage.read("_archive.json"),
    lambda storage: storage.names(""),
    lambda storage: storage.sizes("date=1"),
    lambda storage: storage.size("date=1/part"),
    lambda storage: storage.write("_archive.json", "{}"),
    lambda storage: storage.remove("date=1"),
    lambda storage: storage.put("date=1", "date=2"),
    lambda storage: storage.locked().__enter__(),
    lambda storage: TaskFiles(storage.url).read("date=1/part"),
    lambda storage: TaskFiles(storage.url).write("date=1/part", pa.py_buffer(b"data"), "ways/part"),
]


def refusals(s3: FakeS3) -> set[str]:
    """What each access says, whose error is one line and names the archive."""
    said = set()
    for access in EVERY_ACCESS:
        with pytest.raises(ArchiveError) as caught:
            access(S3Storage(s3.root))
        said.add(str(caught.value))
    assert all("\n" not in one and s3.url in one for one in said)
    return said


def test_denied_access_is_told_in_one_line(s3: FakeS3) -> None:
    s3.hold(named("date=1/part"))

    with s3.denying():
        assert all("ACCESS_DENIED" in one for one in refusals(s3))


def test_missing_credentials_are_told_in_one_line(s3: FakeS3, monkeypatch: pytest.MonkeyPatch) -> None:
    s3.hold(named("date=1/part"))
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")

    assert all(one.endswith(": are there credentials, and do they allow it?") for one in refusals(s3))


def test_endpoint_that_is_down_is_told_in_one_line(s3: FakeS3, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(WritableBucket, "patience", replace(WORKING, attempts=1))
    monkeypatch.setattr("spark_export.task_files.WORKING", replace(WORKING, attempts=1))
    s3.stop()

    assert [one for one in refusals(s3) if "Could not connect to server" not in one] == []


def test_silent_endpoint_is_given_up_and_told_in_one_line(s3: FakeS3, monkeypatch: pytest.MonkeyPatch) -> None:
    assert WORKING.attempts * WORKING.silence_s < MARGIN_S
    monkeypatch.setattr(WritableBucket, "patience", replace(WORKING, silence_s=1.0, attempts=1))

    with s3.silent(), pytest.raises(ArchiveError, match="Timeout was reached") as caught:
        S3Storage(s3.root).names("")

    assert "\n" not in str(caught.value)


def test_bucket_that_is_gone_is_told_when_a_run_begins(s3: FakeS3) -> None:
    storage = S3Storage("another/archive")

    assert storage.read("_archive.json") is None
    assert storage.names("") == []
    with pytest.raises(ArchiveError, match=r"^cannot write s3://another/archive/_leases/\S+: .*bucket"):
        storage.locked().__enter__()


def test_rows_are_set_aside_beside_more_of_them_than_is_read_whole(
    s3: FakeS3, storage: S3Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    stores = [cast(StoreSnapshot, SimpleNamespace(id="ab"))]  # nothing else of a store is asked for
    for module in (files, bucket):
        monkeypatch.setattr(module, "MAX_RECORD_BYTES", 100)
    monkeypatch.setattr(quarantine_module, "FILE_BYTES", 1)

    one, two, three = (Faulty(0, seq, 5, 6, "bad", bytes(90)) for seq in (1, 2, 3))
    quarantine_module.quarantine(storage, stores, [one, two])
    found = quarantine_module.quarantine(storage, stores, [two, three])

    assert found == {5: 3}
    assert sorted(s3.objects()) == [f"_quarantine/date=1970-01-06/ab.{end}jsonl" for end in ("2.", "3.", "")]
