import base64

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mailserver.errors import DecodeError
from mailserver.libp2p import base58
from mailserver.libp2p.peer_id import MAX_IDENTITY_BYTES, PeerId
from tests.data import load
from tests.libp2p.names import identity
from tests.properties import settings

EXAMPLES = load("peer_ids.json")["peer_ids"]
LONG = "b" + "a" * 200


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"", ""),
        (b"\0\0\x28\x7f\xb4\xcd", "11233QC4"),
        (b"Hello World!", "2NEpo7TZRRrLZSi2U"),
        (
            b"The quick brown fox jumps over the lazy dog.",
            "USm3fpXnKG5EUBx2ndxBDMPVciP5hGey2Jh4NDv6gmeo1LkMeiKrLJUUBk6Z",
        ),
    ],
)
def test_base58_is_as_in_the_vectors_of_its_draft(data: bytes, text: str) -> None:
    assert base58.encode(data) == text
    assert base58.decode(text) == data


@given(st.binary(max_size=60))
@settings()
def test_base58_gives_back_all_bytes(data: bytes) -> None:
    assert base58.decode(base58.encode(data)) == data


@pytest.mark.parametrize("letter", "0OIl+/ \nä")
def test_base58_has_no_other_letters(letter: str) -> None:
    with pytest.raises(DecodeError, match="none of base58"):
        base58.decode(f"1{letter}")


def test_base58_text_is_bounded() -> None:
    assert base58.decode("z" * base58.MAX_TEXT_CHARACTERS)
    with pytest.raises(DecodeError, match="too long"):
        base58.decode("z" * (base58.MAX_TEXT_CHARACTERS + 1))


@pytest.mark.parametrize("name", ["sha2_256", "identity"])
def test_peer_id_is_read_and_written_as_base58(name: str) -> None:
    assert str(PeerId.parse(EXAMPLES[name])) == EXAMPLES[name]


def test_both_forms_of_text_are_one_peer_id() -> None:
    assert PeerId.parse(EXAMPLES["cid"]) == PeerId.parse(EXAMPLES["sha2_256"])


def test_key_of_42_bytes_is_its_own_multihash() -> None:
    key = bytes(range(MAX_IDENTITY_BYTES))

    peer_id = PeerId.of_key(key)

    assert peer_id.multihash == bytes([0, MAX_IDENTITY_BYTES]) + key
    assert PeerId.decode(peer_id.multihash) == peer_id
    assert PeerId.decode(b"\0\1k") == PeerId.of_key(b"k")


def test_longer_key_is_hashed() -> None:
    multihash = PeerId.of_key(bytes(MAX_IDENTITY_BYTES + 1)).multihash

    assert multihash[:2] == bytes([0x12, 32])
    assert len(multihash) == 34


@pytest.mark.parametrize(
    "multihash",
    [
        b"",
        b"\x00",
        b"\x00\x00",
        b"\x00\x01",
        b"\x00\x01ab",
        bytes([0, MAX_IDENTITY_BYTES + 1]) + bytes(MAX_IDENTITY_BYTES + 1),
        bytes([0x12, 31]) + bytes(31),
        bytes([0x12, 33]) + bytes(33),
        bytes([0x13, 32]) + bytes(32),
    ],
)
def test_multihash_that_is_no_peer_id_is_refused(multihash: bytes) -> None:
    with pytest.raises(DecodeError):
        PeerId.decode(multihash)


def test_truncated_multihash_is_refused() -> None:
    whole = identity("somebody").peer_id.multihash

    assert PeerId.decode(whole).multihash == whole
    for length in range(len(whole)):
        with pytest.raises(DecodeError):
            PeerId.decode(whole[:length])


@pytest.mark.parametrize(
    "text",
    ["", "Qm", "1", "x", "b", "b1", "bäääää", EXAMPLES["cid"].replace("bafz", "bafk"), EXAMPLES["cid"][:-8], LONG],
)
def test_text_that_is_no_peer_id_is_refused(text: str) -> None:
    with pytest.raises(DecodeError):
        PeerId.parse(text)


def test_base32_of_something_else_than_a_cid_of_a_key_is_refused() -> None:
    multihash = PeerId.parse(EXAMPLES["cid"]).multihash
    texts = {
        prefix + base64.b32encode(start + multihash).decode().rstrip("=").lower()
        for prefix, start in [("b", b"\x01\x72"), ("b", b""), ("b", b"\x01\x55"), ("c", b"\x01\x72")]
    }

    texts.remove(EXAMPLES["cid"])
    for text in texts:
        with pytest.raises(DecodeError):
            PeerId.parse(text)


@given(st.text(max_size=80) | st.from_regex(r"(1|Qm|b)[1-9a-zA-Z]{0,60}", fullmatch=True))
@settings()
def test_any_text_is_a_peer_id_or_refused(text: str) -> None:
    try:
        peer_id = PeerId.parse(text)
    except DecodeError:
        return
    assert PeerId.parse(str(peer_id)) == peer_id
