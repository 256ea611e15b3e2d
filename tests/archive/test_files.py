"""What reads an archive on the local file system. `spark_export.archives.test_storage` compares it with Hadoop."""

from pathlib import Path

import pytest

from mailserver.archive.archive import Archive
from mailserver.archive.errors import RecordDamaged
from mailserver.archive.files import LocalFiles, count_lines, local_folder
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


@pytest.mark.parametrize(
    ("text", "lines"),
    [(b"", 0), (b"\n", 0), (b"one", 1), (b"one\n", 1), (b"one\n\n\x85\r\x0btwo\n", 2), (b"\n\nlast", 1)],
)
def test_lines_are_counted_however_the_file_comes_in_pieces(tmp_path: Path, text: bytes, lines: int) -> None:
    for size in (1, 2, 3, 100):
        assert count_lines(text[at : at + size] for at in range(0, len(text), size)) == lines
    (tmp_path / "file").write_bytes(text)
    assert LocalFiles(tmp_path).lines("file") == lines
    assert LocalFiles(tmp_path).lines("none") == 0
