"""The local storage and Hadoop's, which must do the same; Hadoop's is on `file:`, a true Hadoop file system."""

import contextlib
import hashlib
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from mailserver.archive.errors import ArchiveError, ArchiveFileUnreadable
from mailserver.archive.layout import PartitionBy
from spark_export import storage
from spark_export.hadoop_storage import HadoopStorage
from spark_export.merge import merge
from spark_export.read import read_archive
from spark_export.s3_storage import S3Storage
from spark_export.storage import LocalStorage, WritableFiles, open_storage
from spark_export.verify import verify
from tests.spark_export.samples import DAY, DAY_S, NEWS, archived, compact_into, envelopes, periods, put, rows_of
from tests.synced import watch_syncs

pytestmark = pytest.mark.spark

Opener = Callable[[Path], WritableFiles]


@pytest.fixture(params=["local", "hadoop"])
def opener(request: pytest.FixtureRequest, spark: SparkSession) -> Opener:
    """Opens a directory by either storage."""
    if request.param == "local":
        return LocalStorage
    return lambda folder: HadoopStorage(spark, f"file://{folder}")


@pytest.fixture
def archive(opener: Opener, tmp_path: Path) -> WritableFiles:
    return opener(tmp_path)


def fill(folder: Path, *names: str) -> None:
    """Make files that hold their own names."""
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(name)


def tree(folder: Path) -> dict[str, str]:
    return {str(file.relative_to(folder)): file.read_text() for file in folder.rglob("*") if file.is_file()}


def test_scheme_chooses_the_storage(spark: SparkSession, tmp_path: Path) -> None:
    local = [open_storage(spark, text) for text in (str(tmp_path), tmp_path.as_uri(), f"file:{tmp_path}")]

    assert all(isinstance(found, LocalStorage) for found in local)
    assert {found.url for found in local} == {f"file://{tmp_path}"}


def test_unknown_scheme_is_an_archive_error(spark: SparkSession) -> None:
    with pytest.raises(ArchiveError, match=r'cannot open moon://there: .*No FileSystem for scheme "moon"'):
        open_storage(spark, "moon://there")


@pytest.mark.parametrize("scheme", ["s3", "s3a"])
def test_bucket_is_one_archive_by_either_scheme(spark: SparkSession, scheme: str) -> None:
    found = open_storage(spark, f"{scheme}://bucket/archive")

    assert isinstance(found, S3Storage)
    assert found.url == "s3://bucket/archive"


@pytest.mark.parametrize("url", ["s3://", "s3a://who:secret@bucket/archive"])
def test_bucket_is_named_and_has_no_credentials(spark: SparkSession, url: str) -> None:
    with pytest.raises(ArchiveError, match="it must be s3://BUCKET/PREFIX, without credentials") as caught:
        open_storage(spark, url)

    assert "secret" not in str(caught.value)


def test_text_is_read_as_written(archive: WritableFiles) -> None:
    archive.write("_records/one.json", "first\n")
    archive.write("_records/one.json", "second\n")

    assert archive.read("_records/one.json") == "second\n"
    assert archive.read("_records/two.json") is None
    assert archive.read("nowhere/two.json") is None


def test_lines_are_counted(archive: WritableFiles, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"one\n\n\xfftwo\x0b\nthree")

    assert archive.lines("file") == 3
    assert archive.lines("none") == 0


def test_removal_of_a_file_is_on_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(tmp_path, "_staging/run/publish.json")
    synced = watch_syncs(monkeypatch)

    LocalStorage(tmp_path).remove("_staging/run/publish.json", "_staging/run/none", "none/none")

    assert synced == [tmp_path / "_staging" / "run"]
    assert tree(tmp_path) == {}


def test_new_archive_has_its_name_on_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced = watch_syncs(monkeypatch)

    with LocalStorage(tmp_path / "new" / "archive").locked():
        assert synced == [tmp_path, tmp_path / "new"]


