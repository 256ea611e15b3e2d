"""`waku-mailserver id`: print the ids of envelopes or v2 messages, or check ids against them."""

import argparse
import json
import sys
from collections.abc import Iterable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

from mailserver.commands.arguments import read_text
from mailserver.commands.output import complain, counted
from mailserver.errors import ConfigError, DecodeError
from mailserver.ids.envelopes import envelope_differences, message_of
from mailserver.ids.muid import DEFAULT_NETWORK_TOPIC, NoId, check_muid, differences, muid
from mailserver.ids.waku_message import MAX_MESSAGE_BYTES, MESSAGE_HASH_BYTES, WakuMessage, decode_message
from mailserver.waku.envelope import Envelope, decode_envelope

STDIN = "-"

MAX_LINE_CHARS = 2 * MAX_MESSAGE_BYTES + 1024
"""The longest line that is read: a message in hex, an id, and some room."""

MAX_QUOTED_CHARS = 80
"""How much of what is not hex is shown."""


@dataclass(frozen=True, slots=True)
class Named:
    """What a line holds. `envelope` is None for a v2 message."""

    message: WakuMessage
    envelope: Envelope | None


def add(parser: argparse.ArgumentParser) -> None:
    """Take the arguments of `id`."""
    parser.add_argument(
        "file", nargs="?", default=STDIN, metavar="FILE", help="one envelope a line, its RLP in hex (default: stdin)"
    )
    parser.add_argument(
        "--v2", action="store_true", help="the lines are messages of Waku v2 instead, their protobuf in hex"
    )
    parser.add_argument(
        "--network-topic",
        type=read_text,
        default=DEFAULT_NETWORK_TOPIC,
        metavar="TOPIC",
        help="the pubsub topic to which the ids belong (default: %(default)s)",
    )
    parser.add_argument(
        "--check",
        action="store_true",
        help="each line has an id behind it, a MUID or a message hash in hex: say what is not as it says",
    )
    parser.add_argument("--json", action="store_true", help="print a JSON object for each line")
    parser.set_defaults(command=_id)


def _id(arguments: argparse.Namespace) -> int:
    """Go through the lines; 1 if one cannot be read, or its id is not the right one."""
    failed = 0
    for number, line in enumerate(_lines(arguments.file), 1):
        words = line.split()
        if not words:
            continue
        try:
            failed += not _line(number, words, arguments)
        except (DecodeError, NoId) as error:
            complain(f"line {number}: {error}")
            failed += 1
    if failed and arguments.check:
        complain(f"{counted(failed, 'line')} did not pass")
    return 1 if failed else 0


def _lines(name: str) -> Iterator[str]:
    """The lines of a file, or of standard input.

    Raises:
        ConfigError: it cannot be read, or a line is too long.
    """
    try:
        with nullcontext(sys.stdin) if name == STDIN else Path(name).open(encoding="utf-8") as file:
            while line := file.readline(MAX_LINE_CHARS):
                if len(line) == MAX_LINE_CHARS:
                    raise ConfigError(f"a line of {name} has {MAX_LINE_CHARS} characters or more")
                yield line
    except (OSError, ValueError) as error:  # ValueError: the name contains NUL, or the file is not UTF-8
        raise ConfigError(f"cannot read {name}: {getattr(error, 'strerror', None) or error}") from error


def _line(number: int, words: list[str], arguments: argparse.Namespace) -> bool:
    """Print what there is to say of a line; return whether its id is the right one.

    Raises:
        DecodeError: it cannot be read.
        NoId: it has no id.
    """
    expected = 2 if arguments.check else 1
    if len(words) != expected:
        raise DecodeError(f"not {counted(expected, 'word')}", got=len(words))
    named = _read(words[0], is_v2=arguments.v2)
    topic: str = arguments.network_topic
    if arguments.check:
        return _check(named, _bytes(words[1]), topic, as_json=arguments.json)
    name, why = _muid_of(named.message, topic)
    message_hash = named.message.hash(topic).hex()
    if arguments.json:
        about = {"envelope_hash": named.envelope.hash().hex()} if named.envelope else {}
        print(json.dumps({"muid": name, "message_hash": message_hash, **about}))
        return True
    print(name or STDIN, message_hash)
    if why:
        complain(f"line {number}: {why}")
    return True


def _read(text: str, *, is_v2: bool) -> Named:
    data = _bytes(text)
    if is_v2:
        return Named(decode_message(data), None)
    envelope = decode_envelope(data)
    return Named(message_of(envelope), envelope)


def _bytes(text: str) -> bytes:
    try:
        return bytes.fromhex(text.removeprefix("0x"))
    except ValueError as error:
        raise DecodeError("not hex", got=text[:MAX_QUOTED_CHARS]) from error


def _muid_of(message: WakuMessage, topic: str) -> tuple[str | None, str]:
    """The MUID in hex; or None, and why there is none."""
    try:
        return muid(topic, message.content_topic, message.meta, message.payload).hex(), ""
    except NoId as error:
        return None, str(error)


def _check(named: Named, claimed: bytes, topic: str, *, as_json: bool) -> bool:
    differ = sorted(_differing(named, claimed, topic))
    if as_json:
        print(json.dumps({"claimed": claimed.hex(), "ok": not differ, "differs": differ}))
    else:
        print("ok" if not differ else f"differs: {', '.join(differ)}", claimed.hex())
    return not differ


def _differing(named: Named, claimed: bytes, topic: str) -> Iterable[str]:
    """What is not as an id says.

    Raises:
        DecodeError: it is neither a MUID nor a message hash.
    """
    message = named.message
    if len(claimed) == MESSAGE_HASH_BYTES:
        return [] if claimed == message.hash(topic) else ["message hash"]
    name = check_muid(claimed)
    if named.envelope:
        return envelope_differences(topic, name, named.envelope)
    found = differences(name, topic, message.content_topic, message.meta, message.payload)
    return [each.value for each in found]
