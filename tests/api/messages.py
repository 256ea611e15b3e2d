"""What the tests of messages share: a key, a topic, and how to post and to hear."""

from typing import Any

from mailserver.api.params import Json
from mailserver.waku.envelope import Envelope, decode_envelopes
from mailserver.waku.packets import PacketCode
from tests.api.nodes import RunningNode
from tests.mailservers import NEWS
from tests.pairs import private_key
from tests.raw_peer import RawPeer

ALICE = private_key("alice")
PUBLIC_KEY = f"0x04{ALICE.public_key.hex()}"
TOPIC = f"0x{NEWS.hex()}"
PAYLOAD = f"0x{b'hello'.hex()}"
NO_ID = "00" * 32
KEY = bytes(range(32))


async def sym_key(running: RunningNode) -> str:
    key_id = await running.call("waku_addSymKey", f"0x{KEY.hex()}")
    assert isinstance(key_id, str)
    return key_id


async def post(running: RunningNode, **members: Json) -> Any:
    """Post a message that is right but for what is given."""
    message: dict[str, Json] = {"ttl": 50, "topic": TOPIC, "payload": PAYLOAD, "powTime": 5, "powTarget": 0.0}
    return await running.call("waku_post", {**message, **members})


async def heard(peer: RawPeer, code: PacketCode = PacketCode.MESSAGES) -> Envelope:
    """The envelope that comes next."""
    while True:
        packet = await peer.hear_packet()
        if packet.code == code:
            (envelope,) = decode_envelopes(packet.payload)
            return envelope
