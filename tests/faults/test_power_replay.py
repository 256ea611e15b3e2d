"""tests.faults.powercut.replay: what the model lets a power cut leave, and what it does not."""

import random
import shutil
from collections.abc import Iterable
from pathlib import Path

import pytest

from tests.faults.powercut.recorder import Entry, Kind
from tests.faults.powercut.replay import POSIX, Disk, FileSystem, Loss, UnknownCallError

OLD, NEW = b"o" * 2048, b"n" * 2048

Contents = dict[str, bytes]


def entry(kind: Kind, a: int = 0, b: int = 0, path: str = "", other: str = "", data: bytes = b"") -> Entry:
    return Entry(kind, a, b, path, other, data, 1)


def synced(inode: int, number: int = 1) -> list[Entry]:
    return [entry(Kind.SYNC_BEGIN, number, inode), entry(Kind.SYNC_END, number, inode)]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a file, and another folder, all on disk."""
    folder = tmp_path / "disk"
    (folder / "sub").mkdir(parents=True)
    (folder / "file").write_bytes(OLD)
    return folder


def inode(path: Path) -> int:
    return path.stat().st_ino


def left(
    folder: Path, entries: Iterable[Entry], loss: Loss, seed: int = 0, *, promises: FileSystem = POSIX
) -> Contents:
    """What one cut leaves after all entries: files and their contents."""
    disk = Disk(folder, promises)
    for one in entries:
        disk.play(one)
    target = folder.with_name("left")
    disk.cut(loss, random.Random(seed)).write_to(target)
    found = {str(path.relative_to(target)): path.read_bytes() for path in target.rglob("*") if path.is_file()}
    shutil.rmtree(target)
    return found


def all_left(
    folder: Path, entries: list[Entry], loss: Loss = Loss.RANDOM, *, promises: FileSystem = POSIX
) -> list[Contents]:
    return [left(folder, entries, loss, seed, promises=promises) for seed in range(60)]


def test_write_without_a_sync_may_be_there_or_not_or_in_part(folder: Path) -> None:
    write = [entry(Kind.WRITE, inode(folder / "file"), 0, data=NEW)]

    assert left(folder, write, Loss.EVERYTHING) == {"file": OLD}
    assert left(folder, write, Loss.NOTHING) == {"file": NEW}
    found = {content["file"] for content in all_left(folder, write)}
    assert {OLD, NEW} < found
    assert all(len(content) == len(OLD) and not content.strip(b"on") for content in found)
    assert any(content[:512] == OLD[:512] and NEW[:512] in content for content in found)  # a later sector alone


def test_write_that_was_synced_is_there(folder: Path) -> None:
    file = inode(folder / "file")
    entries = [entry(Kind.WRITE, file, 0, data=NEW), *synced(file)]

    for loss in Loss:
        assert left(folder, entries, loss) == {"file": NEW}


def test_sync_covers_what_came_before_it_began(folder: Path) -> None:
    file = inode(folder / "file")
    begin, end = synced(file)
    entries = [begin, entry(Kind.WRITE, file, 0, data=NEW), end]

    assert left(folder, entries, Loss.EVERYTHING) == {"file": OLD}


def test_sync_that_has_not_ended_covers_nothing(folder: Path) -> None:
    file = inode(folder / "file")
    entries = [entry(Kind.WRITE, file, 0, data=NEW), synced(file)[0]]

    assert left(folder, entries, Loss.EVERYTHING) == {"file": OLD}


def test_writes_have_no_order(folder: Path) -> None:
    file = inode(folder / "file")
    entries = [entry(Kind.WRITE, file, at, data=b"n") for at in (0, 1024)]

    found = {(content["file"][0:1], content["file"][1024:1025]) for content in all_left(folder, entries)}

    assert found == {(b"o", b"o"), (b"n", b"o"), (b"o", b"n"), (b"n", b"n")}


def test_tail_is_lost_from_some_moment_on(folder: Path) -> None:
    file = inode(folder / "file")
    entries = [entry(Kind.WRITE, file, at, data=b"n") for at in (0, 1024)]

    found = {(content["file"][0:1], content["file"][1024:1025]) for content in all_left(folder, entries, Loss.TAIL)}

    assert found == {(b"o", b"o"), (b"n", b"o"), (b"n", b"n")}


def test_longer_file_may_be_short_or_hold_zeros_or_garbage(folder: Path) -> None:
    entries = [entry(Kind.WRITE, inode(folder / "file"), len(OLD), data=NEW)]

    added = {content["file"].removeprefix(OLD) for content in all_left(folder, entries, Loss.DATA)}

    assert {b"", bytes(len(NEW))} < added
    assert any(part.strip(b"\0on") for part in added)
    assert NEW not in added


def test_shorter_file_may_be_long_again(folder: Path) -> None:
    entries = [entry(Kind.TRUNCATE, inode(folder / "file"), 5)]

    assert {content["file"] for content in all_left(folder, entries)} == {OLD, b"ooooo"}


def test_name_is_there_for_sure_when_its_folder_is_synced(folder: Path) -> None:
    create = [entry(Kind.CREATE, 99, 0o644, "new"), entry(Kind.WRITE, 99, 0, data=NEW), *synced(99)]

    assert left(folder, create, Loss.EVERYTHING) == {"file": OLD}
    assert left(folder, create, Loss.NOTHING) == {"file": OLD, "new": NEW}
    assert left(folder, [*create, *synced(inode(folder), 2)], Loss.EVERYTHING) == {"file": OLD, "new": NEW}


def test_folder_goes_with_its_name_and_all_that_is_in_it(folder: Path) -> None:
    entries = [
        entry(Kind.MKDIR, 98, 0o755, "made"),
        entry(Kind.CREATE, 99, 0o644, "made/new"),
        *synced(99),
        *synced(98, 2),
    ]

    assert left(folder, entries, Loss.EVERYTHING) == {"file": OLD}
    assert left(folder, [*entries, *synced(inode(folder), 3)], Loss.EVERYTHING) == {"file": OLD, "made/new": b""}


def test_rename_is_there_or_not_but_never_both_or_neither(folder: Path) -> None:
    entries = [
        entry(Kind.CREATE, 99, 0o644, "file.tmp"),
        entry(Kind.WRITE, 99, 0, data=NEW),
        *synced(99),
        *synced(inode(folder), 2),
        entry(Kind.RENAME, path="file.tmp", other="file"),
    ]

    found = all_left(folder, entries)

    assert {"file": OLD, "file.tmp": NEW} in found
    assert {"file": NEW} in found
    assert all(
        content["file"] in (OLD, NEW) and (content["file"] == NEW) != ("file.tmp" in content) for content in found
    )
    assert left(folder, [*entries, *synced(inode(folder), 3)], Loss.EVERYTHING) == {"file": NEW}


def test_rename_to_another_folder_is_on_disk_when_that_one_is_synced(folder: Path) -> None:
    entries = [entry(Kind.RENAME, path="file", other="sub/file")]

    assert left(folder, [*entries, *synced(inode(folder))], Loss.EVERYTHING) == {"file": OLD}
    assert left(folder, [*entries, *synced(inode(folder / "sub"))], Loss.EVERYTHING) == {"sub/file": OLD}


def test_name_that_was_moved_does_not_come_back_by_an_older_change(folder: Path) -> None:
    entries = [
        entry(Kind.CREATE, 99, 0o644, "new"),
        entry(Kind.RENAME, path="new", other="sub/new"),
        *synced(inode(folder / "sub")),
    ]

    for loss in Loss:
        assert left(folder, entries, loss) == {"file": OLD, "sub/new": b""}


def test_folders_are_exchanged_as_a_whole(folder: Path) -> None:
    (folder / "sub" / "a").mkdir()
    (folder / "sub" / "a" / "one").touch()
    (folder / "b").mkdir()
    (folder / "b" / "other").touch()
    entries = [entry(Kind.EXCHANGE, path="sub/a", other="b")]
    before = {"file": OLD, "sub/a/one": b"", "b/other": b""}
    after = {"file": OLD, "sub/a/other": b"", "b/one": b""}

    assert all(content in (before, after) for content in all_left(folder, entries))
    both = [*entries, *synced(inode(folder), 1), *synced(inode(folder / "sub"), 2)]
    assert left(folder, both, Loss.EVERYTHING) == after


def test_second_name_is_of_the_same_file(folder: Path) -> None:
    entries = [
        entry(Kind.LINK, path="file", other="sub/second"),
        *synced(inode(folder / "sub")),
        entry(Kind.WRITE, inode(folder / "file"), 0, data=NEW),
        *synced(inode(folder / "file"), 2),
    ]

    assert left(folder, entries, Loss.EVERYTHING) == {"file": NEW, "sub/second": NEW}


def test_file_that_was_removed_may_be_there_until_its_folder_is_synced(folder: Path) -> None:
    entries = [entry(Kind.UNLINK, path="file")]

    assert left(folder, entries, Loss.EVERYTHING) == {"file": OLD}
    assert left(folder, [*entries, *synced(inode(folder))], Loss.EVERYTHING) == {}


def test_permissions_are_those_of_the_file(folder: Path) -> None:
    disk = Disk(folder)
    for one in [entry(Kind.CREATE, 99, 0o600, "secret"), *synced(inode(folder))]:
        disk.play(one)

    disk.cut(Loss.EVERYTHING, random.Random(0)).write_to(folder.with_name("left"))

    assert (folder.with_name("left") / "secret").stat().st_mode & 0o777 == 0o600


def test_what_the_model_does_not_know_is_an_error(folder: Path) -> None:
    with pytest.raises(UnknownCallError, match="sendfile of file"):
        Disk(folder).play(entry(Kind.UNKNOWN, path="file", other="sendfile"))


# File systems that promise more


def test_file_system_may_keep_sectors_whole_and_show_nothing_that_was_never_written(folder: Path) -> None:
    start = 2048 - 100  # across the end, and not at a sector's edge
    write = [entry(Kind.WRITE, inode(folder / "file"), start, data=NEW)]
    careful = FileSystem(whole_sectors=True, no_garbage=True)

    found = {content["file"] for content in all_left(folder, write, promises=careful)}
    careless = {content["file"] for content in all_left(folder, write)}

    whole = OLD[:start] + NEW
    for content in found:
        for at in range(0, len(content), 512):
            sector = content[at : at + 512]
            assert sector in (whole[at : at + len(sector)], OLD[at : at + len(sector)], bytes(len(sector)))
    assert len(found) > 5
    assert any(content.strip(b"on\0") for content in careless)


def test_file_system_may_keep_the_name_of_a_new_file_that_was_synced(folder: Path) -> None:
    made = [entry(Kind.CREATE, 99, 0o600, path="sub/new"), entry(Kind.WRITE, 99, 0, data=NEW), *synced(99)]
    moved = [entry(Kind.RENAME, path="sub/new", other="sub/moved"), *synced(99, 2)]
    careful = FileSystem(names_with_files=True)

    assert left(folder, made, Loss.EVERYTHING) == {"file": OLD}
    assert left(folder, made, Loss.EVERYTHING, promises=careful) == {"file": OLD, "sub/new": NEW}
    assert left(folder, [*made, *moved], Loss.EVERYTHING, promises=careful) == {"file": OLD, "sub/new": NEW}
