"""What is sealed in the envelope of Open: it shows that whoever sends it may ask, and who that is.

    [name, node-id]      name: "wakuid/1"; node-id: of the asker, 64 bytes

A node that captures the envelope can do nothing with it: it names another asker.
"""

from mailserver.codec import rlp
from mailserver.codec.keys import NodeId
from mailserver.errors import DecodeError
from mailserver.wakuid.fields import FEW_ITEMS
from mailserver.wakuid.packets import WAKUID

_NAME = f"{WAKUID.name}/{WAKUID.version}".encode()


def encode_access(asker: NodeId) -> bytes:
    """Encode what is to be sealed for this asker."""
    return rlp.encode([_NAME, asker])


def check_access(plaintext: bytes, asker: NodeId) -> None:
    """Check what was sealed.

    Raises:
        DecodeError: it is something else, or of another asker.
    """
    fields = rlp.decode_list(plaintext, max_items=FEW_ITEMS)
    if len(fields) < 2 or fields[0] != _NAME:
        raise DecodeError("envelope of OPEN holds something else")
    if fields[1] != asker:
        raise DecodeError("envelope of OPEN was made for another node")
