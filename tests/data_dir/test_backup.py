"""mailserver.data_dir.backup: a folder that is complete or not there, of one moment, and overwrites nothing."""

import contextlib
import os
import sqlite3
import stat
from pathlib import Path
from typing import Any

import pytest

from mailserver.catchup.ledger import PROGRESS_FILE
from mailserver.communities.channels import community_id
from mailserver.community.folder import COMMUNITIES_FOLDER
from mailserver.community.member.joined import Joined, membership, memberships
from mailserver.community.owner import folders
from mailserver.community.owner.folders import owned
from mailserver.data_dir import backup as backup_module
from mailserver.data_dir.backup import Backup, BackupError, back_up
from mailserver.data_dir.folder import KEY_FILE, load_or_make_key
from mailserver.data_dir.gateway_files import GATEWAY_KEY_FILE, load_or_make_seed, write_addresses
from mailserver.data_dir.salvage import salvage_data_dir
from mailserver.errors import StoreError
from mailserver.files import open_descriptor, try_lock
from mailserver.gateway.index.database import connect_writer
from mailserver.gateway.index.mapping import Original
from mailserver.gateway.index.schema import INDEX_FILE
from mailserver.gateway.index.writing import keep
from mailserver.handoff.archived import Archived
from mailserver.ids.muid import DEFAULT_NETWORK_TOPIC
from mailserver.store.sqlite import backup as store_backup
from mailserver.store.sqlite.handoff import write_archived
from mailserver.store.sqlite.schema import STORE_FILE
from tests.community.owner.samples import OTHER_OWNER, made_in
from tests.gateway.index.worlds import bridged, original
from tests.mailservers import NOW, make_envelopes, stored
from tests.store.samples import change, contents_of, make_store, names_in, rows

MESSAGE = original(1, timestamp=NOW * 10**9 + 7, meta=b"meta")
ENVELOPE = bridged(MESSAGE)


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    """Everything that a daemon leaves, and its compaction."""
    data_dir = tmp_path / "data"
    data_dir.mkdir()
    make_store(data_dir / STORE_FILE, [stored(envelope) for envelope in make_envelopes(20)])
    change(data_dir / STORE_FILE, "PRAGMA journal_mode = WAL")
    load_or_make_key(data_dir)
    (data_dir / PROGRESS_FILE).write_text('{"version": 1, "missed": [], "sources": {}}\n')
    write_archived(data_dir / STORE_FILE, Archived("id", "archive", NOW, {}))
    (data_dir / f"{STORE_FILE}-compaction.json").write_text("{}\n")
    (data_dir / "lock").write_text("1\n")
    (data_dir / "enode").write_text("enode://\n")
    return data_dir


def make(data_dir: Path, destination: Path) -> Backup:
    return back_up(data_dir, destination, lambda done, total: None)


def serve_v2(data_dir: Path) -> None:
    """Leave what a gateway leaves, with one message that a client of v2 has sent."""
    load_or_make_seed(data_dir)
    write_addresses(data_dir, ["/ip4/127.0.0.1/tcp/60000"])
    with contextlib.closing(connect_writer(data_dir / INDEX_FILE)) as index:
        keep(index, ENVELOPE.hash(), ENVELOPE.created, MESSAGE.hash(DEFAULT_NETWORK_TOPIC), Original.of(MESSAGE))


def originals_in(folder: Path) -> list[Any]:
    with contextlib.closing(sqlite3.connect(folder / INDEX_FILE)) as index:
        return index.execute("SELECT message, timestamp, meta FROM originals").fetchall()


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_backup_has_what_is_of_worth_and_nothing_of_the_running_daemon(data_dir: Path, tmp_path: Path) -> None:
    made = make(data_dir, tmp_path / "backup")

    names = {STORE_FILE, KEY_FILE, PROGRESS_FILE, f"{STORE_FILE}-archived.json", f"{STORE_FILE}-compaction.json"}
    assert names_in(tmp_path / "backup") == names == set(made.files)
    assert (made.envelopes, made.bytes) == (20, (tmp_path / "backup" / STORE_FILE).stat().st_size)
    for name in names - {STORE_FILE}:
        assert (tmp_path / "backup" / name).read_bytes() == (data_dir / name).read_bytes()
    assert names_in(tmp_path) == {"data", "backup"}


