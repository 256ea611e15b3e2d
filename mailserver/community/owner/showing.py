"""What programs are told of a community of ours, by commands and by JSON-RPC: no keys."""

from typing import Any

from mailserver.community.owner.announcing import read_announced
from mailserver.community.owner.appending import read_index
from mailserver.community.owner.folders import CommunityFolder
from mailserver.community.owner.record import Community, CommunityError, OwnedChannel
from mailserver.errors import DecodeError


def owned_as_json(folder: CommunityFolder, community: Community) -> dict[str, Any]:
    """A community of ours as a JSON object; times in Unix seconds.

    `archives` and `bytes` are published, up to the time `until`; `unpublished`: whether there is more. `announced`:
    when its magnet link was posted last.

    Raises:
        CommunityError: a file cannot be read, or is damaged.
    """
    try:
        index = read_index(folder.index)
        is_more = folder.next_index.exists()
    except OSError as error:
        raise CommunityError(f"cannot read {folder.index}: {error.strerror or error}") from error
    except DecodeError as error:
        raise CommunityError(f"{folder.index} is damaged: {error}") from error
    entries = () if index is None else index.entries
    announced = read_announced(folder.announced)
    return {
        "id": folder.path.name,
        "name": community.name,
        "enabled": community.is_enabled,
        "format": community.format_name,
        "network_topic": community.network_topic,
        "registered": community.registered,
        "channels": [_channel_as_json(channel) for channel in community.channels],
        "archives": len(entries),
        "bytes": entries[-1].end if entries else 0,
        "until": max((entry.time_range.upper for entry in entries), default=None),
        "unpublished": is_more,
        "announced": None if announced is None else announced.posted_at,
    }


def _channel_as_json(channel: OwnedChannel) -> dict[str, Any]:
    return {
        "name": channel.name,
        "content_topic": channel.content_topic,
        "has_key": channel.key is not None,
        "since": channel.since,
        "until": channel.until,
    }
