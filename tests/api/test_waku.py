"""mailserver.api.waku: the node's settings and the keys that it holds."""

import pytest

from mailserver.api.errors import ErrorCode
from mailserver.api.keys import MAX_KEYS
from mailserver.api.params import Json
from mailserver.codec.keys import Enode
from mailserver.waku.acceptance import MAX_ENVELOPE_BYTES
from mailserver.waku.packets import PacketCode, StatusOptions
from tests.api.nodes import CallFailed, RunningNode
from tests.mailservers import PASSWORD, PASSWORD_KEY, make_envelope
from tests.pairs import private_key

pytestmark = pytest.mark.integration

ALICE = private_key("alice")
PUBLIC_KEY = f"0x04{ALICE.public_key.hex()}"
ENODE = Enode(ALICE.public_key, "127.0.0.1", 30303)
NO_ID = "00" * 32
LONGEST = "1048572 bytes are what fits into a packet of 1 MiB"


async def failure(running: RunningNode, method: str, *params: Json) -> tuple[int, str]:
    with pytest.raises(CallFailed) as failed:
        await running.call(method, *params)
    return failed.value.code, failed.value.message


# The node


async def test_version(running: RunningNode) -> None:
    assert await running.call("waku_version") == "1.0"


async def test_info_has_the_names_of_the_specification_and_of_deployed_nodes(running: RunningNode) -> None:
    await running.node.post(make_envelope(1))

    info = await running.call("waku_info")

    envelopes, size = running.node.live_usage()
    assert info == {
        "minPow": 0.0,
        "maxEnvelopeSize": MAX_ENVELOPE_BYTES,
        "maxMessageSize": MAX_ENVELOPE_BYTES,
        "memory": size,
        "envelopes": envelopes,
        "messages": envelopes,
    }


async def test_min_pow_is_changed_and_announced(running: RunningNode) -> None:
    peer = await running.dial("peer")

    assert await running.call("waku_setMinPoW", 0.01) is True

    assert (await running.call("waku_info"))["minPow"] == 0.01
    packet = await peer.hear_packet()
    assert packet.code == PacketCode.STATUS_UPDATE
    assert StatusOptions.decode(packet.payload).pow_requirement == 0.01


@pytest.mark.parametrize("method", ["waku_setMaxEnvelopeSize", "waku_setMaxMessageSize"])
async def test_max_envelope_size_is_changed(running: RunningNode, method: str) -> None:
    assert await running.call(method, 1000) is True

    assert (await running.call("waku_info"))["maxEnvelopeSize"] == 1000


async def test_peer_is_marked_trusted(running: RunningNode) -> None:
    assert await running.call("waku_markTrustedPeer", str(ENODE)) is True

    assert ENODE.node_id in running.peers.trusted


