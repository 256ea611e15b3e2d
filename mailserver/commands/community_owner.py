"""`waku-mailserver community create|add-channel|remove-channel|enable|disable|list`: the communities that we own."""

import argparse
import json
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from mailserver.app.communities_config import COMMUNITIES
from mailserver.codec.keys import PrivateKey
from mailserver.commands.arguments import checked, read_bytes, read_text, read_time
from mailserver.commands.settings import add_settings, settings_of
from mailserver.commands.terminal import print_table
from mailserver.communities.channels import Channel, chat_channel, id_text
from mailserver.communities.index import DEPLOYED, SPEC
from mailserver.community.folder import COMMUNITIES_FOLDER
from mailserver.community.owner.folders import (
    KEY_FILE,
    CommunityFolder,
    create,
    named,
    owned,
)
from mailserver.community.owner.record import KEY_BYTES, Community, new_community
from mailserver.community.owner.showing import owned_as_json
from mailserver.data_dir.folder import read_secret
from mailserver.errors import ConfigError, DecodeError
from mailserver.ids.envelopes import content_topic_of
from mailserver.net.sessions import random_key
from mailserver.units import size_text
from mailserver.waku.topics import parse_topic


def _add_create(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME", type=read_text, help="for people")
    parser.add_argument(
        "--key-file",
        type=Path,
        metavar="FILE",
        help="the community's private key, 64 hex digits, which nobody else may read (default: a new one)",
    )
    parser.add_argument(
        "--format",
        choices=(SPEC, DEPLOYED),
        default=SPEC,
        help="of its history archives: the specification's, with messages as they were sealed, or that of status-go, "
        "with messages that the channels' keys have opened (default: %(default)s)",
    )
    _add_json(parser)
    add_settings(parser, only={"data_dir", "network_topic"}, sources=COMMUNITIES)
    parser.set_defaults(command=_create)


def _create(arguments: argparse.Namespace) -> int:
    config = settings_of(arguments, COMMUNITIES)
    key = random_key() if arguments.key_file is None else _read_key(arguments.key_file)
    community = new_community(arguments.name, arguments.format, config.network_topic, int(time.time()))
    folder = create(config.data_dir / COMMUNITIES_FOLDER, community, key)
    if arguments.json:
        _print(folder, community)
    else:
        print(id_text(folder.id))
    return 0


def _read_key(path: Path) -> PrivateKey:
    try:
        return PrivateKey(bytes.fromhex(read_secret(path).decode("ascii").strip()))
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror or error}") from error
    except (ValueError, DecodeError) as error:
        raise ConfigError(f"{path} holds no private key (64 hex digits)") from error