def test_backup_has_the_key_of_the_gateway_and_what_its_clients_sent(data_dir: Path, tmp_path: Path) -> None:
    serve_v2(data_dir)

    made = make(data_dir, tmp_path / "backup")

    assert {GATEWAY_KEY_FILE, INDEX_FILE} <= set(made.files) == names_in(tmp_path / "backup")
    assert load_or_make_seed(tmp_path / "backup") == load_or_make_seed(data_dir)
    assert originals_in(tmp_path / "backup") == [(MESSAGE.hash(DEFAULT_NETWORK_TOPIC), MESSAGE.timestamp, MESSAGE.meta)]
    assert mode(tmp_path / "backup" / INDEX_FILE) == mode(tmp_path / "backup" / GATEWAY_KEY_FILE) == 0o600


async def test_what_is_saved_of_a_damaged_directory_has_them_too(data_dir: Path, tmp_path: Path) -> None:
    serve_v2(data_dir)

    await salvage_data_dir(data_dir, tmp_path / "saved", lambda step, done, total: None)

    assert load_or_make_seed(tmp_path / "saved") == load_or_make_seed(data_dir)
    assert originals_in(tmp_path / "saved") == originals_in(data_dir)


async def test_backup_and_what_is_saved_have_what_nobody_could_make_again_of_communities(
    data_dir: Path, tmp_path: Path
) -> None:
    ours = made_in(data_dir / COMMUNITIES_FOLDER)
    ours.data.write_bytes(bytes(100_000))
    ours.announced.write_text("{}\n")
    theirs = membership(data_dir, community_id(OTHER_OWNER.public_key))
    theirs.write(Joined(theirs.community, ("news",)))

    made = make(data_dir, tmp_path / "backup")
    await salvage_data_dir(data_dir, tmp_path / "saved", lambda step, done, total: None)

    for folder in tmp_path / "backup", tmp_path / "saved":
        (restored,) = owned(folder / COMMUNITIES_FOLDER)
        assert (restored.read(), restored.read_key().secret) == (ours.read(), ours.read_key().secret)
        assert restored.announced.exists()
        assert not restored.data.exists()
        (joined,) = memberships(folder)
        assert joined.read() == theirs.read()
        assert {mode(path) for path in (folder / COMMUNITIES_FOLDER).rglob("*")} == {0o700, 0o600}
    assert f"{COMMUNITIES_FOLDER}/{ours.path.name}/{folders.KEY_FILE}" in made.files


