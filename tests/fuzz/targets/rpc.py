"""JSON-RPC: any text, and any parameters of any method, over a whole node without a network."""

import asyncio
import json
from collections.abc import Iterator
from functools import cache
from typing import Any
from unittest import mock

from mailserver.api import waku_messages
from mailserver.api.caller import Call, Caller
from mailserver.api.dialects import Dialect
from mailserver.api.dispatch import MAX_RESPONSE_CHARS, Dispatcher
from mailserver.api.errors import ErrorCode
from mailserver.api.filters import Filters
from mailserver.api.keys import KeyStore
from mailserver.api.methods import KNOWN_ERRORS, all_methods
from mailserver.codec.keys import Enode
from mailserver.errors import ConnectionLost
from mailserver.history.delivery import DeliverySettings
from mailserver.history.id_lists import IdLists
from mailserver.net.connection import Connection
from mailserver.net.dialer import StaticPeers
from mailserver.peers.connected import Peers
from mailserver.peers.node import Node
from mailserver.waku.acceptance import Requirements
from mailserver.waku.envelope import MAX_U32
from tests.fuzz.choices import Choices
from tests.fuzz.stores import image_of, store_in_memory
from tests.fuzz.target import Target
from tests.mailservers import PASSWORD_KEY, Clock, wired
from tests.pairs import private_key

MAX_CALLS = 8
POW_TIME_S = 0.005
"""How long a proof of work is sought here; a daemon's 60 s are for its users."""

NODE_BYTES = 8 * 1024 * 1024
"""What a node takes by itself."""

SLOW = frozenset({"waku_generateSymKeyFromPassword"})
"""Derives a key in a thread, for 30 ms; its one parameter is checked as those of others are."""

KEY = private_key("fuzzed")
ENODE = f"enode://{KEY.public_key.hex()}@127.0.0.1:30303"
FIELDS = (
    *("symKeyID", "pubKey", "sig", "ttl", "topic", "payload", "padding", "powTime", "powTarget", "targetPeer"),
    *("privateKeyID", "minPow", "topics", "allowP2P", "mailServerPeer", "from", "to", "limit", "cursor", "timeout"),
    *("force", "id", "name", "filter", "message", "request", "other"),
)
VALUES: tuple[Any, ...] = (
    None,
    True,
    False,
    0,
    1,
    -1,
    50,
    0.5,
    1e308,
    MAX_U32,
    MAX_U32 + 1,
    10**300,
    "",
    "0x",
    "0X",
    "0x9acb0442",
    "0x9acb044",
    f"0x{'ab' * 32}",
    f"0x04{KEY.public_key.hex()}",
    f"0x04{'00' * 64}",
    f"0x{KEY.secret.hex()}",
    "00" * 36,
    ENODE,
    "messages",
    "\ud800",
    "é",
    [],
    ["0x9acb0442"],
    ["0x9a", "0x"],
    [None],
    {},
)


@cache
def _image() -> bytes:
    return image_of([])


async def _nobody(enode: Enode) -> Connection:
    raise ConnectionLost(None, "nobody is there")


async def _serve(connection: Connection) -> None:
    raise AssertionError("nobody was there")


class Interface:
    """All methods over a node of its own, and what they are called with; one for each input."""

    def __init__(self, node: Node, lists: IdLists, static_peers: StaticPeers, dialect: Dialect) -> None:
        keys, filters = KeyStore(max_keys=4), Filters(node.feed)
        methods = all_methods(node, keys, filters, lists, dialect=dialect, clock=Clock())
        self.methods = {name: method for name, method in methods.items() if name not in SLOW}
        self.dispatcher = Dispatcher(self.methods, KNOWN_ERRORS)
        self.values = (*VALUES, keys.new_symmetric(), keys.new_pair())
        self._static_peers = static_peers

    async def answer(self, text: bytes) -> None:
        """Have a text answered; check the answer."""

        async def send(notification: str) -> None:
            assert json.loads(notification)["method"] in ("waku_subscription", "wakuext_subscription")

        call = Call(Caller(send))
        answer = await self.dispatcher.answer(text, call)
        call.answered.set()
        await call.caller.end()
        if answer is not None:
            _check(answer)


def _check(text: str) -> None:
    assert text.isascii()
    assert "\n" not in text
    assert len(text) < 2 * MAX_RESPONSE_CHARS
    answers = json.loads(text, parse_constant=_refuse)
    assert answers != []
    for answer in answers if isinstance(answers, list) else [answers]:
        assert answer["jsonrpc"] == "2.0"
        assert answer.keys() in ({"jsonrpc", "id", "result"}, {"jsonrpc", "id", "error"})
        assert not isinstance(answer["id"], bool | list | dict)
        if "error" in answer:
            assert ErrorCode(answer["error"]["code"]) is not ErrorCode.INTERNAL_ERROR, answer
            assert answer["error"]["message"]


