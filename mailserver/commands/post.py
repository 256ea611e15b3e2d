"""`waku-mailserver post`: seal, post, wait for the confirmation."""

import argparse
import json
from datetime import UTC, datetime

import uvloop

from mailserver.arguments import checked, read_pow, read_text, read_topic, read_ttl
from mailserver.client import connect, seal_envelope
from mailserver.commands.settings import add_node
from mailserver.output import complain
from mailserver.server import CLIENT_ID
from mailserver.waku.payload import key_from_password


def add(parser: argparse.ArgumentParser) -> None:
    """Take the arguments of `post`."""
    add_node(parser)
    parser.add_argument(
        "--topic",
        required=True,
        type=checked(read_topic),
        metavar="NAME_OR_0xHEX",
        help="the topic, by its name or as 0x and 8 hex digits",
    )
    parser.add_argument("--payload", required=True, type=read_text, metavar="TEXT", help="what to seal")
    parser.add_argument(
        "--sym-key-password",
        type=read_text,
        metavar="PW",
        help="seal with the key from this password (default: the topic as given)",
    )
    parser.add_argument("--ttl", type=read_ttl, default=60, metavar="S", help="seconds to live (default: %(default)s)")
    parser.add_argument(
        "--pow", type=read_pow, metavar="X", help="proof of work to reach (default: what the node asks for)"
    )
    parser.add_argument("--json", action="store_true", help="the confirmed envelope's hash as a JSON object")
    parser.set_defaults(command=_post)


def _post(arguments: argparse.Namespace) -> int:
    topic_text, topic = arguments.topic
    key = key_from_password(topic_text if arguments.sym_key_password is None else arguments.sym_key_password)

    async def post() -> int:
        async with connect(arguments.enode, CLIENT_ID) as client:
            envelope = await seal_envelope(
                arguments.payload.encode(),
                key,
                topic,
                ttl=arguments.ttl,
                min_pow=client.settings.pow_requirement if arguments.pow is None else arguments.pow,
                now=int(datetime.now(UTC).timestamp()),
            )
            response = await client.post([envelope])
        for error in response.errors:
            complain(f"envelope refused: {error.description} (code {error.code})")
        if response.errors:
            return 1
        name = envelope.hash().hex()
        print(json.dumps({"confirmed": name}) if arguments.json else f"confirmed {name}")
        return 0

    return uvloop.run(post())
