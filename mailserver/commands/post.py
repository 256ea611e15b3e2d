"""`waku-mailserver post`: seal a payload, post it, and wait for the confirmation."""

import argparse
import json
import sys
from datetime import UTC, datetime
from pathlib import Path

import uvloop

from mailserver.app.client_id import CLIENT_ID
from mailserver.client.mail_client import connect
from mailserver.client.sealing import seal_envelope
from mailserver.commands.arguments import checked, read_pow, read_public_key, read_text, read_topic, read_ttl
from mailserver.commands.output import complain
from mailserver.commands.settings import add_node
from mailserver.data_dir.folder import read_private_key
from mailserver.errors import ConfigError
from mailserver.waku.acceptance import MAX_ENVELOPE_BYTES
from mailserver.waku.payload import key_from_password

STDIN = "-"


def add(parser: argparse.ArgumentParser) -> None:
    """Take the arguments of `post`."""
    add_node(parser)
    parser.add_argument(
        "--topic",
        required=True,
        type=checked(read_topic),
        metavar="NAME_OR_0xHEX",
        help="the topic: its name, or 0x and 8 hex digits",
    )
    payload = parser.add_mutually_exclusive_group(required=True)
    payload.add_argument("--payload", type=read_text, metavar="TEXT", help="the payload; it may be empty")
    payload.add_argument(
        "--payload-file", metavar="FILE", help=f"a file with the payload, any bytes; {STDIN} is standard input"
    )
    sealing = parser.add_mutually_exclusive_group()
    sealing.add_argument(
        "--sym-key-password",
        type=read_text,
        metavar="PW",
        help="seal with the key derived from this password (default: from the topic as given)",
    )
    sealing.add_argument(
        "--seal-to", type=checked(read_public_key), metavar="KEY", help="seal to this public key instead, in hex digits"
    )
    parser.add_argument(
        "--sign-with",
        type=Path,
        metavar="FILE",
        help="sign with the private key in this file, 64 hex digits, which only you may read (default: do not sign)",
    )
    parser.add_argument(
        "--ttl", type=read_ttl, default=60, metavar="S", help="time to live in seconds (default: %(default)s)"
    )
    parser.add_argument(
        "--pow", type=read_pow, metavar="X", help="proof of work to reach (default: what the node demands)"
    )
    parser.add_argument("--json", action="store_true", help="print the hash of the confirmed envelope as a JSON object")
    parser.set_defaults(command=_post)


def _payload(arguments: argparse.Namespace) -> bytes:
    """The payload.

    Raises:
        ConfigError: it cannot be read, or is too long for an envelope.
    """
    name: str | None = arguments.payload_file
    if name is None:
        payload = bytes(arguments.payload.encode())
    else:
        most = MAX_ENVELOPE_BYTES + 1  # one byte more than could ever fit shows that there is too much
        try:
            if name == STDIN:
                payload = sys.stdin.buffer.read(most)
            else:
                with Path(name).open("rb") as file:
                    payload = file.read(most)
        except (OSError, ValueError) as error:  # ValueError: the name contains NUL
            raise ConfigError(f"cannot read {name}: {getattr(error, 'strerror', None) or error}") from error
    if len(payload) > MAX_ENVELOPE_BYTES:
        raise ConfigError(f"the payload is too long: an envelope may have at most {MAX_ENVELOPE_BYTES} bytes")
    return payload


def _sealing_key(arguments: argparse.Namespace, topic_text: str) -> bytes:
    """The public or symmetric key to seal with."""
    if arguments.seal_to is not None:
        return bytes(arguments.seal_to)
    return key_from_password(topic_text if arguments.sym_key_password is None else arguments.sym_key_password)


def _post(arguments: argparse.Namespace) -> int:
    topic_text, topic = arguments.topic
    payload, key = _payload(arguments), _sealing_key(arguments, topic_text)
    signing_key = None if arguments.sign_with is None else read_private_key(arguments.sign_with)

    async def post() -> int:
        async with connect(arguments.enode, CLIENT_ID) as client:
            envelope = await seal_envelope(
                payload,
                key,
                topic,
                ttl=arguments.ttl,
                min_pow=client.settings.pow_requirement if arguments.pow is None else arguments.pow,
                now=int(datetime.now(UTC).timestamp()),
                signing_key=signing_key,
            )
            if len(envelope.raw) > MAX_ENVELOPE_BYTES:
                size = f"{len(envelope.raw)} bytes, and an envelope may have at most {MAX_ENVELOPE_BYTES}"
                raise ConfigError(f"the payload is too long: sealed, it takes {size}")
            response = await client.post([envelope])
        for error in response.errors:
            complain(f"envelope refused: {error.description} (code {error.code})")
        if response.errors:
            return 1
        name = envelope.hash().hex()
        print(json.dumps({"confirmed": name}) if arguments.json else f"confirmed {name}")
        return 0

    return uvloop.run(post())
