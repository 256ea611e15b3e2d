"""Leaving a community that was joined, and joining it again.

A member that leaves renames `member.json`: from that moment on, it is no member. Whoever has the lock does the rest:
the torrent's files go, because nobody gets anything from us any more; the history and what is downloaded of it stay,
or all of it goes. A kill at any moment leaves that to the next one who looks: `community serve`, or a command.
"""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from shutil import rmtree

from mailserver.communities.channels import id_text, parse_id
from mailserver.community.folder import COMMUNITIES_FOLDER
from mailserver.community.member.fetching import TORRENT, TORRENT_FILE
from mailserver.community.member.joined import (
    DELETING_FILE,
    LEFT_FILE,
    MEMBER_FOLDER,
    CommunityBusy,
    Joined,
    MemberFolder,
    MembershipError,
    membership,
)
from mailserver.errors import DecodeError
from mailserver.files import sync_folder

_TRASH = ".deleting-"


def join(folder: MemberFolder, joined: Joined) -> None:
    """Join, or change what was said: what was kept of the history when the community was left is there again.

    Raises:
        CommunityBusy: it was left with all that there is, and somebody still works for it.
        MembershipError: it cannot be written, or the community is ours.
    """
    if folder.deleting.exists() and not folder.record.exists():
        finish_leaving(folder)
    folder.write(joined)
    for path in (folder.left, folder.deleting):
        with _explained(path):
            path.unlink(missing_ok=True)


def leave(folder: MemberFolder, *, delete: bool) -> None:
    """Be no member any more; `finish_leaving` does the rest.

    Args:
        delete: the history is to be deleted, too, and so is one that was kept when the community was left before.
    Raises:
        MembershipError: the community was not joined, or cannot be left.
    """
    kept = folder.left if delete and not folder.record.exists() else folder.record
    with _explained(folder.path):
        try:
            kept.replace(folder.deleting if delete else folder.left)
        except FileNotFoundError as error:
            if delete and folder.deleting.exists():
                return  # as it was said before
            raise MembershipError(f"community {id_text(folder.community)} was not joined") from error
        sync_folder(folder.path)


def finish_leaving(folder: MemberFolder) -> None:
    """Remove what is not kept of a community that was left.

    Raises:
        CommunityBusy: somebody still works for it.
        MembershipError: something cannot be removed.
    """
    with folder.locked(), _explained(folder.path):
        if folder.record.exists():
            return  # it was joined again
        if folder.deleting.exists():
            trash = folder.path.parent.with_name(f"{_TRASH}{folder.path.parent.name}")
            _remove(trash)  # left by a kill
            folder.path.rename(trash)
            sync_folder(folder.path.parent)
            _remove(trash)
            with contextlib.suppress(OSError):  # it may be ours, too
                folder.path.parent.rmdir()
        else:
            (folder.path / TORRENT_FILE).unlink(missing_ok=True)
            _remove(folder.path / TORRENT)


def being_left(data_dir: Path) -> list[MemberFolder]:
    """The communities that were left, and have something that is to be removed.

    Raises:
        MembershipError: the folder cannot be read, or something in it cannot be removed.
    """
    communities = data_dir / COMMUNITIES_FOLDER
    with _explained(communities):
        for trash in communities.glob(f"{_TRASH}*"):
            _remove(trash)
        deleting = {path.parent for path in communities.glob(f"0x*/{MEMBER_FOLDER}/{DELETING_FILE}")}
        left = {path.parent for path in communities.glob(f"0x*/{MEMBER_FOLDER}/{LEFT_FILE}")}
    found = []
    for path in sorted(deleting | {*filter(_has_torrent, left)}):
        with contextlib.suppress(DecodeError):  # somebody's own
            folder = membership(data_dir, parse_id(path.parent.name))
            if not folder.record.exists():
                found.append(folder)
    return found


def finish_all(data_dir: Path) -> list[MemberFolder]:
    """Do for all communities what is left to do; return which of them are done.

    Raises:
        MembershipError: something cannot be removed. The others are done.
    """
    done, problems = [], []
    for folder in being_left(data_dir):
        try:
            finish_leaving(folder)
            done.append(folder)
        except CommunityBusy:
            continue  # somebody fetches it; at the next look, perhaps
        except MembershipError as error:
            problems.append(error)
    if problems:
        raise problems[0]
    return done


def _has_torrent(path: Path) -> bool:
    return (path / TORRENT_FILE).exists() or (path / TORRENT).exists()


def _remove(path: Path) -> None:
    """Remove a folder and all that is in it, if it is there; somebody else may be doing so.

    Raises:
        OSError: it is still there.
    """
    rmtree(path, ignore_errors=True)
    if path.exists():
        rmtree(path)  # this says why not


@contextlib.contextmanager
def _explained(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise MembershipError(f"cannot leave {error.filename or path}: {error.strerror or error}") from error