@pytest.mark.parametrize(
    ("method", "params", "message"),
    [
        ("waku_version", [1], "1 parameters, but the method takes at most 0"),
        ("waku_info", [{}], "1 parameters, but the method takes at most 0"),
        ("waku_setMinPoW", [], "minPow: missing"),
        ("waku_setMinPoW", [-0.1], "minPow: not between 0 and 1.79769e+308"),
        ("waku_setMinPoW", ["1"], "minPow: not a number"),
        ("waku_setMaxEnvelopeSize", [0], f"size: not between 1 and 1048572; {LONGEST}"),
        ("waku_setMaxEnvelopeSize", [1024 * 1024], f"size: not between 1 and 1048572; {LONGEST}"),
        ("waku_setMaxEnvelopeSize", [1.5], f"size: not a whole number; {LONGEST}"),
        ("waku_markTrustedPeer", ["enode://00"], "enode: not an enode URL (enode://<128 hex digits>@host:port)"),
        ("waku_addPrivateKey", ["0x00"], "privateKey: 1 bytes, not 32"),
        ("waku_addPrivateKey", [f"0x{'00' * 32}"], "privateKey: private key is not on the curve"),
        ("waku_addSymKey", ["0x00"], "key: 1 bytes, not 32"),
        ("waku_addSymKey", ["00" * 32], "key: not bytes in hex digits after 0x"),
        ("waku_generateSymKeyFromPassword", [1], "password: not a string"),
        ("waku_generateSymKeyFromPassword", ["\ud800"], "password: contains half of a surrogate pair"),
        ("waku_generateSymKeyFromPassword", ["x" * 4097], "password: longer than 4096 characters"),
        ("waku_hasSymKey", [1], "id: not a string"),
        ("waku_getSymKey", ["x" * 129], "id: longer than 128 characters"),
        ("waku_deleteSymKey", [], "id: missing"),
        ("waku_hasKeyPair", [[]], "id: not a string"),
        ("waku_getPublicKey", [{}], "id: not a string"),
        ("waku_getPrivateKey", [], "id: missing"),
        ("waku_deleteKeyPair", [None], "id: missing"),
    ],
)
async def test_wrong_parameters(running: RunningNode, method: str, params: list[Json], message: str) -> None:
    assert await failure(running, method, *params) == (ErrorCode.INVALID_PARAMS, message)


# Symmetric keys


async def test_symmetric_key_is_added_got_and_deleted(running: RunningNode) -> None:
    key = f"0x{'ab' * 32}"

    key_id = await running.call("waku_addSymKey", key)

    assert await running.call("waku_getSymKey", key_id) == key
    assert await running.call("waku_hasSymKey", key_id) is True
    assert await running.call("waku_deleteSymKey", key_id) is True
    assert await running.call("waku_hasSymKey", key_id) is False
    assert await running.call("waku_deleteSymKey", key_id) is False


async def test_new_symmetric_keys_differ(running: RunningNode) -> None:
    ids = [await running.call("waku_newSymKey") for _ in range(3)]

    assert len({await running.call("waku_getSymKey", key_id) for key_id in ids}) == 3


async def test_key_of_a_password_is_that_of_deployed_clients(running: RunningNode) -> None:
    key_id = await running.call("waku_generateSymKeyFromPassword", PASSWORD)

    assert await running.call("waku_getSymKey", key_id) == f"0x{PASSWORD_KEY.hex()}"


async def test_unknown_symmetric_key(running: RunningNode) -> None:
    assert await failure(running, "waku_getSymKey", NO_ID) == (ErrorCode.NOT_FOUND, "no symmetric key has this id")


# Key pairs


async def test_key_pair_is_added_got_and_deleted(running: RunningNode) -> None:
    secret = f"0x{ALICE.secret.hex()}"

    key_id = await running.call("waku_addPrivateKey", secret)

    assert await running.call("waku_getPrivateKey", key_id) == secret
    assert await running.call("waku_getPublicKey", key_id) == PUBLIC_KEY
    assert await running.call("waku_hasKeyPair", key_id) is True
    assert await running.call("waku_deleteKeyPair", key_id) is True
    assert await running.call("waku_hasKeyPair", key_id) is False


async def test_new_key_pairs_differ(running: RunningNode) -> None:
    ids = [await running.call("waku_newKeyPair") for _ in range(3)]

    assert len({await running.call("waku_getPrivateKey", key_id) for key_id in ids}) == 3


@pytest.mark.parametrize("method", ["waku_getPublicKey", "waku_getPrivateKey", "waku_deleteKeyPair"])
async def test_unknown_key_pair(running: RunningNode, method: str) -> None:
    assert await failure(running, method, NO_ID) == (ErrorCode.NOT_FOUND, "no key pair has this id")


async def test_as_many_keys_as_there_may_be(running: RunningNode) -> None:
    for _ in range(MAX_KEYS):
        running.keys.new_symmetric()

    code, _ = await failure(running, "waku_newSymKey")

    assert code == ErrorCode.TOO_MANY
