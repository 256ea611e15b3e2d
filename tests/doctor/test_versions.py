"""mailserver.doctor.versions: what is too old or missing is named."""

import re
from importlib import metadata
from pathlib import Path

import pytest

from mailserver.doctor import versions
from mailserver.doctor.findings import FindingVerdict
from mailserver.doctor.versions import PACKAGE, check_java, check_packages, check_python, check_sqlite, check_versions


def test_what_is_installed_here_will_do() -> None:
    findings = {finding.check: finding for finding in check_versions() if finding.check != "java"}

    assert {finding.verdict for finding in findings.values()} == {FindingVerdict.OK}
    own = [name for name in metadata.requires(PACKAGE) or [] if "extra" not in name]
    assert findings["packages"].text == f"{len(own)}, all new enough"


@pytest.mark.parametrize(
    ("version", "verdict"),
    [((3, 10, 9), FindingVerdict.PROBLEM), ((3, 11, 0), FindingVerdict.OK), ((4, 0, 0), FindingVerdict.OK)],
)
def test_python(version: tuple[int, ...], verdict: FindingVerdict) -> None:
    assert check_python(version).verdict is verdict


@pytest.mark.parametrize(
    ("version", "verdict", "has_fault"),
    [
        ((3, 37, 2), FindingVerdict.PROBLEM, False),
        ((3, 38, 0), FindingVerdict.OK, True),
        ((3, 51, 2), FindingVerdict.OK, True),
        ((3, 51, 3), FindingVerdict.OK, False),
    ],
)
def test_sqlite(version: tuple[int, ...], verdict: FindingVerdict, has_fault: bool) -> None:
    finding = check_sqlite(version)

    assert finding.verdict is verdict
    assert ("WAL-reset fault" in finding.text) == has_fault


@pytest.mark.parametrize(
    ("requirement", "words"),
    [
        ("rich>=999", "rich .* \\(needs 999\\)"),
        ("eth-hash[pysha3]>=999.1", "eth-hash .* \\(needs 999.1\\)"),
        ("no-such-package>=1.0", "no-such-package missing \\(needs 1.0\\)"),
    ],
)
def test_package_that_is_too_old_or_missing_is_named(requirement: str, words: str) -> None:
    finding = check_packages([requirement, "rich>=1"])

    assert finding.verdict is FindingVerdict.PROBLEM
    assert re.fullmatch(words, finding.text)


@pytest.mark.parametrize(
    ("says", "verdict"),
    [
        ('openjdk version "17.0.9" 2023-10-17', FindingVerdict.OK),
        ('openjdk version "21" 2023-09-19', FindingVerdict.OK),
        ('java version "1.8.0_392"', FindingVerdict.PROBLEM),
        ("Segmentation fault", FindingVerdict.PROBLEM),
    ],
)
def test_java(tmp_path: Path, says: str, verdict: FindingVerdict) -> None:
    program = tmp_path / "bin" / "java"
    program.parent.mkdir()
    program.write_text(f"#!/bin/sh\necho '{says}' >&2\n")
    program.chmod(0o755)

    assert check_java(str(tmp_path)).verdict is verdict


def test_missing_java_is_named(tmp_path: Path) -> None:
    finding = check_java(str(tmp_path))

    assert finding.verdict is FindingVerdict.PROBLEM
    assert "does not run" in finding.text


def test_program_that_is_not_installed_is_told_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(versions, "PACKAGE", "no-such-package")

    assert check_versions()[-1].verdict is FindingVerdict.WARNING