def _refuse(name: str) -> None:
    raise AssertionError(f"{name} is no JSON")


def _run(dialect: Dialect, texts: "Iterator[bytes] | None", choices: Choices | None) -> None:
    async def run() -> None:
        peers = Peers(10)
        with store_in_memory(_image()) as store:
            settings = DeliverySettings(PASSWORD_KEY, private_key("node"))
            node, services = wired(store, Clock(), settings, peers, requirements=Requirements(0.0))
            static_peers = StaticPeers(_nobody, _serve, lambda node_id: False)
            node.listening(("127.0.0.1", 1), Enode(node.key.public_key, "127.0.0.1", 1), static_peers)
            interface = Interface(node, services.ids.lists, static_peers, dialect)
            for text in texts if choices is None else _calls(choices, interface):  # type: ignore[union-attr]
                await interface.answer(text)
            static_peers.stop()
            await static_peers.join()

    with mock.patch.object(waku_messages, "MAX_POW_TIME_S", POW_TIME_S), asyncio.Runner() as runner:
        runner.run(run())


def fuzz_text(data: bytes) -> None:
    """Any text is answered, or is a notification."""
    _run(Dialect.SPECIFICATION, iter([data]), None)


def fuzz_calls(data: bytes) -> None:
    """Any parameters of any methods, one call after the other, are answered, and never by an internal error."""
    choices = Choices(data)
    _run(choices.pick(tuple(Dialect)), None, choices)


def _calls(choices: Choices, interface: Interface) -> Iterator[bytes]:
    names = sorted(interface.methods)
    for _ in range(MAX_CALLS):
        if not choices.more:
            return
        name = choices.pick(names)
        wanted = interface.methods[name].params
        params: Any
        if choices.flag():
            params = [_value(choices, interface, 3) for _ in range(choices.below(len(wanted) + 2))]
        else:
            params = {each: _value(choices, interface, 3) for each in wanted if choices.below(8)}
        yield json.dumps({"jsonrpc": "2.0", "id": 1, "method": name, "params": params}).encode()


def _value(choices: Choices, interface: Interface, levels: int) -> Any:
    match choices.below(4) if levels else 3:
        case 0:
            names = [choices.pick(FIELDS) for _ in range(choices.below(10))]
            return {name: _value(choices, interface, levels - 1) for name in names}
        case 1:
            return [_value(choices, interface, levels - 1) for _ in range(choices.below(4))]
        case 2:
            text = choices.take(70)
            return choices.pick((text.decode("utf-8", "replace"), f"0x{text.hex()}", int.from_bytes(text[:16], "big")))
    return choices.pick(interface.values)


def text_seeds() -> Iterator[bytes]:
    """Requests, a batch, notifications, and what is none."""
    yield b'{"jsonrpc": "2.0", "id": 1, "method": "waku_info", "params": []}'
    yield b'[{"jsonrpc": "2.0", "id": "a", "method": "waku_version"}, {"jsonrpc": "2.0", "method": "waku_info"}, 1]'
    yield b'{"jsonrpc": "2.0", "id": null, "method": "waku_setMinPoW", "params": {"minPow": 1e400}}'
    yield b'{"jsonrpc": "2.0", "id": 1.5, "method": "waku_addSymKey", "params": ["0x' + b"ab" * 32 + b'"]}'
    yield b'{"id": NaN}'
    yield b'{"id": 1, "id": 2}'
    yield b"[]"
    yield b"[" * 600
    yield b'{"id": ' + b"1" * 600 + b"}"
    yield b'"\\ud800"'


def call_seeds() -> Iterator[bytes]:
    """Each method with and without parameters; a message that is posted, a filter, a request."""
    for number in range(30):
        yield bytes([0, number, 0, 1, 3, 17])
        yield bytes([1, number, 1, 1, 3, 19])
    for number in range(30):
        yield bytes([0, number, 1, 1, 0, 4, 0, 3, 31, 4, 3, 15, 5, 3, 15, 3, 3, 6])


TARGETS = {
    "text": Target(fuzz_text, text_seeds, memory_bytes=NODE_BYTES),
    "calls": Target(fuzz_calls, call_seeds, memory_bytes=NODE_BYTES),
}
