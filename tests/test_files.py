"""mailserver.files: files that are whole whenever they are looked at, and locks."""

import os
import stat
from pathlib import Path

import pytest

from mailserver.files import (
    make_folder,
    open_descriptor,
    read_holder,
    try_lock,
    unlock,
    write_atomically,
    write_holder,
    write_new,
)
from tests.nobody import NOBODY
from tests.synced import watch_syncs


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.parametrize("mask", [0, 0o077])
def test_file_has_its_mode_whatever_the_umask(tmp_path: Path, mask: int) -> None:
    before = os.umask(mask)
    try:
        write_atomically(tmp_path / "file", "text\n", 0o644)
    finally:
        os.umask(before)

    assert mode_of(tmp_path / "file") == 0o644
    assert (tmp_path / "file").read_text() == "text\n"


@pytest.mark.parametrize("mask", [0, 0o022, 0o277])
def test_file_that_is_opened_to_be_made_is_its_owners_alone_whatever_the_umask(tmp_path: Path, mask: int) -> None:
    before = os.umask(mask)
    try:
        with open_descriptor(tmp_path / "lock", os.O_RDWR | os.O_CREAT):
            pass
        write_new(tmp_path / "new", b"bytes")
    finally:
        os.umask(before)

    assert mode_of(tmp_path / "lock") == mode_of(tmp_path / "new") == 0o600


def test_file_of_ours_that_others_could_open_is_closed_to_them(tmp_path: Path) -> None:
    (tmp_path / "lock").touch(mode=0o666)

    with open_descriptor(tmp_path / "lock", os.O_RDWR | os.O_CREAT):
        assert mode_of(tmp_path / "lock") == 0o600


@pytest.mark.parametrize("flags", [os.O_RDWR | os.O_CREAT, os.O_RDONLY])
def test_link_is_not_followed(tmp_path: Path, flags: int) -> None:
    (tmp_path / "precious").write_text("content")
    (tmp_path / "lock").symlink_to("precious")

    with pytest.raises(OSError, match="lock is a symbolic link"), open_descriptor(tmp_path / "lock", flags):
        pass

    assert (tmp_path / "precious").read_text() == "content"


def test_descriptor_is_not_for_child_processes(tmp_path: Path) -> None:
    with open_descriptor(tmp_path / "lock", os.O_RDWR | os.O_CREAT) as descriptor:
        assert not os.get_inheritable(descriptor)


def test_what_is_made_in_a_folder_belongs_to_its_owner_also_where_root_makes_it(tmp_path: Path) -> None:
    owner = NOBODY if os.geteuid() == 0 else os.geteuid()  # only root can give something away
    os.chown(tmp_path, owner, -1)

    write_atomically(tmp_path / "file", "text\n")
    with open_descriptor(tmp_path / "lock", os.O_RDWR | os.O_CREAT):
        pass

    assert [(tmp_path / name).stat().st_uid for name in ("file", "lock")] == [owner, owner]


def test_folder_is_made_with_its_parents_and_each_name_is_synced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced = watch_syncs(monkeypatch)

    make_folder(tmp_path / "a" / "b" / "c", 0o700)

    assert mode_of(tmp_path / "a" / "b" / "c") == 0o700
    assert synced == [tmp_path, tmp_path / "a", tmp_path / "a" / "b"]


def test_name_of_a_folder_that_is_there_is_synced_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced = watch_syncs(monkeypatch)

    (tmp_path / "a").mkdir()  # by one who was killed right then

    make_folder(tmp_path / "a")

    assert synced == [tmp_path]


def test_folder_in_one_that_we_may_not_read_is_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(path: Path) -> None:
        raise PermissionError(path)

    monkeypatch.setattr("mailserver.files.sync_folder", refused)  # root may read everything

    make_folder(tmp_path / "a")

    assert (tmp_path / "a").is_dir()


def test_file_is_no_folder(tmp_path: Path) -> None:
    (tmp_path / "a").touch()

    for path in (tmp_path / "a", tmp_path / "a" / "b"):
        with pytest.raises(OSError, match=r"File exists|Not a directory"):
            make_folder(path)


def test_what_a_crash_left_behind_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "file.tmp").write_text("half of another")
    (tmp_path / "file.tmp").chmod(0o666)

    write_atomically(tmp_path / "file", "text\n", 0o600)

    assert [path.name for path in tmp_path.iterdir()] == ["file"]
    assert mode_of(tmp_path / "file") == 0o600


def test_failed_write_leaves_the_old_file(tmp_path: Path) -> None:
    write_atomically(tmp_path / "file", "old", 0o600)
    (tmp_path / "file.tmp").mkdir()

    with pytest.raises(IsADirectoryError):
        write_atomically(tmp_path / "file", "new", 0o600)

    assert (tmp_path / "file").read_text() == "old"


def test_lock_is_held_by_one_until_it_is_given_up(tmp_path: Path) -> None:
    with (
        open_descriptor(tmp_path / "lock", os.O_RDWR | os.O_CREAT) as one,
        open_descriptor(tmp_path / "lock", os.O_RDWR) as other,
    ):
        assert try_lock(one)
        assert not try_lock(other)
        assert not try_lock(other, shared=True)

        unlock(one)
        assert try_lock(other)


def test_shared_lock_is_held_by_many_and_keeps_out_who_wants_it_alone(tmp_path: Path) -> None:
    with (
        open_descriptor(tmp_path / "lock", os.O_RDWR | os.O_CREAT) as one,
        open_descriptor(tmp_path / "lock", os.O_RDONLY) as other,
        open_descriptor(tmp_path / "lock", os.O_RDWR) as third,
    ):
        assert try_lock(one, shared=True)
        assert try_lock(other, shared=True)
        assert not try_lock(third)


def test_closing_gives_a_lock_up(tmp_path: Path) -> None:
    with open_descriptor(tmp_path / "lock", os.O_RDWR | os.O_CREAT) as one:
        assert try_lock(one)

    with open_descriptor(tmp_path / "lock", os.O_RDWR) as other:
        assert try_lock(other)


def test_holder_is_this_process_and_nothing_of_the_one_before(tmp_path: Path) -> None:
    (tmp_path / "lock").write_text("12345678901234567890\n")

    with open_descriptor(tmp_path / "lock", os.O_RDWR) as descriptor:
        assert read_holder(descriptor) == "12345678901234567890"
        write_holder(descriptor)
        assert read_holder(descriptor) == str(os.getpid())

    assert (tmp_path / "lock").read_text() == f"{os.getpid()}\n"
