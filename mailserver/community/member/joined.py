"""What a member has said of a community: `DIR/communities/<id>/member/member.json`, and the files beside it.

member.json     which mailservers to ask, which channels, and what to fetch
left.json       the same, once the community was left: the history stays, and can be read (`leaving`)
deleting.json   the same, where all of this is to be deleted
lock            held by the process that fetches
history.db      links, archives, messages (`schema`)
downloads/      archives that are not imported yet (`downloads`)
torrent/        `data` and `index` of the newest torrent, as far as they are here: peers get them from us
torrent.info    that torrent
"""

import contextlib
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from mailserver.codec.keys import Enode
from mailserver.communities.channels import (
    Channel,
    CommunityId,
    chat_channel,
    id_text,
    parse_id,
    special_channel,
    universal_channel,
)
from mailserver.communities.choosing import All, Between, Choice, Latest
from mailserver.communities.formats import TimeRange
from mailserver.community.folder import COMMUNITIES_FOLDER, MAX_COMMUNITIES, OWNED_FILE, make_communities_folder
from mailserver.community.member.schema import HISTORY_FILE
from mailserver.errors import DecodeError, MailserverError
from mailserver.files import (
    PRIVATE_FOLDER,
    make_folder,
    open_descriptor,
    read_holder,
    try_lock,
    write_atomically,
    write_holder,
)
from mailserver.handoff.json_records import Record, count_of, field_of, read_record
from mailserver.waku.envelope import Topic
from mailserver.waku.topics import topic_of

MEMBER_FOLDER = "member"
RECORD_FILE = "member.json"
LEFT_FILE = "left.json"
DELETING_FILE = "deleting.json"
LOCK_FILE = "lock"

RECORD_VERSION = 1
MAX_CHANNELS = 900
"""Of a member. A history request names 1,000 topics at most."""

MAX_MAILSERVERS = 16


ALL = All()


class MembershipError(MailserverError):
    """A community was not joined, or what was said of it cannot be read or written. `str()` is one line."""


class CommunityBusy(MembershipError):
    """Another process fetches the history of this community."""


@dataclass(frozen=True, slots=True)
class Joined:
    """What was said when the community was joined.

    `channels`: chat ids, from which topics and keys come. `mailservers`: whom to ask; none: the one of this data
    directory.
    """

    community: CommunityId
    channels: tuple[str, ...] = ()
    mailservers: tuple[Enode, ...] = ()
    choice: Choice = ALL

    @property
    def special(self) -> Channel:
        """The channel of its magnet links. Deriving its key takes 30 ms."""
        return special_channel(self.community)

    @property
    def topics(self) -> frozenset[Topic]:
        """The topics whose messages are asked for; status-go sends all on the one of the universal channel."""
        return frozenset({universal_channel(self.community).topic, *map(topic_of, self.channels)})

    def keys(self) -> dict[str, bytes]:
        """What opens the messages of each content topic, as far as it is known. Each takes 30 ms."""
        channels = (universal_channel(self.community), *map(chat_channel, self.channels))
        return {channel.content_topic: channel.key for channel in channels if channel.key is not None}

    def to_json(self) -> dict[str, object]:
        """The record."""
        time = self.choice.time if isinstance(self.choice, Between) else None
        return {
            "version": RECORD_VERSION,
            "community": id_text(self.community),
            "channels": list(self.channels),
            "mailservers": [str(enode) for enode in self.mailservers],
            "fetch": {All: "all", Latest: "latest", Between: "range"}[type(self.choice)],
            "from": None if time is None else time.lower,
            "to": None if time is None else time.upper,
        }


