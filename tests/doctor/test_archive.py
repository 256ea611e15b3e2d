"""mailserver.doctor.archive: what pruning and answering require of the archive. Nothing is changed."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from mailserver.app.config import Config
from mailserver.archive import archive as archive_module
from mailserver.archive.days import day_name
from mailserver.archive.layout import Layout, PartitionBy
from mailserver.archive.manifest import encode_settings
from mailserver.archive.paths import SETTINGS_FILE, record_of
from mailserver.doctor import archive as doctor_module
from mailserver.doctor.archive import check_archive
from mailserver.doctor.findings import Finding, FindingVerdict
from mailserver.handoff.archived import Archived
from mailserver.store.sqlite.handoff import archived_file, write_archived
from mailserver.store.sqlite.schema import STORE_FILE
from tests.archive.archives import NeverAtRest
from tests.archive.archives import make_archive as make_period
from tests.nobody import as_nobody, folder_for_all
from tests.s3 import fake_s3

DAY_NUMBER = 20_000
VERIFIED_AT = 1_795_200_000


def findings_of(folder: Path, archive: str, *, hours: float = 1.0, answer: bool = True) -> dict[str, Finding]:
    config = Config(data_dir=folder, archive=archive, answer_from_archive=answer)
    return {finding.check: finding for finding in check_archive(config, VERIFIED_AT + hours * 3600)}


def archived_to(folder: Path, archive: Path | str) -> None:
    write_archived(folder / STORE_FILE, Archived("id", str(archive), VERIFIED_AT, {DAY_NUMBER: 7}))


def make_archive(archive: Path, store_id: str, day: int, *, seq: int) -> Path:
    """See `tests.archive.archives`; it has its settings, too."""
    file = make_period(archive, store_id, day, seq=seq)
    (archive / SETTINGS_FILE).write_text(encode_settings(Layout(PartitionBy.TOPIC_PREFIX, 1)))
    return file


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that everybody may enter."""
    with folder_for_all() as folder:
        yield folder


def test_no_archive_no_findings(tmp_path: Path) -> None:
    assert findings_of(tmp_path, "") == {}


def test_archive_is_looked_at_as_pruning_does(tmp_path: Path) -> None:
    archive = tmp_path / "archive"
    assert findings_of(tmp_path, str(archive))["archive"].verdict is FindingVerdict.WARNING

    archived_to(tmp_path, archive)
    finding = findings_of(tmp_path, str(archive))["archive"]
    assert finding.verdict is FindingVerdict.PROBLEM
    assert "is not there: is its disk mounted?" in finding.text
    file = make_archive(archive, "id", DAY_NUMBER, seq=7)
    assert findings_of(tmp_path, str(archive))["archive"].verdict is FindingVerdict.OK
    file.unlink()
    finding = findings_of(tmp_path, str(archive))["archive"]
    assert finding.verdict is FindingVerdict.PROBLEM
    assert f"{file} is missing" in finding.text

    archived_file(tmp_path / STORE_FILE).write_text("{")
    assert findings_of(tmp_path, str(archive))["archive"].verdict is FindingVerdict.PROBLEM


def test_archive_that_is_elsewhere_is_known_by_the_record_of_the_compaction(tmp_path: Path) -> None:
    archived_to(tmp_path, "hdfs://host/archive")

    finding = findings_of(tmp_path, "hdfs://host/archive", hours=47)["archive"]
    assert finding.verdict is FindingVerdict.OK
    assert finding.text.endswith("checked it 47 hours ago")
    finding = findings_of(tmp_path, "hdfs://host/archive", hours=49)["archive"]
    assert finding.verdict is FindingVerdict.PROBLEM
    assert finding.text.endswith("49 hours ago: nothing is pruned")


def test_archive_on_s3_is_looked_at_as_one_in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with fake_s3(monkeypatch) as s3:
        make_archive(tmp_path / "archive", "id", DAY_NUMBER, seq=7)
        s3.upload(tmp_path / "archive")
        archived_to(tmp_path, s3.url)

        findings = findings_of(tmp_path, s3.url)
        assert findings["archive"].text == f"{s3.url} has every file of the 1 days that are recorded as archived"
        assert findings["answers from archive"].verdict is FindingVerdict.OK

        with s3.denying():
            findings = findings_of(tmp_path, s3.url)
        assert [finding.verdict for finding in findings.values()] == [FindingVerdict.PROBLEM, FindingVerdict.PROBLEM]
        assert all("ACCESS_DENIED" in finding.text for finding in findings.values())


