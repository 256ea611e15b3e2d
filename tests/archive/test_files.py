"""What reads an archive on the local file system. `spark_export.archives.test_storage` compares it with Hadoop."""

from pathlib import Path

import pytest

from mailserver.archive import archive as archive_module
from mailserver.archive.archive import Archive
from mailserver.archive.errors import ArchiveBusy, ArchiveError, RecordDamaged
from mailserver.archive.files import LocalFiles, count_lines, local_folder
from mailserver.archive.manifest import PeriodRecord, encode_record
from mailserver.archive.paths import RECORDS
from tests.archive.archives import NeverAtRest


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


class _Replacing(LocalFiles):
    """An archive of which a record is being replaced: it is there again once it was found missing twice."""

    def __init__(self, root: Path, record: PeriodRecord) -> None:
        super().__init__(root)
        self.reads = 0
        self._record = record

    def read(self, name: str) -> str | None:
        """See ArchiveFiles."""
        self.reads += 1
        if self.reads == 3:
            (self.root / name).unlink()
            (self.root / name).write_text(encode_record(self._record))
        return super().read(name)


@pytest.fixture
def link_to_nothing(tmp_path: Path) -> Path:
    """The record of 20 November 2026, as a link to a file that is gone."""
    (tmp_path / RECORDS).mkdir()
    link = tmp_path / RECORDS / "2026-11-20.json"
    link.symlink_to(tmp_path / "gone")
    return link


def test_record_that_is_listed_and_stays_missing_is_named(
    tmp_path: Path, link_to_nothing: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archive_module, "MISSING_RECORD_TIMEOUT_S", 0.0)

    with pytest.raises(ArchiveError, match=str(link_to_nothing)):
        Archive(LocalFiles(tmp_path)).records()


def test_record_that_is_missing_while_it_is_replaced_is_awaited(tmp_path: Path, link_to_nothing: Path) -> None:
    record = PeriodRecord("2026-11-20", "run", {}, ())
    files = _Replacing(tmp_path, record)

    records = Archive(files).records()

    assert not link_to_nothing.is_symlink()
    assert files.reads == 3
    assert records == {record.period: record}


class _Publishing(LocalFiles):
    """An archive in which a record appears just when the first one is read."""

    def read(self, name: str) -> str | None:
        """See ArchiveFiles."""
        other = self.root / RECORDS / "2026-11-21.json"
        if not other.exists():
            other.write_text(encode_record(PeriodRecord(other.stem, "run", {}, ())))
        return super().read(name)


def test_record_that_appears_while_others_are_read_is_read_too(tmp_path: Path) -> None:
    (tmp_path / RECORDS).mkdir()
    first = PeriodRecord("2026-11-20", "run", {}, ())
    (tmp_path / RECORDS / f"{first.period}.json").write_text(encode_record(first))

    assert sorted(Archive(_Publishing(tmp_path)).records()) == [first.period, "2026-11-21"]


def test_records_that_change_at_each_look_are_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archive_module, "CHANGES_TIMEOUT_S", 0.01)
    (tmp_path / RECORDS).mkdir()
    files = NeverAtRest(tmp_path)

    with pytest.raises(ArchiveBusy, match="_records changes all the time"):
        Archive(files).records()

    assert files.looks > 1


def test_record_that_is_left_out_is_not_awaited(tmp_path: Path, link_to_nothing: Path) -> None:
    archive = Archive(LocalFiles(tmp_path))

    assert archive.records(without=[link_to_nothing.stem]) == {}
    assert list(archive.damaged_records()) == [link_to_nothing.name]


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
