"""mailserver.data_dir.folder: the lock, the node key and the enode file, in good order and in bad.

Nothing here depends on who runs it: root may write everywhere, so what cannot be written is a path below a file.
"""

import errno
import os
import stat
from pathlib import Path

import pytest

from mailserver.codec.keys import Enode
from mailserver.community.folder import COMMUNITIES_FOLDER
from mailserver.data_dir.folder import (
    LOCK_FILE,
    MAX_TOKEN_CHARS,
    MIN_TOKEN_CHARS,
    DataDirInUse,
    load_or_make_key,
    locked,
    read_enode,
    read_token,
    write_enode,
)
from mailserver.errors import StartupError
from mailserver.store.sqlite.schema import STORE_FILE
from tests.pairs import private_key

GROUP_ORDER = "fffffffffffffffffffffffffffffffebaaedce6af48a03bbfd25e8cd0364141"


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    return tmp_path / "data"


@pytest.fixture
def made(data_dir: Path) -> Path:
    data_dir.mkdir()
    return data_dir


@pytest.fixture
def below_a_file(tmp_path: Path) -> Path:
    (tmp_path / "file").touch()
    return tmp_path / "file" / "data"


def enode_at(port: int, name: str = "server") -> Enode:
    return Enode(private_key(name).public_key, "127.0.0.1", port)


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def names_in(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


# The lock


def test_lock_makes_the_folder_and_its_parents(tmp_path: Path) -> None:
    data_dir = tmp_path / "srv" / "waku" / "data"

    with locked(data_dir):
        assert data_dir.is_dir()


@pytest.mark.parametrize("mask", [0, 0o022, 0o077])
def test_folder_is_made_for_its_owner_alone_whatever_the_umask(data_dir: Path, mask: int) -> None:
    before = os.umask(mask)
    try:
        with locked(data_dir):
            assert mode_of(data_dir) == 0o700
            assert mode_of(data_dir / LOCK_FILE) == 0o600
    finally:
        os.umask(before)


def test_folder_of_an_earlier_version_is_closed_to_others_and_so_are_its_files(
    made: Path, caplog: pytest.LogCaptureFixture
) -> None:
    names = [LOCK_FILE, STORE_FILE, f"{STORE_FILE}-shm", f"{STORE_FILE}-archived.json", "enode", "sync.json"]
    for name in names:
        (made / name).touch()
        (made / name).chmod(0o644)
    (made / "archive").mkdir()
    made.chmod(0o755)

    with locked(made):
        assert mode_of(made) == 0o700
        assert {mode_of(made / name) for name in names} == {0o600}

    (line,) = caplog.messages
    assert line == "data directory was open to others, and is closed now mode=0755"


def test_folder_that_is_closed_is_not_spoken_of(data_dir: Path, caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(2):
        with locked(data_dir):
            pass

    assert caplog.messages == []


def test_link_in_an_open_folder_leads_to_no_change_elsewhere(made: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").touch()
    (tmp_path / "elsewhere").chmod(0o644)
    (made / LOCK_FILE).touch()
    (made / f"{STORE_FILE}-shm").symlink_to(tmp_path / "elsewhere")
    made.chmod(0o777)

    with locked(made):
        assert mode_of(tmp_path / "elsewhere") == 0o644


def test_lock_that_is_a_link_is_refused(made: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").touch()
    (made / LOCK_FILE).symlink_to(tmp_path / "elsewhere")

    with pytest.raises(StartupError) as refused, locked(made):
        pass

    assert str(refused.value) == f"cannot write the data directory {made}: lock is a symbolic link"
    assert (tmp_path / "elsewhere").read_bytes() == b""


@pytest.mark.parametrize(("mode", "files"), [(0o1777, [LOCK_FILE]), (0o755, ["notes.txt"])])
def test_open_folder_that_others_use_is_refused_and_left_as_it_is(made: Path, mode: int, files: list[str]) -> None:
    for name in files:
        (made / name).touch()
    made.chmod(mode)

    with pytest.raises(StartupError) as refused, locked(made):
        pass

    assert str(refused.value) == (
        f"{made} is open to others (mode {mode:04o}), and not only a mailserver's: name a folder of its own, or run: "
        f"chmod 700 {made}"
    )
    assert mode_of(made) == mode
    assert names_in(made) == set(files)


def test_folder_of_which_only_communities_are_there_is_closed(made: Path) -> None:
    (made / COMMUNITIES_FOLDER).mkdir()
    made.chmod(0o755)

    with locked(made):
        assert mode_of(made) == 0o700


def test_second_lock_is_refused_with_the_process_that_holds_the_first(data_dir: Path) -> None:
    with locked(data_dir), pytest.raises(StartupError) as refused, locked(data_dir):
        pass

    assert str(refused.value) == f"another mailserver (pid {os.getpid()}) uses the data directory {data_dir}"


def test_refused_lock_leaves_the_first_in_force(data_dir: Path) -> None:
    with locked(data_dir):
        for _ in range(2):
            with pytest.raises(StartupError), locked(data_dir):
                pass


def test_lock_is_free_after_use(data_dir: Path) -> None:
    with locked(data_dir):
        pass

    with locked(data_dir):
        pass


def test_lock_is_free_after_a_failure(data_dir: Path) -> None:
    with pytest.raises(LookupError), locked(data_dir):
        raise LookupError

    with locked(data_dir):
        pass


def test_failure_in_use_is_not_taken_for_another_mailserver(data_dir: Path) -> None:
    with pytest.raises(BlockingIOError), locked(data_dir):
        raise BlockingIOError


def test_locks_of_two_folders_do_not_meet(tmp_path: Path) -> None:
    with locked(tmp_path / "one"), locked(tmp_path / "two"):
        pass


def test_lock_file_of_a_dead_process_is_no_lock(made: Path) -> None:
    (made / "lock").write_text("1\n")

    with locked(made):
        assert (made / "lock").read_text() == f"{os.getpid()}\n"


def test_shorter_process_id_leaves_nothing_of_a_longer_one(made: Path) -> None:
    (made / "lock").write_text("12345678901234567890\n")

    with locked(made):
        assert (made / "lock").read_text() == f"{os.getpid()}\n"


def test_folder_that_cannot_be_made_is_named(below_a_file: Path) -> None:
    with pytest.raises(StartupError) as refused, locked(below_a_file):
        pass

    assert str(refused.value) == f"cannot write the data directory {below_a_file}: Not a directory"


def test_lock_that_cannot_be_taken_is_named(made: Path) -> None:
    os.mkfifo(made / "lock")

    with pytest.raises(StartupError) as refused, locked(made):
        pass

    assert str(refused.value) == f"cannot lock the data directory {made}: Illegal seek"


def test_file_is_no_data_folder(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("precious")

    with pytest.raises(StartupError, match=f"cannot write the data directory {file}: "), locked(file):
        pass

    assert file.read_text() == "precious"


# The node key


def test_first_start_makes_a_key_for_its_owner_only(made: Path) -> None:
    key = load_or_make_key(made)

    assert mode_of(made / "nodekey") == 0o600
    assert (made / "nodekey").read_text() == f"{key.secret.hex()}\n"
    assert names_in(made) == {"nodekey"}


def test_key_is_for_its_owner_only_whatever_the_umask(made: Path) -> None:
    before = os.umask(0)
    try:
        load_or_make_key(made)
    finally:
        os.umask(before)

    assert mode_of(made / "nodekey") == 0o600


def test_what_a_crash_left_behind_does_not_open_the_key_to_others(made: Path) -> None:
    (made / "nodekey.tmp").write_text("half a k")
    (made / "nodekey.tmp").chmod(0o666)

    load_or_make_key(made)

    assert mode_of(made / "nodekey") == 0o600


def test_later_starts_keep_the_key(made: Path) -> None:
    first = load_or_make_key(made)
    second = load_or_make_key(made)

    assert second.secret == first.secret


def test_every_folder_has_a_key_of_its_own(made: Path, tmp_path: Path) -> None:
    assert load_or_make_key(made).secret != load_or_make_key(tmp_path).secret


@pytest.mark.parametrize("form", ["{}", "{}\n", "  {}  \n\n"])
def test_key_may_be_written_by_hand(form: str, made: Path) -> None:
    key = private_key("by hand")
    (made / "nodekey").write_text(form.format(key.secret.hex().upper()))
    (made / "nodekey").chmod(0o400)

    assert load_or_make_key(made).secret == key.secret


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o644, 0o660, 0o620, 0o602, 0o610, 0o601, 0o777])
def test_key_that_others_may_touch_is_refused_with_advice(mode: int, made: Path) -> None:
    load_or_make_key(made)
    path = made / "nodekey"
    before = path.read_bytes()
    path.chmod(mode)

    with pytest.raises(StartupError) as refused:
        load_or_make_key(made)

    assert str(refused.value) == f"{path} is readable by others (mode {mode:04o}); run: chmod 600 {path}"
    assert path.read_bytes() == before
    assert mode_of(path) == mode


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\n",
        b"key",
        b"00" * 31,
        b"00" * 32,
        b"11" * 33,
        b"1" * 63,
        b"0x" + b"11" * 31,
        b"\xff" * 64,
        GROUP_ORDER.encode(),
        b"11" * 2000,
    ],
)
def test_file_without_a_key_is_refused_and_kept(content: bytes, made: Path) -> None:
    path = made / "nodekey"
    path.write_bytes(content)
    path.chmod(0o600)

    with pytest.raises(StartupError) as refused:
        load_or_make_key(made)

    assert str(refused.value) == f"{path} holds no node key (64 hex digits of a secp256k1 private key)"
    assert path.read_bytes() == content


def test_key_that_cannot_be_read_is_refused(made: Path) -> None:
    (made / "nodekey").mkdir(mode=0o700)

    with pytest.raises(StartupError, match=f"cannot read {made}/nodekey: Is a directory"):
        load_or_make_key(made)


def test_key_of_another_user_is_refused_with_advice(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    load_or_make_key(made)
    path = made / "nodekey"
    if os.geteuid() == 0:  # what is root's is fine for everybody who can read it
        os.chown(path, 12_345, -1)
    owner = path.stat().st_uid
    monkeypatch.setattr(os, "geteuid", lambda: owner + 1)

    with pytest.raises(StartupError) as refused:
        load_or_make_key(made)

    assert str(refused.value) == f"{path} belongs to another user (uid {owner}); run: chown {owner + 1} {path}"


def test_key_that_cannot_be_written_is_refused(made: Path) -> None:
    (made / "nodekey.tmp").mkdir()

    with pytest.raises(StartupError, match=f"cannot write {made}/nodekey: Is a directory"):
        load_or_make_key(made)

    assert names_in(made) == {"nodekey.tmp"}


# The enode file


def test_enode_is_read_as_it_was_written(made: Path) -> None:
    write_enode(made, enode_at(30303))

    assert read_enode(made) == enode_at(30303)
    assert names_in(made) == {"enode"}


def test_enode_file_is_one_line(made: Path) -> None:
    write_enode(made, enode_at(30303))

    assert (made / "enode").read_text() == f"{enode_at(30303)}\n"


def test_enode_of_an_ipv6_host_is_read_as_it_was_written(made: Path) -> None:
    enode = Enode(private_key("server").public_key, "::1", 30303)

    write_enode(made, enode)

    assert read_enode(made) == enode


def test_enode_goes_with_its_key(made: Path) -> None:
    load_or_make_key(made)
    write_enode(made, enode_at(30303))

    load_or_make_key(made)
    assert read_enode(made) == enode_at(30303)

    (made / "nodekey").unlink()
    load_or_make_key(made)
    assert names_in(made) == {"nodekey"}


def test_enode_of_another_node_is_removed_even_if_none_can_be_written(made: Path) -> None:
    write_enode(made, enode_at(30303))
    in_the_way = made / "enode.tmp"
    in_the_way.mkdir()

    with pytest.raises(StartupError, match="cannot write"):
        write_enode(made, enode_at(30304))
    assert read_enode(made) == enode_at(30303)  # the same node, perhaps at another port

    with pytest.raises(StartupError, match="cannot write"):
        write_enode(made, enode_at(30303, "another"))
    assert names_in(made) == {"enode.tmp"}


def test_whoever_has_the_old_enode_file_open_sees_all_of_it(made: Path) -> None:
    write_enode(made, enode_at(1))

    with (made / "enode").open() as reader:
        write_enode(made, enode_at(2))
        seen = reader.read()

    assert seen == f"{enode_at(1)}\n"
    assert read_enode(made) == enode_at(2)


def test_what_a_crash_left_behind_does_not_disturb(made: Path) -> None:
    (made / "enode.tmp").write_text("enode://" + "1" * 500)

    write_enode(made, enode_at(30303))

    assert read_enode(made) == enode_at(30303)
    assert names_in(made) == {"enode"}


def test_failed_write_leaves_the_old_enode(made: Path) -> None:
    write_enode(made, enode_at(1))
    (made / "enode.tmp").mkdir()

    with pytest.raises(StartupError, match=f"cannot write {made}/enode: Is a directory"):
        write_enode(made, enode_at(2))

    assert read_enode(made) == enode_at(1)


def test_missing_enode_file_says_that_no_mailserver_was_started(data_dir: Path) -> None:
    with pytest.raises(StartupError) as refused:
        read_enode(data_dir)

    assert str(refused.value).startswith(f"no enode at {data_dir}/enode: no mailserver has been started")


@pytest.mark.parametrize("content", [b"", b"enode://", b"\xff\xfe", b"http://example.org\n"])
def test_file_without_an_enode_is_refused(content: bytes, made: Path) -> None:
    (made / "enode").write_bytes(content)

    with pytest.raises(StartupError, match=f"cannot read {made}/enode: "):
        read_enode(made)


def test_enode_that_cannot_be_read_is_refused(made: Path) -> None:
    (made / "enode").mkdir()

    with pytest.raises(StartupError) as refused:
        read_enode(made)

    assert str(refused.value) == f"cannot read {made}/enode: Is a directory"


# The token of JSON-RPC


@pytest.fixture
def token_file(tmp_path: Path) -> Path:
    path = tmp_path / "token"
    path.touch(0o600)
    return path


@pytest.mark.parametrize(
    ("content", "token"),
    [
        (b"correct-horse-battery", "correct-horse-battery"),
        (b"correct-horse-battery\n", "correct-horse-battery"),
        (b"  correct-horse-battery \r\nanother line\n", "correct-horse-battery"),
        (b"Az09._~+/=-Az09._~+/=-", "Az09._~+/=-Az09._~+/=-"),
        (b"x" * MIN_TOKEN_CHARS, "x" * MIN_TOKEN_CHARS),
        (b"x" * MAX_TOKEN_CHARS, "x" * MAX_TOKEN_CHARS),
    ],
)
def test_token_is_the_first_line(token_file: Path, content: bytes, token: str) -> None:
    token_file.write_bytes(content)

    assert read_token(token_file) == token


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\n",
        b"\ncorrect-horse-battery\n",
        b"x" * (MIN_TOKEN_CHARS - 1),
        b"x" * (MAX_TOKEN_CHARS + 1),
        b"x" * 1_000_000,
        b"correct horse battery",
        b"correct\x00horse\x00battery",
        b"correct:horse:battery",
        "korrektes-pferd-batterie-\u00e4".encode(),
        b"\xff" * 20,
    ],
)
def test_file_without_a_token_is_refused_and_its_content_not_told(token_file: Path, content: bytes) -> None:
    token_file.write_bytes(content)

    with pytest.raises(StartupError) as refused:
        read_token(token_file)

    what = "16 to 512 letters, digits or -._~+/="
    assert str(refused.value) == f"{token_file} holds no token in its first line: {what}"


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o602, 0o610, 0o601])
def test_token_that_others_may_touch_is_refused_with_advice(token_file: Path, mode: int) -> None:
    token_file.write_bytes(b"correct-horse-battery")
    token_file.chmod(mode)

    with pytest.raises(StartupError) as refused:
        read_token(token_file)

    assert str(refused.value) == f"{token_file} is readable by others (mode {mode:04o}); run: chmod 600 {token_file}"


def test_token_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(StartupError, match=f"cannot read {tmp_path}/token: No such file"):
        read_token(tmp_path / "token")


# The enode file again


def test_enode_file_that_says_the_same_is_left_alone(made: Path) -> None:
    write_enode(made, enode_at(30303))
    before = (made / "enode").stat().st_ino

    write_enode(made, enode_at(30303))

    assert (made / "enode").stat().st_ino == before


def test_lock_is_held_on_a_full_disk(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_room(descriptor: int, data: bytes, at: int) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "pwrite", no_room)

    with locked(made), pytest.raises(DataDirInUse), locked(made):
        pass