async def test_unreadable_file_of_a_community_ends_a_backup_and_no_salvage(
    data_dir: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    ours = made_in(data_dir / COMMUNITIES_FOLDER)
    ours.announced.mkdir()

    with pytest.raises(BackupError, match="Is a directory"):
        make(data_dir, tmp_path / "backup")
    saved = await salvage_data_dir(data_dir, tmp_path / "saved", lambda step, done, total: None)

    assert saved.saved == 20
    (restored,) = owned(tmp_path / "saved" / COMMUNITIES_FOLDER)
    assert restored.read_key().secret == ours.read_key().secret
    assert f"file not saved file=communities/{ours.path.name}/{folders.ANNOUNCED_FILE}" in caplog.text


async def test_damaged_index_of_a_gateway_is_told_by_backup_and_left_by_salvage(data_dir: Path, tmp_path: Path) -> None:
    (data_dir / INDEX_FILE).write_bytes(b"no database" * 1000)

    with pytest.raises(StoreError, match="cannot use the index of messages"):
        make(data_dir, tmp_path / "backup")
    saved = await salvage_data_dir(data_dir, tmp_path / "saved", lambda step, done, total: None)

    assert names_in(tmp_path) == {"data", "saved"}
    assert INDEX_FILE not in names_in(tmp_path / "saved")
    assert saved.saved == 20


def test_secrets_stay_their_owners(data_dir: Path, tmp_path: Path) -> None:
    make(data_dir, tmp_path / "backup")

    assert mode(tmp_path / "backup") == 0o700
    assert mode(tmp_path / "backup" / KEY_FILE) == 0o600
    assert load_or_make_key(tmp_path / "backup").secret == load_or_make_key(data_dir).secret


def test_data_directory_is_left_as_it_is(data_dir: Path, tmp_path: Path) -> None:
    before = contents_of(data_dir)

    make(data_dir, tmp_path / "backup")

    assert {name: content for name, content in contents_of(data_dir).items() if not name.endswith("-wal")} == before


def test_empty_folder_is_taken(data_dir: Path, tmp_path: Path) -> None:
    (tmp_path / "backup").mkdir()

    make(data_dir, tmp_path / "backup")

    assert (tmp_path / "backup" / STORE_FILE).exists()


def test_store_alone_is_a_backup(data_dir: Path, tmp_path: Path) -> None:
    for name in names_in(data_dir) - {STORE_FILE}:
        (data_dir / name).unlink()

    assert make(data_dir, tmp_path / "backup").files == (STORE_FILE,)


@pytest.mark.parametrize(
    ("prepare", "why"),
    [
        (lambda path: path.write_text("mine"), "not a folder: nothing is overwritten"),
        (lambda path: path.symlink_to("elsewhere"), "not a folder: nothing is overwritten"),
        (lambda path: (path.mkdir(), (path / "mine").write_text("mine")), "is not empty: nothing is overwritten"),
    ],
)
def test_nothing_is_overwritten(data_dir: Path, tmp_path: Path, prepare: object, why: str) -> None:
    assert callable(prepare)
    prepare(tmp_path / "backup")
    before = os.lstat(tmp_path / "backup")

    with pytest.raises(BackupError, match=why):
        make(data_dir, tmp_path / "backup")

    assert os.lstat(tmp_path / "backup").st_mtime_ns == before.st_mtime_ns
    assert names_in(tmp_path) == {"data", "backup"}


def test_mount_point_is_refused(data_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "backup").mkdir()
    monkeypatch.setattr(Path, "is_mount", lambda path: path == tmp_path / "backup")  # to mount takes root

    with pytest.raises(BackupError, match="is a mount point"):
        make(data_dir, tmp_path / "backup")


def test_folders_above_are_made(data_dir: Path, tmp_path: Path) -> None:
    make(data_dir, tmp_path / "backups" / "2026" / "11-21")

    assert (tmp_path / "backups" / "2026" / "11-21" / STORE_FILE).exists()


def test_place_that_cannot_be_written_is_an_error(data_dir: Path, tmp_path: Path) -> None:
    with pytest.raises(BackupError, match="cannot write the backup"):
        make(data_dir, Path("/proc/backup"))


def test_failure_leaves_nothing(data_dir: Path, tmp_path: Path) -> None:
    def fail(done: int, total: int) -> None:
        assert names_in(tmp_path) == {"data", ".backup.partial"}  # until it is complete, it has another name
        assert mode(tmp_path / ".backup.partial") == 0o700
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        back_up(data_dir, tmp_path / "backup", fail)

    assert names_in(tmp_path) == {"data"}


def test_what_a_killed_run_has_left_is_no_hindrance(data_dir: Path, tmp_path: Path) -> None:
    (tmp_path / ".backup.partial").mkdir()
    (tmp_path / ".backup.partial" / STORE_FILE).write_text("half of it")
    (tmp_path / ".backup.partial" / COMMUNITIES_FOLDER).mkdir()

    make(data_dir, tmp_path / "backup")

    assert names_in(tmp_path) == {"data", "backup"}
    assert rows(tmp_path / "backup" / STORE_FILE, "SELECT count(*) FROM envelopes") == [(20,)]


def test_second_backup_to_the_same_place_is_refused(data_dir: Path, tmp_path: Path) -> None:
    (tmp_path / ".backup.partial").mkdir()
    with open_descriptor(tmp_path / ".backup.partial", os.O_RDONLY) as descriptor:
        assert try_lock(descriptor)

        with pytest.raises(BackupError, match=r"another command is making "):
            make(data_dir, tmp_path / "backup")

    assert names_in(tmp_path) == {"data", ".backup.partial"}


def test_full_disk_is_told_of_before_anything_is_copied(
    data_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backup_module, "MIN_SPARE_BYTES", 2**62)

    with pytest.raises(BackupError, match=r"has [0-9.,]+ [KMGT]iB free, and the backup takes [0-9.,]+ [KMGT]iB"):
        make(data_dir, tmp_path / "backup")

    assert names_in(tmp_path) == {"data"}


def test_no_store_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()

    with pytest.raises(StoreError, match="there is none"):
        make(tmp_path / "data", tmp_path / "backup")

    assert names_in(tmp_path) == {"data"}


# One moment


def test_moment_at_which_the_progress_changes_is_not_taken(
    data_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken = 0
    real = store_backup.snapshot

    def snapshot(path: Path) -> object:
        nonlocal taken
        taken += 1
        if taken < 3:  # between our two looks at it
            (data_dir / PROGRESS_FILE).write_text(f"{taken}")
        return real(path)

    monkeypatch.setattr(backup_module, "snapshot", snapshot)

    make(data_dir, tmp_path / "backup")

    assert taken == 3
    assert (tmp_path / "backup" / PROGRESS_FILE).read_text() == "2"


def test_progress_that_never_rests_is_an_error(data_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = store_backup.snapshot

    def snapshot(path: Path) -> object:
        with (data_dir / PROGRESS_FILE).open("a") as file:
            file.write(".")
        return real(path)

    monkeypatch.setattr(backup_module, "snapshot", snapshot)

    with pytest.raises(BackupError, match="change faster"):
        make(data_dir, tmp_path / "backup")

    assert names_in(tmp_path) == {"data"}
