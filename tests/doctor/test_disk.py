"""mailserver.doctor.disk: room, growth, file system, permissions. Nothing is changed."""

import json
import os
from pathlib import Path

import pytest

from mailserver.app.config import Config
from mailserver.data_dir.folder import KEY_FILE, load_or_make_key
from mailserver.data_dir.gateway_files import GATEWAY_KEY_FILE, load_or_make_seed
from mailserver.data_dir.own_store import RECORD_FILE
from mailserver.doctor.disk import (
    MIN_FREE_BYTES,
    MIN_FREE_DAYS,
    Growth,
    check_data_dir,
    check_file_system,
    check_secrets,
    check_space,
    check_store_clock,
    file_system_of,
    read_growth,
)
from mailserver.doctor.findings import Finding, FindingVerdict
from mailserver.store.sqlite.schema import STORE_FILE
from tests.mailservers import NOW, make_envelope, stored
from tests.store.samples import change, contents_of, make_store, names_in, rows

DAY = 86_400
DAY_NUMBER = 20_000
MIB = 1024 * 1024


def fill(data_dir: Path, days: int) -> None:
    """A store that received 10 envelopes a day, the last of them today."""
    data_dir.mkdir()
    envelopes = [
        stored(make_envelope(10 * day + n, created=NOW - day * DAY - n, data_bytes=2000), received=NOW - day * DAY)
        for day in range(days)
        for n in range(10)
    ]
    make_store(data_dir / STORE_FILE, envelopes)
    change(data_dir / STORE_FILE, "PRAGMA journal_mode = WAL")


def by_check(findings: list[Finding]) -> dict[str, Finding]:
    return {finding.check: finding for finding in findings}


def test_growth_is_what_a_day_takes_on_the_disk(tmp_path: Path) -> None:
    fill(tmp_path / "data", 10)
    before = contents_of(tmp_path / "data")

    growth = read_growth(tmp_path / "data")

    assert growth is not None
    assert growth.stored == (tmp_path / "data" / STORE_FILE).stat().st_size
    assert growth.a_day == pytest.approx(growth.stored / 10, rel=0.01)
    assert names_in(tmp_path / "data") == {STORE_FILE}
    assert contents_of(tmp_path / "data") == before


def test_store_of_one_day_says_nothing_of_growth(tmp_path: Path) -> None:
    fill(tmp_path / "data", 1)
    growth = read_growth(tmp_path / "data")

    assert growth is not None
    assert growth.a_day == 0


def test_no_store_says_nothing(tmp_path: Path) -> None:
    assert read_growth(tmp_path) is None


@pytest.mark.parametrize(
    ("free", "growth", "verdict"),
    [
        (MIN_FREE_BYTES, None, FindingVerdict.OK),
        (MIN_FREE_BYTES - 1, None, FindingVerdict.PROBLEM),
        (MIN_FREE_DAYS * 1000 * MIB, Growth(1, 1000 * MIB), FindingVerdict.OK),
        (MIN_FREE_DAYS * 1000 * MIB - 1, Growth(1, 1000 * MIB), FindingVerdict.WARNING),
    ],
)
def test_room(free: int, growth: Growth | None, verdict: FindingVerdict) -> None:
    assert check_space(free, growth).verdict is verdict


MOUNTS = """\
22 1 254:0 / / rw,relatime - ext4 /dev/vda rw
30 22 0:25 / /srv rw,nosuid shared:2 - nfs4 server:/export rw
31 22 0:26 / /with\\040space rw - xfs /dev/vdb rw
32 30 0:27 / /srv/local rw - tmpfs tmpfs rw
33 32 0:28 / /srv/local rw - btrfs /dev/vdc rw
"""


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/data", "ext4"),
        ("/srv", "nfs4"),
        ("/srv/data/deep", "nfs4"),
        ("/srvother", "ext4"),
        ("/with space/data", "xfs"),
        ("/srv/local/data", "btrfs"),
    ],
)
def test_file_system_is_that_of_the_nearest_mount(path: str, kind: str) -> None:
    assert file_system_of(Path(path), MOUNTS) == kind


@pytest.mark.parametrize(
    ("kind", "verdict"),
    [
        ("ext4", FindingVerdict.OK),
        ("", FindingVerdict.OK),
        ("nfs4", FindingVerdict.PROBLEM),
        ("9p", FindingVerdict.PROBLEM),
        ("tmpfs", FindingVerdict.WARNING),
    ],
)
def test_file_system(kind: str, verdict: FindingVerdict) -> None:
    assert check_file_system(kind).verdict is verdict