@dataclass(frozen=True, slots=True)
class MemberFolder:
    """The folder of a membership. `path` ends in `member`."""

    path: Path
    community: CommunityId

    @property
    def record(self) -> Path:
        """What was said."""
        return self.path / RECORD_FILE

    @property
    def left(self) -> Path:
        """What was said, of a community that was left and whose history is kept. Means nothing beside `record`."""
        return self.path / LEFT_FILE

    @property
    def deleting(self) -> Path:
        """What was said, of a community that was left and is to be deleted. Means nothing beside `record`."""
        return self.path / DELETING_FILE

    @property
    def history(self) -> Path:
        """Its history, which is made when it is first fetched."""
        return self.path / HISTORY_FILE

    @property
    def is_ours(self) -> bool:
        """Whether the community has become ours: then there is nothing to fetch."""
        return (self.path.parent / OWNED_FILE).exists()

    def read(self) -> Joined:
        """What was said.

        Raises:
            MembershipError: it was not joined, or the record cannot be read.
        """
        return self._read(self.record)

    def read_kept(self) -> Joined:
        """What was said, also if the community was left since then and its history is kept.

        Raises:
            MembershipError: it was never joined, or the record cannot be read.
        """
        return self._read(self.left if self.left.exists() and not self.record.exists() else self.record)

    def _read(self, path: Path) -> Joined:
        joined = read_record(
            path, _decode, version=RECORD_VERSION, what="record of a membership", error=MembershipError
        )
        if joined is None:
            raise MembershipError(f"community {id_text(self.community)} was not joined")
        if joined.community != self.community:
            raise MembershipError(f"{path} is of another community")
        return joined

    def write(self, joined: Joined) -> None:
        """Join, or change what was said. To join after leaving, use `leaving.join`.

        Raises:
            MembershipError: it cannot be written, or the community is ours.
        """
        if self.is_ours:
            raise MembershipError(f"community {id_text(self.community)} is ours: its history archives are made here")
        try:
            make_communities_folder(self.path.parent.parent)
            make_folder(self.path.parent, PRIVATE_FOLDER)
            make_folder(self.path, PRIVATE_FOLDER)
            write_atomically(self.record, json.dumps(joined.to_json(), indent=2) + "\n")
        except OSError as error:
            raise MembershipError(f"cannot write {self.path}: {error.strerror}") from error

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Be the only one that fetches. The kernel drops the lock with the process.

        Raises:
            CommunityBusy: another process fetches.
            MembershipError: it was never joined, or the lock cannot be had.
        """
        with contextlib.ExitStack() as stack:
            try:
                descriptor = stack.enter_context(open_descriptor(self.path / LOCK_FILE, os.O_RDWR | os.O_CREAT))
                if not try_lock(descriptor):
                    holder = read_holder(descriptor)
                    raise CommunityBusy(f"another process (pid {holder}) fetches {id_text(self.community)}")
                write_holder(descriptor)
            except FileNotFoundError as error:
                raise MembershipError(f"community {id_text(self.community)} was not joined") from error
            except OSError as error:
                raise MembershipError(f"cannot lock {self.path}: {error.strerror}") from error
            yield


def membership(data_dir: Path, community: CommunityId) -> MemberFolder:
    """The folder of a membership, whether it is there or not."""
    return MemberFolder(data_dir / COMMUNITIES_FOLDER / id_text(community) / MEMBER_FOLDER, community)


def memberships(data_dir: Path) -> list[MemberFolder]:
    """All communities that were joined and have not become ours, by their ids.

    Raises:
        MembershipError: the folder cannot be read, or has more than MAX_COMMUNITIES.
    """
    folder = data_dir / COMMUNITIES_FOLDER
    try:
        names = sorted(path.parent.parent.name for path in folder.glob(f"0x*/{MEMBER_FOLDER}/{RECORD_FILE}"))
    except OSError as error:
        raise MembershipError(f"cannot read {folder}: {error.strerror}") from error
    if len(names) > MAX_COMMUNITIES:
        raise MembershipError(f"{folder} has more than {MAX_COMMUNITIES} communities")
    found = []
    for name in names:
        try:
            found.append(membership(data_dir, parse_id(name)))
        except DecodeError as error:
            raise MembershipError(f"{folder / name}: {error}") from error
    return [each for each in found if not each.is_ours]


def _decode(record: Record) -> Joined:
    try:
        channels = tuple(_texts(record, "channels", MAX_CHANNELS))
        mailservers = tuple(map(Enode.parse, _texts(record, "mailservers", MAX_MAILSERVERS)))
        community = parse_id(field_of(record, "community", str))
    except DecodeError as error:
        raise ValueError(str(error)) from error
    return Joined(community, channels, mailservers, _choice(record))


def _choice(record: Record) -> Choice:
    match record.get("fetch"):
        case "all":
            return All()
        case "latest":
            return Latest()
        case "range":
            return Between(TimeRange(count_of("from", record.get("from")), count_of("to", record.get("to"))))
        case other:
            raise ValueError(f"fetch is {other!r}")


def _texts(record: Record, name: str, most: int) -> list[str]:
    texts = record.get(name)
    if not isinstance(texts, list) or len(texts) > most or not all(isinstance(text, str) for text in texts):
        raise ValueError(f"{name} is no list of at most {most} texts")
    return texts
