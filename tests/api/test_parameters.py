"""Every method with every parameter missing, wrong in every way that its kind knows, and one too many."""

import copy
from typing import Any

import pytest

from mailserver.api.caller import Caller
from mailserver.api.dialects import Dialect
from mailserver.api.errors import ErrorCode
from mailserver.api.filters import MAX_FILTER_TOPICS
from mailserver.api.methods import all_methods
from mailserver.api.params import Json
from mailserver.api.waku import MAX_PASSWORD_CHARS
from mailserver.codec.keys import PUBLIC_KEY_BYTES
from mailserver.history.id_lists import IdLists
from mailserver.waku.acceptance import MAX_ENVELOPE_BYTES
from tests.api.nodes import CallFailed, RunningNode
from tests.pairs import private_key

pytestmark = pytest.mark.integration

ALICE = private_key("alice")
ENODE = f"enode://{ALICE.public_key.hex()}@127.0.0.1:30303"
PUBLIC_KEY = f"0x04{ALICE.public_key.hex()}"
NOWHERE = "00" * PUBLIC_KEY_BYTES
"""No point of the curve."""

# A kind of parameter is a value that is right and all that are wrong.
Kind = tuple[Json, list[Json]]

NO_STRINGS: list[Json] = [0, 1.5, True, [], {}]


def hex_of(value: str, least: int, most: int) -> Kind:
    wrong = [*NO_STRINGS, "00", "x", "0x0", "0xzz", "0x 00", "0x00 ", "0x\u0660\u0660", "0x" + "00" * (most + 1)]
    return value, wrong + (["0x" + "00" * (least - 1)] if least > 1 else [])


def whole_of(least: int, most: int) -> Kind:
    return least, ["1", True, [], {}, 1.5, 5.0, least - 1, most + 1, 10**400]


NO_OBJECTS: list[Json] = [0, True, "x", []]
TEXT: list[Json] = [*NO_STRINGS, "half \ud800"]
ID: Kind = ("ab" * 32, [*TEXT, "x" * 129])
NUMBER: Kind = (0.002, ["1", True, [], {}, -1, -1e-300, 10**400])
SECONDS: Kind = (5, ["1", True, [], {}, -1, -1e-300, 2**32, 10**400])
U32 = whole_of(0, 2**32 - 1)
FLAG: Kind = (True, [0, 1, "true", [], {}])
TOPIC = hex_of("0x9acb0442", 4, 4)
KEY = hex_of(f"0x{ALICE.secret.hex()}", 32, 32)
PUBLIC = hex_of(PUBLIC_KEY, 65, 65)
PUBLIC[1].extend([f"0x05{ALICE.public_key.hex()}", f"0x04{NOWHERE}"])
PEER: Kind = (
    ENODE,
    [
        *TEXT,
        "x",
        "enode://",
        ENODE.replace("enode", "http"),
        ENODE.replace("30303", "0"),
        ENODE.replace("30303", "65536"),
        ENODE.replace("127.0.0.1", ""),
        f"{ENODE}#x",
        f"{ENODE}?{'x' * 512}",
        f"enode://{NOWHERE}@127.0.0.1:30303",
    ],
)


def topics_of(kind: Kind, most: int) -> Kind:
    right, wrong = kind
    return [right], [1, True, "x", {}, [None], [""], [[right]], [right] * (most + 1), *([value] for value in wrong)]


