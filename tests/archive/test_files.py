"""What reads an archive on the local file system. `spark_export.archives.test_storage` compares it with Hadoop."""

from pathlib import Path

import pytest

from mailserver.archive.archive import Archive
from mailserver.archive.errors import RecordDamaged
from mailserver.archive.files import LocalFiles, local_folder
from mailserver.archive.paths import RECORDS


@pytest.mark.parametrize(
    ("archive", "folder"),
    [
        ("/archive", Path("/archive")),
        ("file:///the%20archive", Path("/the archive")),
        ("file:/archive", Path("/archive")),
        ("archive", Path("archive")),
        ("", None),
        ("s3a://bucket/archive", None),
        ("file://host/archive", None),
        ("hdfs://host:8020/archive", None),
    ],
)
def test_folder_is_known_where_the_archive_is_local(archive: str, folder: Path | None) -> None:
    assert local_folder(archive) == folder


def test_record_whose_bytes_are_no_text_is_damaged(tmp_path: Path) -> None:
    (tmp_path / RECORDS).mkdir()
    (tmp_path / RECORDS / "2026-11-20.json").write_bytes(b'{"version": \xff}')
    archive = Archive(LocalFiles(tmp_path))

    assert list(archive.damaged_records()) == ["2026-11-20.json"]
    with pytest.raises(RecordDamaged):
        archive.records()
