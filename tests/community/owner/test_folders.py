"""Communities of ours on disk."""

import os
from dataclasses import replace
from pathlib import Path

import pytest

from mailserver.communities.channels import community_id, id_text, special_channel
from mailserver.community.folder import COMMUNITIES_FOLDER
from mailserver.community.owner import folders
from mailserver.community.owner.folders import KEY_FILE, LOCK_FILE, create, folder_of, named, owned
from mailserver.community.owner.record import CommunityError
from mailserver.files import open_descriptor, try_lock
from tests.community.owner.samples import OTHER_OWNER, OWNER, garden, made_in


@pytest.fixture
def communities(tmp_path: Path) -> Path:
    return tmp_path / "data" / COMMUNITIES_FOLDER


def test_community_is_there_with_its_key_which_others_cannot_read(communities: Path) -> None:
    folder = create(communities, garden(), OWNER)

    assert folder == folder_of(communities, community_id(OWNER.public_key))
    assert folder.read() == garden()
    assert folder.read_key().secret == OWNER.secret
    assert (folder.path / KEY_FILE).stat().st_mode & 0o777 == 0o600
    assert communities.stat().st_mode & 0o777 == folder.path.stat().st_mode & 0o777 == 0o700
    assert communities.parent.stat().st_mode & 0o777 == 0o700
    assert [each.name for each in communities.iterdir()] == [id_text(folder.id)]


def test_special_channel_is_no_channel_of_the_community(communities: Path) -> None:
    folder = made_in(communities)
    special = special_channel(folder.id)

    with pytest.raises(CommunityError, match="special channel"):
        folder.change(lambda community: community.with_channel(special))

    assert folder.read() == garden()


def test_community_is_made_once(communities: Path) -> None:
    made_in(communities)

    with pytest.raises(CommunityError, match="there is a community of ours"):
        made_in(communities, replace(garden(), name="Other"))


def test_community_that_was_joined_before_can_become_ours(communities: Path) -> None:
    folder = folder_of(communities, community_id(OWNER.public_key))
    (folder.path / "member").mkdir(parents=True)
    (folder.path / KEY_FILE).write_text("left by a kill")

    made_in(communities)

    assert folder.read_key().secret == OWNER.secret
    assert (folder.path / "member").is_dir()


def test_making_that_was_killed_is_made_anew(communities: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(folders, "write_atomically", lambda path, text: (_ for _ in ()).throw(OSError("killed")))
        with pytest.raises(CommunityError, match="killed"):
            made_in(communities)
    assert [*owned(communities)] == []

    folder = made_in(communities)

    assert [*owned(communities)] == [folder]


def test_only_what_is_ours_is_listed(communities: Path) -> None:
    assert [*owned(communities)] == []
    first, second = made_in(communities), made_in(communities, key=OTHER_OWNER)
    (communities / "0xnothing").mkdir()
    (communities / id_text(community_id(OWNER.public_key)).upper()).mkdir()
    (communities / "lost+found").mkdir()

    assert {*owned(communities)} == {first, second}


def test_too_many_folders_are_refused(communities: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made_in(communities)
    monkeypatch.setattr(folders, "MAX_COMMUNITIES", 0)

    with pytest.raises(CommunityError, match="more than 0"):
        [*owned(communities)]


def test_community_is_found_by_id_and_by_a_name_that_no_other_has(communities: Path) -> None:
    first = made_in(communities)
    assert named(communities, "Garden") == named(communities, first.path.name) == first
    made_in(communities, key=OTHER_OWNER)

    assert named(communities, first.path.name) == first
    with pytest.raises(CommunityError, match="several"):
        named(communities, "Garden")
    with pytest.raises(CommunityError, match="no community of ours is called Attic"):
        named(communities, "Attic")


def test_change_is_on_disk(communities: Path) -> None:
    folder = made_in(communities)

    folder.change(lambda community: replace(community, is_enabled=False))

    assert folder.read() == replace(garden(), is_enabled=False)


def test_two_cannot_change_a_community_at_once(communities: Path) -> None:
    folder = made_in(communities)
    with open_descriptor(folder.path / LOCK_FILE, os.O_RDWR | os.O_CREAT) as lock:
        assert try_lock(lock)

        with pytest.raises(CommunityError, match="another command"):
            folder.change(lambda community: community)


@pytest.mark.parametrize(("text", "cause"), [("", "is no record"), ("{}", "version None"), ("[]", "not an object")])
def test_record_that_cannot_be_read_is_named(communities: Path, text: str, cause: str) -> None:
    folder = made_in(communities)
    (folder.path / "community.json").write_text(text)

    with pytest.raises(CommunityError, match=cause):
        folder.read()


def test_community_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(CommunityError, match="no community of ours in"):
        folder_of(tmp_path, community_id(OWNER.public_key)).read()


def test_key_that_cannot_be_used_is_named(communities: Path) -> None:
    folder = made_in(communities)
    key = folder.path / KEY_FILE
    for text, cause in (("no hex", "holds no private key"), (OTHER_OWNER.secret.hex(), "of another community")):
        key.write_text(text)
        with pytest.raises(CommunityError, match=cause):
            folder.read_key()
    key.chmod(0o640)
    with pytest.raises(CommunityError, match="others may read"):
        folder.read_key()
    key.unlink()
    with pytest.raises(CommunityError, match="No such file"):
        folder.read_key()