OPTIONAL = "?"
FILTER: dict[str, Kind] = {
    "symKeyID?": ID,
    "privateKeyID?": ID,
    "sig?": PUBLIC,
    "minPow?": NUMBER,
    "topics?": topics_of(hex_of("0x9a", 1, 4), MAX_FILTER_TOPICS),
    "allowP2P?": FLAG,
}
POST: dict[str, Kind] = {
    "symKeyID?": ID,
    "pubKey?": PUBLIC,
    "sig?": ID,
    "ttl?": U32,
    "topic?": TOPIC,
    "payload": hex_of("0x00", 0, MAX_ENVELOPE_BYTES),
    "padding?": hex_of("0x00", 0, MAX_ENVELOPE_BYTES),
    "powTime?": SECONDS,
    "powTarget?": NUMBER,
    "targetPeer?": PEER,
}
CURSOR = hex_of("0x" + "00" * 36, 36, 36)
CURSOR[1].remove("00")  # it has no 0x in deployed clients; and so 1 byte is too short
REQUEST: dict[str, Kind] = {
    "mailServerPeer": PEER,
    "from?": U32,
    "to?": U32,
    "limit?": U32,
    "cursor?": CURSOR,
    "topic?": TOPIC,
    "topics": topics_of(TOPIC, 1000),
    "symKeyID": ID,
    "timeout?": NUMBER,
    "force?": FLAG,
}
ANY_HEX = [*NO_STRINGS, "x", "0x0", "0xzz"]
NETWORK: Kind = ("/waku/2/rs/1/4", [*TEXT, "/waku/2/rs/1/5", "n" * 256])
MUIDS = topics_of(hex_of(f"0x{'ab' * 52}", 33, 64), 1000)
ID_SCOPE: dict[str, Kind] = {
    "networkTopic?": NETWORK,
    "topics?": topics_of(TOPIC, 1000),
    "from?": U32,
    "to?": U32,
}
ID_LIST: dict[str, Kind] = {
    **ID_SCOPE,
    "order?": ("newest", [*NO_STRINGS, "oldest"]),
    "metadataPrefix?": ("0x00", [*ANY_HEX, f"0x{'00' * 33}"]),
    "metadataFrom?": ("0x00", [*ANY_HEX, f"0x{'00' * 33}"]),
    "metadataTo?": ("0x00", [*ANY_HEX, f"0x{'00' * 33}"]),
    "cursor?": (f"0x{'00' * 36}", [*ANY_HEX, "0x00", f"0x{'00' * 37}"]),
    "limit?": whole_of(1, 10_000),
}
CHECKED: dict[str, Kind] = {
    "networkTopic?": (NETWORK[0], [*TEXT, "n" * 256]),
    "envelope?": ("0x", [*ANY_HEX, "0x00"]),
    "message?": ("0x", [*ANY_HEX, "0x00"]),
    "id?": (f"0x{'ab' * 32}", [*ANY_HEX, f"0x{'ab' * 31}", f"0x{'ab' * 65}"]),
}
METHODS: dict[str, dict[str, Kind | dict[str, Kind]]] = {
    "waku_version": {},
    "waku_info": {},
    "waku_setMinPoW": {"minPow": NUMBER},
    "waku_setMaxEnvelopeSize": {"size": whole_of(1, MAX_ENVELOPE_BYTES)},
    "waku_setMaxMessageSize": {"size": whole_of(1, MAX_ENVELOPE_BYTES)},
    "waku_markTrustedPeer": {"enode": PEER},
    "waku_newKeyPair": {},
    "waku_addPrivateKey": {"privateKey": (KEY[0], [*KEY[1], f"0x{'00' * 32}", f"0x{'ff' * 32}"])},
    "waku_deleteKeyPair": {"id": ID},
    "waku_hasKeyPair": {"id": ID},
    "waku_getPublicKey": {"id": ID},
    "waku_getPrivateKey": {"id": ID},
    "waku_newSymKey": {},
    "waku_addSymKey": {"key": KEY},
    "waku_generateSymKeyFromPassword": {"password": ("secret", [*TEXT, "x" * (MAX_PASSWORD_CHARS + 1)])},
    "waku_hasSymKey": {"id": ID},
    "waku_getSymKey": {"id": ID},
    "waku_deleteSymKey": {"id": ID},
    "waku_subscribe": {"name": ("messages", [*TEXT, "", "message", "messages "]), "filter": FILTER},
    "waku_unsubscribe": {"id": ID},
    "waku_newMessageFilter": {"filter": FILTER},
    "waku_deleteMessageFilter": {"id": ID},
    "waku_getFilterMessages": {"id": ID},
    "waku_post": {"message": POST},
    "wakuext_requestMessages": {"request": REQUEST},
    "wakuext_subscribe": {"name": ("completions", [*TEXT, "", "completion", "completions "])},
    "wakuext_unsubscribe": {"id": ID},
    "waku_messageIds": {"filter": ID_LIST},
    "waku_messagesByIds": {"query": {"networkTopic?": NETWORK, "ids": MUIDS}},
    "waku_reconcile": {"query": {**ID_SCOPE, "message": ("0x61", [*ANY_HEX, "0x", f"0x{'61' * 1_000_001}", "0x61ff"])}},
    "waku_checkMessageId": {"message": CHECKED},
    "admin_nodeInfo": {},
    "admin_peers": {},
    "admin_addPeer": {"enode": PEER},
    "admin_removePeer": {"enode": PEER},
    "admin_removeTrustedPeer": {"enode": PEER},
}


