"""What programs are told of a community that was joined, by commands and by JSON-RPC."""

from typing import Any

from mailserver.communities.channels import id_text
from mailserver.community.member.history import read_overview
from mailserver.community.member.joined import Joined, MemberFolder
from mailserver.community.member.records import KnownArchive, Overview


def overview_of(folder: MemberFolder) -> Overview | None:
    """What there is of a community; None before anything was fetched.

    Raises:
        StoreError: the history cannot be read.
    """
    return read_overview(folder.history) if folder.history.exists() else None


def joined_as_json(folder: MemberFolder, joined: Joined, overview: Overview | None) -> dict[str, Any]:
    """A community that was joined as a JSON object; times in Unix seconds, the clock of the link in milliseconds.

    `unarchived` counts the messages that no history archive has. `problem`: why not all is here that is wanted.
    """
    record = joined.to_json()
    shown: dict[str, Any] = {
        "id": id_text(folder.community),
        **{name: record[name] for name in ("channels", "mailservers", "fetch", "from", "to")},
    }
    if overview is None:
        return {**shown, "messages": 0, "unarchived": 0, "archives": [], "link": None, "problem": None}
    link = overview.link
    return {
        **shown,
        "messages": overview.messages,
        "unarchived": overview.unarchived,
        "archives": [_archive_as_json(archive) for archive in overview.archives],
        "link": None if link is None else {"clock": link.clock, "uri": link.uri},
        "problem": overview.problem,
    }


def _archive_as_json(archive: KnownArchive) -> dict[str, Any]:
    return {
        "id": archive.entry.id,
        "content": archive.content.hex(),
        "from": archive.time_range.lower,
        "to": archive.time_range.upper,
        "bytes": archive.entry.size,
        "listed": archive.is_listed,
        "state": archive.state.value,
        "messages": archive.messages,
        "refused": archive.refused,
    }
