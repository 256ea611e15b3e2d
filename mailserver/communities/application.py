"""What Status puts into the payload of an envelope: ApplicationMetadataMessage (6/PAYLOADS).

    1  signature   65 bytes, of the sender over Keccak-256 of the payload, V being 0 or 1; 27 and 28 are read
    2  payload     what depends on the type
    3  type

status-go puts public messages into field 102, `public_message`, of a ProtocolMessage (5/SECURE-TRANSPORT), and reads
them with and without this. Here both are read, and what is made has none, as 61/STATUS wants it.
"""

from dataclasses import dataclass

from mailserver.codec.keccak import keccak256
from mailserver.codec.keys import SIGNATURE_BYTES, NodeId, PrivateKey, recover
from mailserver.codec.protobuf import write_bytes
from mailserver.communities.metadata import number
from mailserver.ids.waku_message import MAX_MESSAGE_BYTES
from mailserver.waku2 import fields
from mailserver.waku2.fields import MAX_U32


@dataclass(frozen=True, slots=True)
class ApplicationMessage:
    """An opened ApplicationMetadataMessage. `signer`: its sender's public key, None if it is not signed."""

    signer: NodeId | None
    payload: bytes
    type: int


def sign_application_message(payload: bytes, kind: int, key: PrivateKey) -> bytes:
    """Encode a payload of this type, signed."""
    return write_bytes(1, key.sign(keccak256(payload))) + write_bytes(2, payload) + number(3, kind)


def open_application_message(data: bytes) -> ApplicationMessage:
    """Read one, and find out who has signed it.

    Args:
        data: the opened payload of an envelope.
    Raises:
        DecodeError: it does not parse, a bound is passed, or the signature fits no key.
    """
    wrapped = fields.read(data, _PROTOCOL_MESSAGE).data("public_message")
    message = fields.read(data if wrapped is None else wrapped, _APPLICATION_METADATA_MESSAGE)
    payload, signature = message.data("payload") or b"", message.data("signature") or b""
    signer = recover(signature, keccak256(payload)) if signature else None
    return ApplicationMessage(signer, payload, message.number("type") or 0)


_PROTOCOL_MESSAGE = {102: fields.data("public_message", MAX_MESSAGE_BYTES)}
_APPLICATION_METADATA_MESSAGE = {
    1: fields.data("signature", SIGNATURE_BYTES),
    2: fields.data("payload", MAX_MESSAGE_BYTES),
    3: fields.number("type", MAX_U32),
}