def right(method: str) -> dict[str, Any]:
    """Parameters of which each is right by itself; of an object, only what must be there."""
    return {
        name: {member: of[0] for member, of in kind.items() if not member.endswith(OPTIONAL)}
        if isinstance(kind, dict)
        else kind[0]
        for name, kind in METHODS[method].items()
    }


def wrong_calls(method: str) -> list[tuple[dict[str, Any], str]]:
    """Parameters by name, of which one is wrong, and how the error's message begins that says so."""
    calls: list[tuple[dict[str, Any], str]] = []

    def with_value(value: Json, *path: str) -> dict[str, Any]:
        params = copy.deepcopy(right(method))
        holder = params
        for name in path[:-1]:
            holder = holder[name]
        holder[path[-1]] = value
        return params

    for name, kind in METHODS[method].items():
        calls.append((with_value(None, name), f"{name}: missing"))
        if not isinstance(kind, dict):
            calls.extend((with_value(value, name), name) for value in kind[1])
            continue
        calls.extend((with_value(value, name), f"{name}: not an object") for value in NO_OBJECTS)
        calls.append((with_value(0, name, "other"), f"{name}.'other': unknown"))
        for member, of in kind.items():
            bare = member.removesuffix(OPTIONAL)
            calls.extend((with_value(value, name, bare), f"{name}.{bare}") for value in of[1])
            if bare == member:
                calls.append((with_value(None, name, bare), f"{name}.{bare}: missing"))
    calls.append(({**right(method), "other": 1}, "'other': unknown"))
    return calls


async def refusal(running: RunningNode, method: str, params: Json) -> tuple[int, str]:
    async def send(text: str) -> None:
        raise AssertionError(text)

    caller = Caller(send)
    with pytest.raises(CallFailed) as failed:
        await running.call_with(method, params, caller=caller)
    return failed.value.code, failed.value.message


def test_there_is_no_other_method(running_methods: dict[str, tuple[str, ...]]) -> None:
    assert running_methods == {method: tuple(params) for method, params in METHODS.items()}


@pytest.fixture
def running_methods(running: RunningNode) -> dict[str, tuple[str, ...]]:
    lists = IdLists(running.store, running.store.message_ids)
    table = all_methods(
        running.node, running.keys, running.filters, lists, dialect=Dialect.SPECIFICATION, clock=running.clock
    )
    return {name: method.params for name, method in table.items()}


@pytest.mark.parametrize("method", METHODS)
async def test_wrong_parameters_are_named(running: RunningNode, method: str) -> None:
    for params, beginning in wrong_calls(method):
        by_name = await refusal(running, method, params)
        by_position = None if "other" in params else await refusal(running, method, list(params.values()))

        assert by_name[0] == ErrorCode.INVALID_PARAMS, (str(params)[:200], by_name)
        assert by_name[1].startswith(beginning), (str(params)[:200], by_name)
        assert by_position in (None, by_name)


@pytest.mark.parametrize("method", METHODS)
async def test_one_parameter_too_many(running: RunningNode, method: str) -> None:
    params = [*right(method).values(), None]

    assert await refusal(running, method, params) == (
        ErrorCode.INVALID_PARAMS,
        f"{len(params)} parameters, but the method takes at most {len(params) - 1}",
    )
