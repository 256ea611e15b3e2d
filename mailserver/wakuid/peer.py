"""What a peer's packets of `wakuid/1` are, before they are decoded."""

from typing import NamedTuple

from mailserver.errors import DisconnectReason, RemoteProtocolError
from mailserver.waku.peer import PacketIgnored
from mailserver.wakuid.packets import IdPacketCode

_KNOWN_CODES = {int(code): code for code in IdPacketCode}


class IdPacketReceived(NamedTuple):
    """A packet of `wakuid`. It is decoded when its turn has come, by those who know what that costs."""

    code: IdPacketCode
    payload: bytes


def receive_id_packet(code: int, payload: bytes, *, is_ready: bool) -> IdPacketReceived | PacketIgnored:
    """Say which packet this is. One with a code that we do not know is ignored.

    Args:
        is_ready: whether the peer's Status has come.
    Raises:
        RemoteProtocolError: it has not.
    """
    if not is_ready:
        raise RemoteProtocolError(DisconnectReason.SUBPROTOCOL_ERROR, f"packet {code} of wakuid before Status")
    known = _KNOWN_CODES.get(code)
    return PacketIgnored(code) if known is None else IdPacketReceived(known, payload)
