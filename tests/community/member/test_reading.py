from mailserver.codec.keys import PrivateKey
from mailserver.communities.application import sign_application_message
from mailserver.communities.channels import chat_channel
from mailserver.community.member.reading import OpenedMessage, open_message
from mailserver.community.member.records import HistoryMessage
from mailserver.waku.payload import MAX_PADDING_BYTES, seal_symmetric
from tests.community.member.publishing import FOREIGNER, OWNER

NEWS = chat_channel("news")
assert NEWS.key is not None
KEYS = {NEWS.content_topic: NEWS.key}


def sealed(payload: bytes, signing_key: PrivateKey | None = None) -> HistoryMessage:
    assert NEWS.key is not None
    data = seal_symmetric(payload, NEWS.key, nonce=bytes(12), padding=bytes(MAX_PADDING_BYTES), signing_key=signing_key)
    return HistoryMessage(1, bytes(32), NEWS.content_topic, data, version=1)


def test_sealed_message_is_opened_by_the_key_of_its_channel() -> None:
    assert open_message(sealed(b"hello", FOREIGNER), KEYS) == OpenedMessage(b"hello", FOREIGNER.public_key)


def test_application_message_is_unwrapped() -> None:
    wrapped = sign_application_message(b"chat", 3, OWNER)

    assert open_message(sealed(wrapped, FOREIGNER), KEYS) == OpenedMessage(b"chat", OWNER.public_key, 3)


def test_message_of_a_channel_without_key_stays_sealed() -> None:
    assert open_message(sealed(b"hello"), {}) == OpenedMessage(None)
    assert open_message(sealed(b"hello"), {NEWS.content_topic: bytes(32)}) == OpenedMessage(None)


def test_message_that_the_control_node_has_opened_needs_no_key() -> None:
    wrapped = sign_application_message(b"chat", 3, OWNER)
    signer = bytes(FOREIGNER.public_key)

    assert open_message(HistoryMessage(1, bytes(32), NEWS.content_topic, wrapped, signer), {}) == OpenedMessage(
        b"chat", OWNER.public_key, 3
    )
    assert open_message(HistoryMessage(1, bytes(32), NEWS.content_topic, b"plain", signer), {}) == OpenedMessage(
        b"plain", FOREIGNER.public_key
    )