def _add_community(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("community", metavar="COMMUNITY", type=read_text, help="its id, or its name")
    _add_json(parser)
    add_settings(parser, only={"data_dir"}, sources=COMMUNITIES)


def _add_add_channel(parser: argparse.ArgumentParser) -> None:
    _add_community(parser)
    parser.add_argument("name", metavar="CHANNEL", type=read_text, help="for people")
    which = parser.add_mutually_exclusive_group()
    which.add_argument(
        "--chat-id",
        type=read_text,
        metavar="TEXT",
        help="the chat id from which its topic and key are derived: in Status, the community's id and the channel's, "
        "joined (default: CHANNEL)",
    )
    which.add_argument("--topic", type=checked(parse_topic), metavar="TOPIC", help="its topic, if it is no public chat")
    parser.add_argument(
        "--symmetric-key", type=read_bytes(KEY_BYTES), metavar="HEX", help="with --topic, the key of its messages"
    )
    parser.add_argument(
        "--since",
        type=read_time,
        metavar="TIME",
        help="only what was posted from then on belongs to it: Unix seconds, or ISO 8601 (default: all)",
    )
    parser.set_defaults(command=_add_channel)


def _add_channel(arguments: argparse.Namespace) -> int:
    if arguments.topic is None:
        if arguments.symmetric_key is not None:
            raise ConfigError("--symmetric-key needs --topic: that of a public chat comes from its chat id")
        channel = chat_channel(arguments.chat_id or arguments.name, arguments.name)
    else:
        channel = Channel(arguments.name, content_topic_of(arguments.topic), arguments.symmetric_key)
    return _change(arguments, lambda community: community.with_channel(channel, since=arguments.since))


def _add_remove_channel(parser: argparse.ArgumentParser) -> None:
    _add_community(parser)
    parser.add_argument("name", metavar="CHANNEL", type=read_text, help="its name, or its content topic")
    parser.add_argument(
        "--at",
        type=read_time,
        metavar="TIME",
        help="what was posted from then on does not belong to it: Unix seconds, or ISO 8601 (default: now)",
    )
    parser.set_defaults(command=_remove_channel)


def _remove_channel(arguments: argparse.Namespace) -> int:
    at = int(time.time()) if arguments.at is None else arguments.at
    return _change(arguments, lambda community: community.without_channel(arguments.name, at=at))


def _add_switch(*, on: bool) -> Callable[[argparse.ArgumentParser], None]:
    def add(parser: argparse.ArgumentParser) -> None:
        _add_community(parser)
        parser.set_defaults(
            command=lambda arguments: _change(arguments, lambda community: replace(community, is_enabled=on))
        )

    return add


def _add_list(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print one JSON object for each community, one a line")
    add_settings(parser, only={"data_dir"}, sources=COMMUNITIES)
    parser.set_defaults(command=_list)


def _list(arguments: argparse.Namespace) -> int:
    folders = [*owned(settings_of(arguments, COMMUNITIES).data_dir / COMMUNITIES_FOLDER)]
    shown = [owned_as_json(folder, folder.read()) for folder in folders]
    if arguments.json:
        for one in shown:
            print(json.dumps(one))
    elif shown:
        titles = ("COMMUNITY", "ID", "STATE", "FORMAT", "CHANNELS", "ARCHIVES", "SIZE", "UNTIL")
        print_table(titles, [_row(one) for one in shown])
    return 0


def _row(shown: dict[str, Any]) -> tuple[str, ...]:
    on = sum(channel["until"] is None for channel in shown["channels"])
    off = len(shown["channels"]) - on
    return (
        shown["name"],
        shown["id"],
        "on" if shown["enabled"] else "off",
        shown["format"],
        f"{on} ({off} off)" if off else str(on),
        f"{shown['archives']}{' (more to publish)' if shown['unpublished'] else ''}",
        size_text(shown["bytes"]),
        "-" if shown["until"] is None else f"{datetime.fromtimestamp(shown['until'], UTC):%Y-%m-%d}",
    )


def _add_json(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print the community as one JSON object, as `list` does")


def _change(arguments: argparse.Namespace, change: Callable[[Community], Community]) -> int:
    """Change the community that is named; print it for programs."""
    folder = named(settings_of(arguments, COMMUNITIES).data_dir / COMMUNITIES_FOLDER, arguments.community)
    changed = folder.change(change)
    if arguments.json:
        _print(folder, changed)
    return 0


def _print(folder: CommunityFolder, community: Community) -> None:
    print(json.dumps(owned_as_json(folder, community)))


_KEPT = f"Its private key is in DIR/{COMMUNITIES_FOLDER}/ID/{KEY_FILE}: keep a copy of it."

COMMANDS: tuple[tuple[str, Callable[[argparse.ArgumentParser], None], str, str], ...] = (
    (
        "create",
        _add_create,
        "make a community that we own, and print its id",
        f"Make a community that we own, and print its id. {_KEPT}",
    ),
    (
        "add-channel",
        _add_add_channel,
        "add a channel, or change its name or key",
        "Add a channel to a community, or change the name or key of the one that has its topic.",
    ),
    (
        "remove-channel",
        _add_remove_channel,
        "switch a channel off",
        "Switch a channel off: what was posted before stays in the history.",
    ),
    ("enable", _add_switch(on=True), "make, seed and announce history archives of a community again", ""),
    ("disable", _add_switch(on=False), "make, seed and announce no history archives of a community any more", ""),
    ("list", _add_list, "list the communities that we own", ""),
)
"""See `community.COMMANDS`."""