def test_archive_that_can_be_read_answers(tmp_path: Path) -> None:
    make_archive(tmp_path / "archive", "id", DAY_NUMBER, seq=7)
    archived_to(tmp_path, tmp_path / "archive")

    findings = findings_of(tmp_path, str(tmp_path / "archive"), hours=3)

    answers = findings["answers from archive"]
    assert answers.verdict is FindingVerdict.OK
    assert answers.text == "all periods can be read (1); the compaction checked them 3 hours ago"
    assert "answers from archive" not in findings_of(tmp_path, str(tmp_path / "archive"), answer=False)


def test_compaction_that_has_not_run_of_late_is_a_warning(tmp_path: Path) -> None:
    make_archive(tmp_path / "archive", "id", DAY_NUMBER, seq=7)
    archived_to(tmp_path, tmp_path / "archive")

    finding = findings_of(tmp_path, str(tmp_path / "archive"), hours=49)["answers from archive"]

    assert finding.verdict is FindingVerdict.WARNING
    assert "49 hours ago" in finding.text


def test_archive_that_cannot_answer_is_a_warning(tmp_path: Path) -> None:
    archived_to(tmp_path, "hdfs://host/archive")

    finding = findings_of(tmp_path, "hdfs://host/archive")["answers from archive"]

    assert finding.verdict is FindingVerdict.WARNING
    assert finding.text.endswith("it is neither in a local folder nor on S3")


def test_record_that_cannot_be_read_is_a_problem(tmp_path: Path) -> None:
    make_archive(tmp_path / "archive", "id", DAY_NUMBER, seq=7)
    archived_to(tmp_path, tmp_path / "archive")
    (record,) = (tmp_path / "archive" / "_records").iterdir()
    record.write_text("{")

    finding = findings_of(tmp_path, str(tmp_path / "archive"))["answers from archive"]

    assert finding.verdict is FindingVerdict.PROBLEM
    assert str(record) in finding.text


def test_archive_that_changes_all_the_time_is_left_to_the_run_that_changes_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archive_module, "CHANGES_TIMEOUT_S", 0.01)
    make_archive(tmp_path / "archive", "id", DAY_NUMBER, seq=7)
    archived_to(tmp_path, tmp_path / "archive")
    monkeypatch.setattr(doctor_module, "files_of", lambda archive: NeverAtRest(Path(archive)))

    finding = findings_of(tmp_path, str(tmp_path / "archive"))["answers from archive"]

    assert finding.verdict is FindingVerdict.OK
    assert finding.text.endswith("_records changes all the time")


def test_damaged_settings_are_a_warning(tmp_path: Path) -> None:
    make_archive(tmp_path / "archive", "id", DAY_NUMBER, seq=7)
    archived_to(tmp_path, tmp_path / "archive")
    (tmp_path / "archive" / SETTINGS_FILE).write_text("{")

    finding = findings_of(tmp_path, str(tmp_path / "archive"))["answers from archive"]

    assert finding.verdict is FindingVerdict.WARNING
    assert finding.text.startswith(f"file://{tmp_path / 'archive' / SETTINGS_FILE} is damaged: ")
    assert "requests are answered from it all the same" in finding.text


@pytest.mark.parametrize("part", ["file", "folder", "date", "record"])
def test_archive_that_we_may_not_read_is_a_problem(folder: Path, part: str) -> None:
    file = make_archive(folder / "archive", "id", DAY_NUMBER, seq=7)
    record = folder / "archive" / record_of(day_name(DAY_NUMBER))
    archived_to(folder, folder / "archive")
    archived_file(folder / STORE_FILE).chmod(0o644)
    locked = {"file": file, "folder": file.parent, "date": file.parent.parent, "record": record}[part]
    mode = locked.stat().st_mode
    locked.chmod(0)

    with as_nobody():
        finding = findings_of(folder, str(folder / "archive"))["answers from archive"]
    locked.chmod(mode)  # or the folder could not be removed

    assert finding.verdict is FindingVerdict.PROBLEM
    assert finding.text.startswith(("cannot read", str(locked)))
    assert finding.text.endswith(": requests that need it fail")
    assert finding.advice.startswith("let the user")
    assert str(locked) in finding.text
