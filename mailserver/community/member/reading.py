"""What people read of a message: its payload opened, with the keys of the channels that the member has named.

Messages are kept sealed, as a mailserver has them, unless the control node has opened them. So opening them into
ApplicationMetadataMessages, which the specification wants before they are stored, is done here, when they are read.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from mailserver.codec.keys import NodeId
from mailserver.communities.application import open_application_message
from mailserver.community.member.records import HistoryMessage
from mailserver.errors import DecodeError
from mailserver.waku.payload import open_symmetric


@dataclass(frozen=True, slots=True)
class OpenedMessage:
    """What is known of a message's content.

    `payload`: None if no key opens it. `signer`: whose signature is on it, the innermost one. `type`: of its
    ApplicationMetadataMessage (6/PAYLOADS); None if it is none: then `payload` is all that was sealed.
    """

    payload: bytes | None
    signer: NodeId | None = None
    type: int | None = None


def open_message(message: HistoryMessage, keys: Mapping[str, bytes]) -> OpenedMessage:
    """Open a message.

    Args:
        keys: the symmetric key of each content topic.
    """
    payload, signer = message.payload, None if message.signer is None else NodeId(message.signer)
    if message.version is not None:  # sealed (26/WAKU2-PAYLOAD)
        try:
            opened = open_symmetric(payload, keys[message.content_topic])
        except (KeyError, DecodeError):
            return OpenedMessage(None)
        payload, signer = opened.payload, opened.signer
    try:
        application = open_application_message(payload)
    except DecodeError:
        return OpenedMessage(payload, signer)
    if application.signer is None:  # what others send may look like one by chance
        return OpenedMessage(payload, signer)
    return OpenedMessage(application.payload, application.signer, application.type)
