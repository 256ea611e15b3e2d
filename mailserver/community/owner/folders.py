"""The folders of the communities that we own, `DIR/communities/<id>`: the record, the key, and the names of the rest.

    community.json   what the owner has said of it (`record`)
    key              the community's private key, 64 hex digits
    data, index      what is published: the torrent's two files
    index.next       the index of what the job has appended to `data` since then
    published.ids    which envelopes are in which history archive (`published_ids`)
    announced.json   the last link that was posted (`announcing`)
    sent             how often peers have got what is published from us (`sent`)
    community.db     live envelopes of its channels (`holdings`)

`data` may be longer than `index` says: the job has appended to it, or was killed while it did.
"""

import contextlib
import json
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from mailserver.codec.keys import PrivateKey
from mailserver.communities.channels import CommunityId, community_id, id_text, parse_id, special_channel
from mailserver.community.folder import MAX_COMMUNITIES, OWNED_FILE, make_communities_folder
from mailserver.community.owner.record import RECORD_VERSION, Community, CommunityError
from mailserver.errors import DecodeError
from mailserver.files import (
    OTHERS_MAY,
    PRIVATE_FOLDER,
    open_descriptor,
    sync_folder,
    try_lock,
    write_atomically,
    write_new,
)
from mailserver.handoff.json_records import read_record

KEY_FILE = "key"
DATA_FILE = "data"
INDEX_FILE = "index"
NEXT_INDEX_FILE = "index.next"
IDS_FILE = "published.ids"
ANNOUNCED_FILE = "announced.json"
SENT_FILE = "sent"
HOLDINGS_FILE = "community.db"
LOCK_FILE = "community.lock"

_MAKING = ".making-"


@dataclass(frozen=True, slots=True)
class CommunityFolder:
    """One of them, whether it is there or not."""

    path: Path
    id: CommunityId

    @property
    def data(self) -> Path:
        """The history archives."""
        return self.path / DATA_FILE

    @property
    def index(self) -> Path:
        """What is published of them."""
        return self.path / INDEX_FILE

    @property
    def next_index(self) -> Path:
        """What is to be published next."""
        return self.path / NEXT_INDEX_FILE

    @property
    def ids(self) -> Path:
        """Which envelopes are in them."""
        return self.path / IDS_FILE

    @property
    def holdings(self) -> Path:
        """Live envelopes."""
        return self.path / HOLDINGS_FILE

    @property
    def sent(self) -> Path:
        """How often peers have got it from us."""
        return self.path / SENT_FILE

    @property
    def announced(self) -> Path:
        """What was announced last."""
        return self.path / ANNOUNCED_FILE

    @property
    def is_owned(self) -> bool:
        """Whether the community is ours."""
        return (self.path / OWNED_FILE).exists()

    def read(self) -> Community:
        """Read its record.

        Raises:
            CommunityError: there is none, or it cannot be read.
        """
        path = self.path / OWNED_FILE
        found = read_record(
            path, Community.decode, version=RECORD_VERSION, what="record of a community", error=CommunityError
        )
        if found is None:
            raise CommunityError(f"there is no community of ours in {self.path}")
        return found

    def change(self, change: Callable[[Community], Community]) -> Community:
        """Write the record that `change` makes of the present one; nobody else changes it meanwhile.

        Raises:
            CommunityError: it cannot be read, changed or written, or somebody else is changing it.
        """
        with _explained(self.path), open_descriptor(self.path / LOCK_FILE, os.O_RDWR | os.O_CREAT) as lock:
            if not try_lock(lock):
                raise CommunityError(f"{self.path}: another command is changing this community")
            changed = change(self.read())
            if special_channel(self.id).topic in changed.topics:
                raise CommunityError("the special channel of magnet links is no channel for people")
            write_atomically(self.path / OWNED_FILE, _text(changed))
        return changed

    def read_key(self) -> PrivateKey:
        """Read its private key.

        Raises:
            CommunityError: it cannot be read, others may read it, or it is that of another community.
        """
        path = self.path / KEY_FILE
        with _explained(path), path.open("rb") as file:
            if os.fstat(file.fileno()).st_mode & OTHERS_MAY:
                raise CommunityError(f"others may read the key {path}: chmod 600 {path}")
            text = file.read(200)
        try:
            key = PrivateKey(bytes.fromhex(text.decode("ascii").strip()))
        except (ValueError, DecodeError) as error:
            raise CommunityError(f"{path} holds no private key (64 hex digits)") from error
        if community_id(key.public_key) != self.id:
            raise CommunityError(f"{path} is the key of another community")
        return key


def folder_of(communities: Path, community: CommunityId) -> CommunityFolder:
    """The folder of a community in `DIR/communities`."""
    return CommunityFolder(communities / id_text(community), community)


def create(communities: Path, community: Community, key: PrivateKey) -> CommunityFolder:
    """Make a community that we own, with its key: all of it, or nothing.

    Raises:
        CommunityError: we own it already, or it cannot be written.
    """
    folder = folder_of(communities, community_id(key.public_key))
    with _explained(folder.path):
        make_communities_folder(communities)
        if folder.path.exists():  # joined, perhaps
            if folder.is_owned:
                raise CommunityError(f"there is a community of ours in {folder.path}")
            (folder.path / KEY_FILE).unlink(missing_ok=True)  # a kill left it without a record
            _fill(folder.path, community, key)
            return folder
        making = communities / f"{_MAKING}{folder.path.name}"
        shutil.rmtree(making, ignore_errors=True)  # left by a kill
        making.mkdir(PRIVATE_FOLDER)
        _fill(making, community, key)
        making.rename(folder.path)
        sync_folder(communities)
    return folder


def owned(communities: Path) -> Iterator[CommunityFolder]:
    """The communities that we own, by their ids.

    Raises:
        CommunityError: the folder cannot be read, or holds too many.
    """
    with _explained(communities):
        try:
            names = sorted(each.name for each in communities.iterdir() if each.name.startswith("0x"))
        except FileNotFoundError:
            return
    if len(names) > MAX_COMMUNITIES:
        raise CommunityError(f"{communities} has more than {MAX_COMMUNITIES} communities")
    for name in names:
        with contextlib.suppress(DecodeError):  # somebody's own
            folder = CommunityFolder(communities / name, parse_id(name))
            if folder.is_owned:
                yield folder


def named(communities: Path, name: str) -> CommunityFolder:
    """The community of ours that has this id, or this name, if no other has it.

    Raises:
        CommunityError: there is none, or several.
    """
    found = [each for each in owned(communities) if name == each.path.name or each.read().name == name]
    if len(found) != 1:
        how = "several communities are" if found else "no community of ours is"
        raise CommunityError(f"{how} called {name}: waku-mailserver community list")
    return found[0]


def _fill(path: Path, community: Community, key: PrivateKey) -> None:
    write_new(path / KEY_FILE, f"{key.secret.hex()}\n".encode())
    write_atomically(path / OWNED_FILE, _text(community))


def _text(community: Community) -> str:
    return json.dumps(community.encode(), indent=1) + "\n"


@contextlib.contextmanager
def _explained(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise CommunityError(f"cannot use {error.filename or path}: {error.strerror or error}") from error
