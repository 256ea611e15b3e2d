from hypothesis import given
from hypothesis import strategies as st

from mailserver.libp2p.ping import PING_BYTES, Echo
from tests.properties import settings


def test_payload_is_sent_back() -> None:
    assert Echo().receive_data(bytes(range(PING_BYTES))) == bytes(range(PING_BYTES))


def test_payload_is_waited_for() -> None:
    echo = Echo()

    assert echo.receive_data(bytes(PING_BYTES - 1)) == b""
    assert echo.receive_data(b"x") == bytes(PING_BYTES - 1) + b"x"


@given(st.lists(st.binary(max_size=3 * PING_BYTES)))
@settings()
def test_whole_payloads_are_sent_back_however_they_are_cut(pieces: list[bytes]) -> None:
    echo = Echo()
    whole = b"".join(pieces)

    sent = b"".join(echo.receive_data(piece) for piece in pieces)

    assert sent == whole[: len(whole) - len(whole) % PING_BYTES]