def test_text_in_a_new_directory_has_all_its_names_on_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced = watch_syncs(monkeypatch)

    LocalStorage(tmp_path).write("_records/one.json", "text")

    assert [tmp_path, tmp_path / "_records"] == [path for path in synced if path.is_dir()]


def test_sync_is_of_files_and_of_all_names_above(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(tmp_path, "_staging/run/data/date=1/part", "_staging/run/data/date=2/part")
    synced = watch_syncs(monkeypatch)

    LocalStorage(tmp_path).sync("_staging/run/data")

    below = {path for path in tmp_path.rglob("*") if path.parts[-1] in ("date=1", "date=2", "part", "data")}
    assert {*below, tmp_path, tmp_path / "_staging", tmp_path / "_staging" / "run"} == set(synced)


def test_writing_leaves_nothing_else_behind(archive: WritableFiles, tmp_path: Path) -> None:
    archive.write("_records/one.json", "text")
    archive.write("_records/one.json", "again")

    assert tree(tmp_path) == {"_records/one.json": "again"}


def test_names_are_sorted(archive: WritableFiles, tmp_path: Path) -> None:
    fill(tmp_path, "b/file", "a/file", "c")

    assert archive.names("") == ["a", "b", "c"]
    assert archive.names("a") == ["file"]
    assert archive.names("none") == []
    assert archive.names("none/of/them") == []


def test_archive_that_is_not_there_has_no_names(opener: Opener, tmp_path: Path) -> None:
    archive = opener(tmp_path / "none")

    assert archive.names("") == []
    assert archive.read("_archive.json") is None
    assert not (tmp_path / "none").exists()


def test_remove_takes_files_and_whole_directories(archive: WritableFiles, tmp_path: Path) -> None:
    fill(tmp_path, "a/one", "a/b/two", "c", "d")

    for name in ("a", "c", "none", "none/at/all"):
        archive.remove(name)

    assert tree(tmp_path) == {"d": "d"}
    assert not (tmp_path / "a").exists()


def test_put_makes_a_new_directory(archive: WritableFiles, tmp_path: Path) -> None:
    fill(tmp_path, "_staging/run/data/date=1/topic=2/file")

    archive.put("_staging/run/data/date=1", "date=1")

    assert tree(tmp_path) == {"date=1/topic=2/file": "_staging/run/data/date=1/topic=2/file"}


def test_put_replaces_a_directory_whole(archive: WritableFiles, tmp_path: Path) -> None:
    fill(tmp_path, "_staging/date=1/topic=2/new", "date=1/topic=1/old", "date=2/other")

    archive.put("_staging/date=1", "date=1")

    found = tree(tmp_path)
    assert found["date=1/topic=2/new"] == "_staging/date=1/topic=2/new"
    assert {name for name in found if name.startswith("date=")} == {"date=1/topic=2/new", "date=2/other"}
    assert "date=1/topic=1/old" in found.values()  # beside: whoever has looked at the new one deletes it


def test_put_makes_the_directory_above(archive: WritableFiles, tmp_path: Path) -> None:
    fill(tmp_path, "date=1/file")

    archive.put("date=1", "_staging/replaced/date=1")

    assert list(tree(tmp_path)) == ["_staging/replaced/date=1/file"]


def test_put_of_nothing_is_an_archive_error(archive: WritableFiles, tmp_path: Path) -> None:
    with pytest.raises(ArchiveError):
        archive.put("none", "date=1")

    assert tree(tmp_path) == {}


def test_local_put_exchanges_both_directories(tmp_path: Path) -> None:
    fill(tmp_path, "_staging/date=1/new", "date=1/old")

    LocalStorage(tmp_path).put("_staging/date=1", "date=1")

    assert tree(tmp_path) == {"date=1/new": "_staging/date=1/new", "_staging/date=1/old": "date=1/old"}


def test_local_put_is_one_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> None:
        raise AssertionError("more than one step")

    fill(tmp_path, "_staging/date=1/new", "date=1/old")
    monkeypatch.setattr(Path, "rename", refused)

    LocalStorage(tmp_path).put("_staging/date=1", "date=1")

    assert (tmp_path / "date=1" / "new").exists()


def test_local_put_does_without_an_exchange(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(tmp_path, "_staging/date=1/new", "date=1/old")
    monkeypatch.setattr(storage, "_exchange", lambda one, other: False)

    LocalStorage(tmp_path).put("_staging/date=1", "date=1")

    assert tree(tmp_path) == {"date=1/new": "_staging/date=1/new", "_staging/date=1/old": "date=1/old"}


def test_second_run_is_refused(opener: Opener, archive: WritableFiles, tmp_path: Path) -> None:
    with archive.locked():
        with pytest.raises(ArchiveError, match=rf"another run \(pid {os.getpid()}.*\) is at work on .*{tmp_path}"):
            opener(tmp_path).locked().__enter__()
        assert archive.read("none") is None

    with opener(tmp_path).locked():
        pass


def test_lock_makes_the_directory(opener: Opener, tmp_path: Path) -> None:
    with opener(tmp_path / "new" / "archive").locked():
        assert (tmp_path / "new" / "archive").is_dir()


def test_lock_ends_with_an_error(opener: Opener, archive: WritableFiles, tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), archive.locked():
        raise ZeroDivisionError

    with opener(tmp_path).locked():
        pass


def test_hadoop_says_what_to_do_about_the_lock_of_a_killed_run(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "_lock").write_text("pid 7 on host")

    with pytest.raises(ArchiveError, match=r"pid 7 on host.* if it was killed, delete _lock there"):
        HadoopStorage(spark, f"file://{tmp_path}").locked().__enter__()

    assert (tmp_path / "_lock").read_text() == "pid 7 on host"


def test_hadoop_leaves_the_lock_of_a_run_that_has_taken_over(
    spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    first, second = (HadoopStorage(spark, f"file://{tmp_path}") for _ in range(2))
    fill(tmp_path, "date=1/old", "_staging/date=1/new")
    changes: list[Callable[[], object]] = [
        lambda: first.write("_archive.json", "text"),
        lambda: first.remove("date=1"),
        lambda: first.put("_staging/date=1", "date=1"),
    ]

    with contextlib.ExitStack() as ours:
        ours.enter_context(first.locked())
        first.write("mine", "mine")
        (tmp_path / "_lock").unlink()
        with second.locked():
            before = tree(tmp_path)
            for change in changes:
                with pytest.raises(ArchiveError, match="was deleted or taken over: another run may be at work"):
                    change()
            ours.close()
            assert tree(tmp_path) == before
            second.write("theirs", "theirs")

    assert tree(tmp_path) == {name: name for name in ("mine", "theirs", "date=1/old", "_staging/date=1/new")}
    assert "lock was taken over" in caplog.text


def test_error_of_a_run_is_told_though_its_lock_cannot_be_given_back(
    spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def fail() -> None:
        with HadoopStorage(spark, f"file://{tmp_path}").locked():
            (tmp_path / "_lock").unlink()
            (tmp_path / "_lock").mkdir()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()

    assert "lock not given back" in caplog.text


def test_directory_that_cannot_be_removed_is_an_archive_error(opener: Opener, tmp_path: Path) -> None:
    (tmp_path / "here").symlink_to("/proc/self/fdinfo")
    archive = opener(tmp_path)

    with pytest.raises(ArchiveError, match="cannot remove"):
        archive.remove("here/0")

    assert (tmp_path / "here" / "0").exists()


def test_put_of_nothing_leaves_the_directory_that_was_there(archive: WritableFiles, tmp_path: Path) -> None:
    fill(tmp_path, "date=1/old")

    with pytest.raises(ArchiveError):
        archive.put("_staging/date=1", "date=1")

    assert tree(tmp_path) == {"date=1/old": "date=1/old"}


def test_hadoop_puts_nothing_below_a_directory_that_a_killed_run_left(spark: SparkSession, tmp_path: Path) -> None:
    fill(tmp_path, "_staging/date=1/new", "_staging/date=1.old/older", "date=1/old")

    with pytest.raises(ArchiveError, match="cannot write date=1"):
        HadoopStorage(spark, f"file://{tmp_path}").put("_staging/date=1", "date=1")

    assert tree(tmp_path) == {
        "_staging/date=1/new": "_staging/date=1/new",
        "_staging/date=1.old/older": "_staging/date=1.old/older",
        "date=1/old": "date=1/old",
    }


def test_age_begins_anew_with_touch(archive: WritableFiles, tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    os.utime(tmp_path / "folder", (1000, 1000))
    before = archive.age("folder")

    archive.touch("folder")
    archive.touch("none")

    assert before > 10**9
    assert archive.age("folder") < 3600
    assert not (tmp_path / "none").exists()


def test_local_files_get_second_names(tmp_path: Path) -> None:
    fill(tmp_path, "date=1/topic=1/a.parquet", "date=1/topic=2/b.parquet", "date=1/topic=2/other.txt")

    linked = [LocalStorage(tmp_path).link("date=1", "_snapshots/date=1/run=2") for _ in range(2)]

    assert linked == [True, True]
    assert set(tree(tmp_path / "_snapshots")) == {"date=1/run=2/topic=1/a", "date=1/run=2/topic=2/b"}
    assert (tmp_path / "_snapshots/date=1/run=2/topic=1/a").samefile(tmp_path / "date=1/topic=1/a.parquet")


def test_file_system_without_second_names_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(name: Path, file: Path) -> None:
        if file.name == "b.parquet":
            raise PermissionError(1, "Operation not permitted")
        os.link(file, name)

    fill(tmp_path, "date=1/topic=1/a.parquet", "date=1/topic=2/b.parquet")
    monkeypatch.setattr(Path, "hardlink_to", refused)

    assert not LocalStorage(tmp_path).link("date=1", "_snapshots/date=1/run=2")
    assert tree(tmp_path / "_snapshots") == {}


def test_hadoop_has_no_second_names(spark: SparkSession, tmp_path: Path) -> None:
    fill(tmp_path, "date=1/topic=1/a.parquet")

    assert not HadoopStorage(spark, f"file://{tmp_path}").link("date=1", "_snapshots/date=1/run=2")
    assert list(tree(tmp_path)) == ["date=1/topic=1/a.parquet"]


def test_sync_takes_every_file(archive: WritableFiles, tmp_path: Path) -> None:
    fill(tmp_path, "a/b/c", "a/d")

    archive.sync("a")

    assert set(tree(tmp_path)) == {"a/b/c", "a/d"}


def test_files_below_a_directory_have_their_sizes(archive: WritableFiles, tmp_path: Path) -> None:
    fill(tmp_path, "date=1/topic=1/a", "date=1/b", "date=1/_c", "date=1/.d/e", "date=2/f")

    assert archive.sizes("date=1") == {"topic=1/a": len("date=1/topic=1/a"), "b": len("date=1/b")}
    assert archive.sizes("none") == {}
    assert archive.size("date=1/b") == len("date=1/b")
    assert archive.size("date=1/none") is None


def test_digest_is_of_all_bytes(archive: WritableFiles, tmp_path: Path) -> None:
    content = bytes(range(256)) * 10_000
    (tmp_path / "part").write_bytes(content)

    assert archive.digest("part") == hashlib.sha256(content).hexdigest()
    with pytest.raises(ArchiveError, match="cannot read") as caught:
        archive.digest("none")
    assert not isinstance(caught.value, ArchiveFileUnreadable)  # of a file that is not there, nothing is damaged


def test_disk_that_cannot_read_a_file_is_told_from_one_that_is_not_reached() -> None:
    with pytest.raises(ArchiveFileUnreadable, match="cannot read /proc/self/mem: Input/output error"):
        LocalStorage(Path("/proc/self")).digest("mem")  # nothing is mapped at its beginning


def test_bytes_that_hadoop_finds_wrong_are_unreadable(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "part").write_bytes(bytes(1000))
    (tmp_path / ".part.crc").write_bytes(b"crc\x00" + (512).to_bytes(4, "big") + bytes(8))
    configuration = spark.sparkContext._jsc.hadoopConfiguration()  # noqa: SLF001 - there is no other way to it
    before = configuration.get("fs.file.impl")
    configuration.set("fs.file.impl", "org.apache.hadoop.fs.LocalFileSystem")  # which keeps checksums, as HDFS does
    configuration.set("fs.file.impl.disable.cache", "true")
    try:
        checked = HadoopStorage(spark, f"file://{tmp_path}")
    finally:
        configuration.set("fs.file.impl", before)
        configuration.unset("fs.file.impl.disable.cache")

    with pytest.raises(ArchiveFileUnreadable, match="ChecksumException"):
        checked.digest("part")


def test_file_comes_back_by_its_second_name_where_there_is_one(opener: Opener, tmp_path: Path) -> None:
    fill(tmp_path, "date=1/topic=1/a.parquet")
    archive = opener(tmp_path)
    has_names = archive.link("date=1", "_snapshots/date=1/run=1")
    (tmp_path / "date=1/topic=1/a.parquet").unlink()

    restored = archive.restore("_snapshots/date=1/run=1/topic=1/a", "date=1/topic=1/a.parquet")

    assert restored == has_names == isinstance(archive, LocalStorage)
    assert (tmp_path / "date=1/topic=1/a.parquet").exists() == has_names
    assert archive.is_same("date=1", "date=1")
    assert not archive.restore("_snapshots/none", "date=1/none")


def test_what_the_file_system_refuses_is_an_archive_error(opener: Opener, tmp_path: Path) -> None:
    fill(tmp_path, "file", "source/file")
    below_a_file, above = opener(tmp_path / "file" / "archive"), opener(tmp_path)
    refused: list[Callable[[], object]] = [
        lambda: below_a_file.write("_archive.json", "text"),
        lambda: below_a_file.locked().__enter__(),
        lambda: above.write("file/one", "text"),
        lambda: above.put("source", "file/one"),
        lambda: above.age("none"),
        lambda: above.read("source"),
    ]

    for attempt in refused:
        with pytest.raises(ArchiveError) as caught:
            attempt()
        assert "\n" not in str(caught.value)


def test_whole_archive_through_hadoop(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("compact", "merge", "read", "verify"):
        monkeypatch.setattr(
            f"spark_export.{module}.open_storage", lambda session, path: HadoopStorage(session, f"file://{path}")
        )
    archive, put_in = tmp_path / "archive", [*envelopes(12), *envelopes(12, day=DAY + 1, first=100)]
    store = put(tmp_path / "mailserver.db", put_in)
    compact_into(spark, archive, store, partition_by=PartitionBy.TOPIC_PREFIX)
    late = envelopes(6, first=200)
    put(store, late)

    compact_into(spark, archive, store, run="run-2")
    merge(spark, str(archive), now=(DAY + 40) * DAY_S, run="merge-1")

    assert archived(archive) == rows_of([*put_in, *late])
    assert periods(archive) == ["2024-10"]
    assert not verify(spark, str(archive)).faults
    found = read_archive(spark, str(archive), topics=[NEWS]).select("hash").collect()
    wanted = rows_of(one for one in [*put_in, *late] if one.topic == NEWS)
    assert sorted(row["hash"] for row in found) == sorted(row["hash"] for row in wanted)
    assert not (archive / "_snapshots").exists()
    assert not (archive / "_lock").exists()
    assert not list(archive.rglob("*.crc"))
