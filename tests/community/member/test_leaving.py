"""Leaving a community: what stays, what goes, and that a kill at any moment leaves the rest to the next who looks."""

from collections.abc import Callable
from pathlib import Path
from shutil import rmtree
from typing import ParamSpec, TypeVar

import pytest

from mailserver.communities.channels import community_id
from mailserver.communities.choosing import Latest
from mailserver.community.folder import COMMUNITIES_FOLDER
from mailserver.community.member import leaving
from mailserver.community.member.history import open_history, read_overview
from mailserver.community.member.joined import (
    CommunityBusy,
    Joined,
    MemberFolder,
    MembershipError,
    membership,
    memberships,
)
from mailserver.community.member.leaving import being_left, finish_all, finish_leaving, join, leave
from mailserver.community.owner.folders import create, owned
from tests.community.member.publishing import FOREIGNER, OWNER
from tests.community.member.worlds import message
from tests.community.owner.samples import garden

P = ParamSpec("P")
T = TypeVar("T")

COMMUNITY = community_id(OWNER.public_key)
JOINED = Joined(COMMUNITY, ("news",))


@pytest.fixture
async def folder(tmp_path: Path) -> MemberFolder:
    """A community that was joined, with a message, a download, and a torrent."""
    folder = membership(tmp_path, COMMUNITY)
    join(folder, JOINED)
    async with open_history(folder.history) as history:
        await history.put_recent([message(1)])
    for name in ("torrent/data", "torrent/index", "torrent.info", "downloads/00"):
        path = folder.path / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"\1")
    return folder


def files_of(data_dir: Path) -> set[str]:
    communities = data_dir / COMMUNITIES_FOLDER
    return {path.relative_to(communities).name for path in communities.rglob("*") if path.is_file()}


async def test_history_and_downloads_stay_and_the_torrent_goes(tmp_path: Path, folder: MemberFolder) -> None:
    leave(folder, delete=False)
    assert memberships(tmp_path) == []
    assert being_left(tmp_path) == [folder]
    finish_leaving(folder)

    assert files_of(tmp_path) >= {"left.json", "history.db", "00"}
    assert not files_of(tmp_path) & {"member.json", "data", "index", "torrent.info"}
    assert read_overview(folder.history).messages == 1
    assert folder.read_kept() == JOINED
    assert being_left(tmp_path) == []
    with pytest.raises(MembershipError, match="was not joined"):
        folder.read()


async def test_with_delete_nothing_stays(tmp_path: Path, folder: MemberFolder) -> None:
    leave(folder, delete=True)
    assert memberships(tmp_path) == []
    finish_leaving(folder)

    assert [*(tmp_path / COMMUNITIES_FOLDER).iterdir()] == []


async def test_history_that_was_kept_is_deleted_when_that_is_said(tmp_path: Path, folder: MemberFolder) -> None:
    leave(folder, delete=False)
    finish_leaving(folder)

    leave(folder, delete=True)
    leave(folder, delete=True)  # again, before it was done
    finish_leaving(folder)

    assert files_of(tmp_path) == set()


async def test_who_joins_again_has_what_was_kept(tmp_path: Path, folder: MemberFolder) -> None:
    leave(folder, delete=False)
    finish_leaving(folder)

    join(folder, Joined(COMMUNITY, choice=Latest()))

    assert folder.read() == folder.read_kept() == Joined(COMMUNITY, choice=Latest())
    assert read_overview(folder.history).messages == 1
    assert "left.json" not in files_of(tmp_path)


async def test_who_joins_again_after_deleting_begins_with_nothing(tmp_path: Path, folder: MemberFolder) -> None:
    leave(folder, delete=True)  # and a kill

    join(folder, JOINED)

    assert files_of(tmp_path) == {"member.json"}


async def test_what_nobody_joined_is_not_left(tmp_path: Path) -> None:
    folder = membership(tmp_path, COMMUNITY)
    for delete in (False, True):
        with pytest.raises(MembershipError, match="was not joined"):
            leave(folder, delete=delete)
        with pytest.raises(MembershipError, match="was not joined"):
            finish_leaving(folder)
    join(folder, JOINED)
    leave(folder, delete=False)

    with pytest.raises(MembershipError, match="was not joined"):
        leave(folder, delete=False)


@pytest.mark.parametrize("delete", [False, True], ids=["kept", "deleted"])
async def test_files_of_who_still_works_for_it_are_left_alone(
    tmp_path: Path, folder: MemberFolder, delete: bool
) -> None:
    with folder.locked():
        before = files_of(tmp_path)
        leave(folder, delete=delete)

        with pytest.raises(CommunityBusy):
            finish_leaving(folder)
        assert finish_all(tmp_path) == []
        assert files_of(tmp_path) - {"left.json", "deleting.json"} == before - {"member.json"}
        if delete:
            with pytest.raises(CommunityBusy):
                join(folder, JOINED)

    assert finish_all(tmp_path) == [folder]


class _Killed(BaseException):
    """The process ends here."""


def _kill_at(monkeypatch: pytest.MonkeyPatch, step: int) -> None:
    """End the process at one of the steps that change the disk."""
    steps = iter(range(step + 1))

    def counted(work: Callable[P, T]) -> Callable[P, T]:
        def step_or_kill(*args: P.args, **kwargs: P.kwargs) -> T:
            if next(steps, None) is None:
                raise _Killed
            return work(*args, **kwargs)

        return step_or_kill

    for owner, name in ((Path, "replace"), (Path, "rename"), (Path, "unlink"), (Path, "rmdir")):
        monkeypatch.setattr(owner, name, counted(getattr(owner, name)))
    monkeypatch.setattr(leaving, "rmtree", counted(rmtree))


@pytest.mark.parametrize("step", range(6))
@pytest.mark.parametrize("delete", [False, True], ids=["kept", "deleted"])
async def test_kill_at_any_step_leaves_the_rest_to_the_next(
    tmp_path: Path, folder: MemberFolder, monkeypatch: pytest.MonkeyPatch, delete: bool, step: int
) -> None:
    with monkeypatch.context() as killing:
        _kill_at(killing, step)
        try:
            leave(folder, delete=delete)
            finish_leaving(folder)
        except _Killed:
            pass

    if folder.record.exists():  # it was killed before it was said
        leave(folder, delete=delete)
    finish_all(tmp_path)

    expected = set() if delete else {"left.json", "lock", "history.db", "00"}
    assert files_of(tmp_path) - {"history.db-wal", "history.db-shm"} == expected
    assert memberships(tmp_path) == being_left(tmp_path) == []


async def test_folder_of_a_community_that_has_become_ours_stays(tmp_path: Path, folder: MemberFolder) -> None:
    create(tmp_path / COMMUNITIES_FOLDER, garden(), OWNER)

    leave(folder, delete=True)
    finish_leaving(folder)

    (ours,) = owned(tmp_path / COMMUNITIES_FOLDER)
    assert ours.read_key().secret == OWNER.secret
    assert "history.db" not in files_of(tmp_path)


async def test_what_cannot_be_removed_is_said_and_the_others_are_done(tmp_path: Path, folder: MemberFolder) -> None:
    other = membership(tmp_path, community_id(FOREIGNER.public_key))  # its id is greater
    join(other, Joined(other.community))
    with other.locked():
        leave(other, delete=True)
    leave(folder, delete=False)
    (folder.path / "torrent.info").unlink()
    (folder.path / "torrent.info").mkdir()

    with pytest.raises(MembershipError, match=r"cannot leave .*torrent\.info"):
        finish_all(tmp_path)

    assert not other.path.exists()