def test_folder_that_is_not_there_yet_will_do(tmp_path: Path) -> None:
    found = by_check(check_data_dir(tmp_path / "deep" / "data"))

    assert found["data directory"].verdict is FindingVerdict.OK
    assert "will be made" in found["data directory"].text
    assert found["file system"].text
    assert names_in(tmp_path) == set()


def test_file_in_the_place_of_the_folder_is_a_problem(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("")

    assert by_check(check_data_dir(tmp_path / "data"))["data directory"].verdict is FindingVerdict.PROBLEM


@pytest.mark.parametrize("name", ["", STORE_FILE])
def test_what_cannot_be_written_is_a_problem(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(tmp_path / "data", 1)
    locked = tmp_path / "data" / name
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path) != locked)  # root may write whatever the mode

    found = by_check(check_data_dir(tmp_path / "data"))["data directory"]

    assert found.verdict is FindingVerdict.PROBLEM
    assert found.text == f"{locked} cannot be written"


def test_secrets_of_their_owner_are_fine_and_never_shown(tmp_path: Path) -> None:
    key, seed = load_or_make_key(tmp_path), load_or_make_seed(tmp_path)
    (tmp_path / "token").write_text("secret-token-of-this-test\n")
    (tmp_path / "token").chmod(0o600)

    findings = check_secrets(Config(data_dir=tmp_path, rpc_token_file=str(tmp_path / "token")))

    assert [(finding.check, finding.verdict) for finding in findings] == [
        (KEY_FILE, FindingVerdict.OK),
        (GATEWAY_KEY_FILE, FindingVerdict.OK),
        ("token file", FindingVerdict.OK),
    ]
    assert key.secret.hex() not in str(findings)
    assert seed.hex() not in str(findings)
    assert "secret-token" not in str(findings)


@pytest.mark.parametrize("name", [KEY_FILE, GATEWAY_KEY_FILE, "token"])
def test_secret_that_others_may_read_is_a_problem(tmp_path: Path, name: str) -> None:
    load_or_make_key(tmp_path)
    load_or_make_seed(tmp_path)
    (tmp_path / "token").write_text("secret-token-of-this-test\n")
    (tmp_path / "token").chmod(0o600)
    (tmp_path / name).chmod(0o644)

    findings = check_secrets(Config(data_dir=tmp_path, rpc_token_file=str(tmp_path / "token")))

    (wrong,) = [finding for finding in findings if finding.verdict is FindingVerdict.PROBLEM]
    assert wrong.advice == f"run: chmod 600 {tmp_path / name}"


def test_missing_token_file_is_a_problem_and_no_key_is_made(tmp_path: Path) -> None:
    (finding,) = check_secrets(Config(data_dir=tmp_path, rpc_token_file=str(tmp_path / "token")))

    assert finding.verdict is FindingVerdict.PROBLEM
    assert names_in(tmp_path) == set()


@pytest.mark.parametrize(("seen", "is_behind"), [(29, False), (30, False), (31, True)])
def test_store_that_lacks_what_was_seen_in_it_is_a_problem(tmp_path: Path, seen: int, is_behind: bool) -> None:
    data = tmp_path / "data"
    fill(data, 3)
    ((identity,),) = rows(data / STORE_FILE, "SELECT id FROM identity")
    (data / RECORD_FILE).write_text(json.dumps({"version": 1, "identity": identity, "seq": seen}))
    before = contents_of(data)

    findings = by_check(check_data_dir(data))

    assert ("store rows" in findings) is is_behind
    if is_behind:
        assert findings["store rows"].verdict is FindingVerdict.PROBLEM
        assert findings["store rows"].text == "it went back in time: row 31 was seen in it, and its last is 30"
    assert contents_of(data) == before


@pytest.mark.parametrize("record", ["{", json.dumps({"version": 1, "identity": "of another", "seq": 1000})])
def test_what_was_seen_elsewhere_says_nothing_of_a_store(tmp_path: Path, record: str) -> None:
    fill(tmp_path / "data", 3)
    (tmp_path / "data" / RECORD_FILE).write_text(record)

    assert "store rows" not in by_check(check_data_dir(tmp_path / "data"))


def test_backup_did_not_go_back(tmp_path: Path) -> None:
    fill(tmp_path / "data", 3)
    change(tmp_path / "data" / STORE_FILE, "DELETE FROM identity")

    assert "store rows" not in by_check(check_data_dir(tmp_path / "data"))


def test_envelopes_from_the_future_are_told_of(tmp_path: Path) -> None:
    fill(tmp_path / "data", 1)

    assert check_store_clock(tmp_path / "data", NOW) == []
    (finding,) = check_store_clock(tmp_path / "data", NOW - 3 * DAY)
    assert finding.verdict is FindingVerdict.WARNING
    assert "3 days in the future" in finding.text
