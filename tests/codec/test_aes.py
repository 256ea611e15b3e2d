import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from mailserver.codec import aes
from mailserver.errors import DecodeError
from tests.properties import settings

KEY = bytes(range(32))
NONCE = bytes(range(12))
SEALED = aes.gcm_seal(KEY, NONCE, b"a text that is longer than one block")


def test_ctr_gives_the_ciphertext_of_nist_sp_800_38a() -> None:
    # SP 800-38A, F.5.1 "CTR-AES128.Encrypt", the first two blocks.
    key = bytes.fromhex("2b7e151628aed2a6abf7158809cf4f3c")
    counter = bytes.fromhex("f0f1f2f3f4f5f6f7f8f9fafbfcfdfeff")
    plaintext = bytes.fromhex("6bc1bee22e409f96e93d7e117393172aae2d8a571e03ac9c9eb76fac45af8e51")

    ciphertext = aes.ctr(key, counter, plaintext)

    assert ciphertext.hex() == "874d6191b620e3261bef6864990db6ce9806f66b7970fdff8617187bb9fffdff"


def test_ctr_counter_wraps_over_all_sixteen_bytes() -> None:
    first = aes.ctr(KEY, b"\xff" * 16, bytes(32))

    assert first[16:] == aes.ctr(KEY, bytes(16), bytes(16))


@settings(max_examples=30)
@given(st.sampled_from([16, 32]), st.binary(min_size=16, max_size=16), st.binary(max_size=100))
def test_ctr_twice_gives_the_plaintext_back(key_bytes: int, counter: bytes, plaintext: bytes) -> None:
    ciphertext = aes.ctr(KEY[:key_bytes], counter, plaintext)

    assert aes.ctr(KEY[:key_bytes], counter, ciphertext) == plaintext


def test_ctr_stream_starts_at_counter_zero() -> None:
    # AES-256 of a zero block under a zero key, as FIPS 197 implementations publish it.
    stream = aes.ctr_stream(bytes(32))

    assert stream(bytes(16)).hex() == "dc95c078a2408989ad48a21492842087"


@settings(max_examples=30)
@given(st.lists(st.binary(max_size=50), max_size=6))
def test_ctr_stream_goes_on_from_chunk_to_chunk(chunks: list[bytes]) -> None:
    stream = aes.ctr_stream(KEY)

    ciphertext = b"".join(stream(chunk) for chunk in chunks)

    assert ciphertext == aes.ctr(KEY, bytes(16), b"".join(chunks))


def test_block_cipher_gives_the_ciphertext_of_nist_sp_800_38a() -> None:
    # SP 800-38A, F.1.5 "ECB-AES256.Encrypt", the first two blocks.
    encrypt = aes.block_cipher(bytes.fromhex("603deb1015ca71be2b73aef0857d77811f352c073b6108d72d9810a30914dff4"))

    first = encrypt(bytes.fromhex("6bc1bee22e409f96e93d7e117393172a"))
    second = encrypt(bytes.fromhex("ae2d8a571e03ac9c9eb76fac45af8e51"))

    assert first.hex() == "f3eed1bdb5d2a03c064b5a7e3db181f8"
    assert second.hex() == "591ccb10d410ed26dc5ba74a31362870"


def test_block_cipher_keeps_no_state_between_blocks() -> None:
    encrypt = aes.block_cipher(KEY)

    assert encrypt(NONCE + bytes(4)) == encrypt(NONCE + bytes(4))


def test_gcm_seal_gives_ciphertext_and_tag_of_the_gcm_specification() -> None:
    # McGrew and Viega, "The Galois/Counter Mode of Operation", appendix B, test case 2.
    sealed = aes.gcm_seal(bytes(16), bytes(12), bytes(16))

    assert sealed.hex() == "0388dace60b6a392f328c2b971b2fe78ab6e47d42cec13bdf53a67b21257bddf"


@settings(max_examples=30)
@given(st.binary(max_size=100))
def test_gcm_open_gives_back_what_was_sealed(plaintext: bytes) -> None:
    sealed = aes.gcm_seal(KEY, NONCE, plaintext)

    assert len(sealed) == len(plaintext) + aes.GCM_TAG_BYTES
    assert aes.gcm_open(KEY, NONCE, sealed) == plaintext


@pytest.mark.parametrize("at", range(len(SEALED)))
def test_gcm_open_refuses_a_flipped_bit_anywhere(at: int) -> None:
    flipped = SEALED[:at] + bytes([SEALED[at] ^ 1]) + SEALED[at + 1 :]

    with pytest.raises(DecodeError, match="tag differs"):
        aes.gcm_open(KEY, NONCE, flipped)


def test_gcm_open_refuses_another_key_and_another_nonce() -> None:
    with pytest.raises(DecodeError, match="tag differs"):
        aes.gcm_open(bytes(32), NONCE, SEALED)
    with pytest.raises(DecodeError, match="tag differs"):
        aes.gcm_open(KEY, bytes(12), SEALED)


@pytest.mark.parametrize("length", range(len(SEALED)))
def test_gcm_open_refuses_every_truncation(length: int) -> None:
    with pytest.raises(DecodeError) as caught:
        aes.gcm_open(KEY, NONCE, SEALED[:length])

    shorter_than_tag = "AES-GCM ciphertext is shorter than its tag"
    assert (caught.value.what == shorter_than_tag) is (length < aes.GCM_TAG_BYTES)


@settings(max_examples=50)
@given(st.binary(max_size=100))
@example(b"")
def test_gcm_open_refuses_random_bytes(data: bytes) -> None:
    with pytest.raises(DecodeError):
        aes.gcm_open(KEY, NONCE, data)


def test_siv_is_that_of_rfc_5297() -> None:
    """Appendix A.1 "Deterministic Authenticated Encryption Example"."""
    key = bytes.fromhex("fffefdfcfbfaf9f8f7f6f5f4f3f2f1f0f0f1f2f3f4f5f6f7f8f9fafbfcfdfeff")
    associated = bytes.fromhex("101112131415161718191a1b1c1d1e1f2021222324252627")
    plaintext = bytes.fromhex("112233445566778899aabbccddee")

    sealed = aes.siv_seal(key, plaintext, associated)

    assert sealed.hex() == "85632d07c6e8f37f950acd320a2ecc9340c02b9690c4dc04daef7f6afe5c"
    assert aes.siv_open(key, sealed, associated) == plaintext


@pytest.mark.parametrize("length", range(17))
def test_siv_without_a_ciphertext_is_refused(length: int) -> None:
    with pytest.raises(DecodeError, match=f"too short, got {length}, limit 17"):
        aes.siv_open(KEY, bytes(length), b"")
