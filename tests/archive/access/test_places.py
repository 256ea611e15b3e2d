"""mailserver.archive.access.places: which settings name an archive that can be looked at, and how."""

from pathlib import Path

import pytest

from mailserver.archive.access.bucket import BucketFiles
from mailserver.archive.access.folder import FolderFiles
from mailserver.archive.access.places import files_of, is_on_s3, is_same_archive


@pytest.mark.parametrize("setting", ["s3://bucket/archive", "s3a://bucket/archive/"])
def test_both_schemes_of_s3_name_one_archive(setting: str) -> None:
    files = files_of(setting)

    assert isinstance(files, BucketFiles)
    assert files.where("_archive.json") == "s3://bucket/archive/_archive.json"


def test_folder_is_named_by_its_path_or_by_a_url(tmp_path: Path) -> None:
    for setting in (str(tmp_path), f"file://{tmp_path}"):
        files = files_of(setting)

        assert isinstance(files, FolderFiles)
        assert files.where("_archive.json") == str(tmp_path / "_archive.json")


@pytest.mark.parametrize(
    "setting", ["", "s3://", "s3:///", "s3:bucket", "hdfs://host/archive", "s3a://key:secret@bucket/archive"]
)
def test_nothing_else_is_looked_at(setting: str) -> None:
    assert not is_on_s3(setting)
    assert files_of(setting) is None


def test_archive_is_the_same_by_either_scheme_of_s3() -> None:
    assert is_same_archive("s3a://bucket/archive", "s3://bucket/archive")
    assert is_same_archive("file:///archive", "file:///archive")
    for other in ("s3://bucket/other", "file://bucket/archive", "bucket/archive", ""):
        assert not is_same_archive("s3a://bucket/archive", other)


def test_archive_is_the_same_by_every_name_of_its_folder(tmp_path: Path) -> None:
    disk = tmp_path / "disk" / "archive%20"
    disk.mkdir(parents=True)
    (tmp_path / "link").symlink_to(disk)
    other = tmp_path / "disk" / "archive "
    other.mkdir()

    for name in (tmp_path / "link", f"{disk}/", f"{tmp_path}/disk/../link"):
        assert is_same_archive(f"file://{name}", f"file://{disk}")
    assert not is_same_archive(f"file://{other}", f"file://{disk}")
    assert is_same_archive("hdfs://host/archive/", "hdfs://host/archive")
    assert not is_same_archive("hdfs://host/archive", f"file://{disk}")
