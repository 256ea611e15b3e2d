"""mailserver.data_dir.gateway_files: the gateway's lock, key and addresses, in good order and in bad.

Nothing here depends on who runs it: root may write everywhere, so what cannot be written is a path below a file.
"""

import os
import stat
from pathlib import Path

import pytest

from mailserver.data_dir.folder import DataDirInUse, locked
from mailserver.data_dir.gateway_files import (
    ADDRESSES_FILE,
    GATEWAY_KEY_FILE,
    GATEWAY_LOCK_FILE,
    SEED_BYTES,
    gateway_locked,
    load_or_make_seed,
    write_addresses,
)
from mailserver.errors import StartupError


@pytest.fixture
def below_a_file(tmp_path: Path) -> Path:
    (tmp_path / "file").touch()
    return tmp_path / "file" / "data"


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


# The lock


@pytest.mark.parametrize("mask", [0, 0o077])
def test_lock_makes_the_folder_for_its_owner_alone_whatever_the_umask(tmp_path: Path, mask: int) -> None:
    before = os.umask(mask)
    try:
        with gateway_locked(tmp_path / "new" / "data"):
            assert mode_of(tmp_path / "new" / "data") == 0o700
            assert mode_of(tmp_path / "new" / "data" / GATEWAY_LOCK_FILE) == 0o600
    finally:
        os.umask(before)


def test_second_gateway_on_the_folder_is_refused_and_told_who_has_it(tmp_path: Path) -> None:
    with (
        gateway_locked(tmp_path),
        pytest.raises(DataDirInUse, match=rf"another gateway \(pid {os.getpid()}\)"),
        gateway_locked(tmp_path),
    ):
        raise AssertionError("it was let in")


def test_lock_is_free_when_the_gateway_has_ended(tmp_path: Path) -> None:
    with gateway_locked(tmp_path):
        pass
    with gateway_locked(tmp_path):
        pass


def test_gateway_and_mailserver_share_the_folder(tmp_path: Path) -> None:
    with locked(tmp_path), gateway_locked(tmp_path):
        pass


def test_folder_that_cannot_be_made_is_a_startup_error(below_a_file: Path) -> None:
    with pytest.raises(StartupError, match="cannot write the data directory"), gateway_locked(below_a_file):
        raise AssertionError("it was let in")


# The key


def test_seed_is_made_once_for_its_owner_alone(tmp_path: Path) -> None:
    seed = load_or_make_seed(tmp_path)

    assert len(seed) == SEED_BYTES
    assert load_or_make_seed(tmp_path) == seed
    assert mode_of(tmp_path / GATEWAY_KEY_FILE) == 0o600


def test_each_folder_gets_a_seed_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()

    assert load_or_make_seed(tmp_path / "a") != load_or_make_seed(tmp_path / "b")


def test_seed_that_a_person_has_written_is_read(tmp_path: Path) -> None:
    (tmp_path / GATEWAY_KEY_FILE).touch(0o600)
    (tmp_path / GATEWAY_KEY_FILE).write_text("AB" * SEED_BYTES + "\r\n")

    assert load_or_make_seed(tmp_path) == b"\xab" * SEED_BYTES


@pytest.mark.parametrize("text", ["", "ab" * 31, "ab" * 33, "0x" + "ab" * 31, "zz" * 32])
def test_file_that_holds_no_seed_is_a_startup_error_and_stays(tmp_path: Path, text: str) -> None:
    (tmp_path / GATEWAY_KEY_FILE).touch(0o600)
    (tmp_path / GATEWAY_KEY_FILE).write_text(text)

    with pytest.raises(StartupError, match="holds no seed"):
        load_or_make_seed(tmp_path)

    assert (tmp_path / GATEWAY_KEY_FILE).read_text() == text


def test_seed_that_others_may_read_is_refused(tmp_path: Path) -> None:
    load_or_make_seed(tmp_path)
    (tmp_path / GATEWAY_KEY_FILE).chmod(0o640)

    with pytest.raises(StartupError, match=GATEWAY_KEY_FILE):
        load_or_make_seed(tmp_path)


def test_key_that_cannot_be_read_or_made_is_a_startup_error(tmp_path: Path) -> None:
    (tmp_path / GATEWAY_KEY_FILE).mkdir(0o700)

    with pytest.raises(StartupError, match="cannot read"):
        load_or_make_seed(tmp_path)
    with pytest.raises(StartupError, match="cannot write"):
        load_or_make_seed(tmp_path / "none")


# The addresses


def test_addresses_are_written_one_a_line_in_place_of_the_last_ones(tmp_path: Path) -> None:
    write_addresses(tmp_path, ["/ip4/127.0.0.1/tcp/1", "/ip4/127.0.0.1/tcp/2/ws"])
    write_addresses(tmp_path, ["/ip4/127.0.0.1/tcp/3"])

    assert (tmp_path / ADDRESSES_FILE).read_text() == "/ip4/127.0.0.1/tcp/3\n"
    assert [path.name for path in tmp_path.iterdir()] == [ADDRESSES_FILE]


def test_addresses_that_cannot_be_written_are_a_startup_error(tmp_path: Path) -> None:
    (tmp_path / ADDRESSES_FILE).mkdir()

    with pytest.raises(StartupError, match="cannot write"):
        write_addresses(tmp_path, ["/ip4/127.0.0.1/tcp/1"])
