from hypothesis import given
from hypothesis import strategies as st

from mailserver.codec.keccak import keccak256, running_keccak
from tests.data import load
from tests.properties import settings

VECTORS = load("keccak256.json")


def test_digests_of_texts_are_those_that_are_published() -> None:
    digests = {vector["text"]: keccak256(vector["text"].encode()).hex() for vector in VECTORS["published"]}

    assert digests == {vector["text"]: vector["digest"] for vector in VECTORS["published"]}


def test_digests_around_the_block_size_are_those_of_two_other_implementations() -> None:
    data = bytes(i % 251 for i in range(2000))

    digests = {vector["length"]: keccak256(data[: vector["length"]]).hex() for vector in VECTORS["computed"]}

    assert digests == {vector["length"]: vector["digest"] for vector in VECTORS["computed"]}


@settings(max_examples=50)
@given(st.lists(st.binary(max_size=300), min_size=1, max_size=6))
def test_running_hash_has_the_digest_of_all_bytes_absorbed_so_far(chunks: list[bytes]) -> None:
    running = running_keccak(chunks[0])

    digests = [running.digest()]
    for chunk in chunks[1:]:
        running.update(chunk)
        digests.append(running.digest())

    assert digests == [keccak256(b"".join(chunks[: count + 1])) for count in range(len(chunks))]


def test_taking_the_digest_of_a_running_hash_does_not_change_it() -> None:
    running = running_keccak(b"seed")

    first, second = running.digest(), running.digest()

    assert first == second == keccak256(b"seed")


def test_copy_of_a_running_hash_goes_its_own_way() -> None:
    running = running_keccak(b"common")
    copy = running.copy()

    running.update(b" left")
    copy.update(b" right")

    assert running.digest() == keccak256(b"common left")
    assert copy.digest() == keccak256(b"common right")
