"""What the tests of a session share: both roles, and who is who."""

from collections.abc import Callable

import pytest

from mailserver.errors import DisconnectReason
from mailserver.rlpx import p2p
from mailserver.rlpx.capabilities import Capability
from mailserver.rlpx.p2p import MessageId
from mailserver.rlpx.session import Session
from tests.pairs import (
    INITIATOR_KEY_NAME,
    RECIPIENT_KEY_NAME,
    ScriptedPeer,
    initiator_and_peer,
    private_key,
    recipient_and_peer,
)

OTHER = Capability("other", 1)
INITIATOR_ID = private_key(INITIATOR_KEY_NAME).public_key
RECIPIENT_ID = private_key(RECIPIENT_KEY_NAME).public_key


ROLES: dict[str, Callable[[], tuple[Session, ScriptedPeer]]] = {
    "initiator": initiator_and_peer,
    "recipient": recipient_and_peer,
}
both_roles = pytest.mark.parametrize("role", ROLES)


def disconnect_of(reason: DisconnectReason) -> tuple[int, bytes]:
    return MessageId.DISCONNECT, p2p.encode_disconnect(reason)
