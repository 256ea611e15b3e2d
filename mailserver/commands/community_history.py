"""`waku-mailserver community messages`: the history of a community, as its member has it."""

import argparse
import json
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from mailserver.app.communities_config import COMMUNITIES
from mailserver.commands.arguments import read_text
from mailserver.commands.community_member import add_community, add_times, time_range_of
from mailserver.commands.output import printable
from mailserver.commands.settings import add_settings, settings_of
from mailserver.communities.channels import chat_channel
from mailserver.communities.formats import TimeRange
from mailserver.community.member.history import read_messages
from mailserver.community.member.joined import membership
from mailserver.community.member.reading import OpenedMessage, open_message
from mailserver.community.member.records import HistoryMessage
from mailserver.ids.envelopes import NS
from mailserver.waku.envelope import MAX_U32


def _add_messages(parser: argparse.ArgumentParser) -> None:
    add_community(parser)
    add_times(parser, "print only messages")
    parser.add_argument(
        "--channel",
        action="append",
        default=[],
        type=read_text,
        metavar="CHAT_ID",
        help="print only the messages of this channel, and open them; repeatable (default: all messages)",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object for each message, one a line")
    add_settings(parser, only={"data_dir"}, sources=COMMUNITIES)
    parser.set_defaults(command=_messages)


def _messages(arguments: argparse.Namespace) -> int:
    folder = membership(settings_of(arguments, COMMUNITIES).data_dir, arguments.community)
    joined = folder.read_kept()
    asked = {channel.content_topic: channel.key for channel in map(chat_channel, arguments.channel)}
    keys = joined.keys() | {topic: key for topic, key in asked.items() if key is not None}
    time_range = time_range_of(arguments) or TimeRange(0, MAX_U32)
    with read_messages(folder.history, time_range, asked) as messages:
        if not arguments.json:
            print(_TABLE_ROW.format(time="TIME (UTC)", topic="TOPIC", hash="HASH", payload="PAYLOAD"))
        for message in messages:
            opened = open_message(message, keys)
            print(json.dumps(_message_as_json(message, opened)) if arguments.json else _message_row(message, opened))
    return 0


_TABLE_ROW = "{time:<20} {topic:<30} {hash:<18} {payload}"


def _message_row(message: HistoryMessage, opened: OpenedMessage) -> str:
    payload = "-" if opened.payload is None else printable(opened.payload.decode("utf-8", "backslashreplace"))
    return _TABLE_ROW.format(
        time=f"{datetime.fromtimestamp(message.timestamp // NS, UTC):%Y-%m-%d %H:%M:%S}",
        topic=printable(message.content_topic),
        hash=message.hash.hex()[:16] + "..",
        payload=payload,
    ).rstrip()


def _message_as_json(message: HistoryMessage, opened: OpenedMessage) -> dict[str, Any]:
    return {
        "hash": message.hash.hex(),
        "timestamp": message.timestamp,
        "content_topic": message.content_topic,
        "sealed": message.payload.hex() if message.version is not None else None,
        "meta": None if message.meta is None else message.meta.hex(),
        "payload": None if opened.payload is None else opened.payload.decode("utf-8", "backslashreplace"),
        "payload_hex": None if opened.payload is None else opened.payload.hex(),
        "signer": None if opened.signer is None else opened.signer.hex(),
        "type": opened.type,
    }


COMMANDS: tuple[tuple[str, Callable[[argparse.ArgumentParser], None], str, str], ...] = (
    (
        "messages",
        _add_messages,
        "print the history of a community",
        "Print the messages of a community, oldest first. Those of channels that were named are opened.",
    ),
)
"""See `community.COMMANDS`."""
