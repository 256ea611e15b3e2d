"""mailserver.api.keys: keys of both kinds by id, their bounds, and that they show nowhere."""

import asyncio
import logging

import pytest

from mailserver.api.keys import MAX_KEYS, KeyNotFound, KeyStore, TooManyKeys
from mailserver.codec.keys import PrivateKey
from mailserver.errors import DecodeError
from mailserver.waku.payload import key_from_password
from tests.data import load
from tests.pairs import private_key

PACKETS = load("packets.json")
SYMMETRIC = bytes(range(32))
ALICE = private_key("alice")
NO_ID = 64 * "0"


def is_id(text: str) -> bool:
    return len(text) == 64 and set(text) <= set("0123456789abcdef")


# Symmetric keys


def test_symmetric_key_is_returned_by_its_id() -> None:
    store = KeyStore()

    key_id = store.add_symmetric(SYMMETRIC)

    assert is_id(key_id)
    assert store.has_symmetric(key_id)
    assert store.symmetric(key_id) == SYMMETRIC


def test_new_symmetric_keys_differ() -> None:
    store = KeyStore()

    drawn = [store.symmetric(store.new_symmetric()) for _ in range(100)]

    assert len(set(drawn)) == 100
    assert {len(key) for key in drawn} == {32}


@pytest.mark.parametrize("length", [0, 16, 31, 33, 64])
def test_symmetric_key_of_another_length_is_refused(length: int) -> None:
    with pytest.raises(DecodeError, match=f"symmetric key has the wrong length, got {length}, limit 32"):
        KeyStore().add_symmetric(bytes(length))


async def test_key_from_a_password_is_that_of_deployed_clients() -> None:
    store = KeyStore()

    key_id = await store.from_password(PACKETS["mailserver_password"])

    assert is_id(key_id)
    assert store.symmetric(key_id).hex() == PACKETS["mailserver_symmetric_key"]


async def test_loop_goes_on_while_a_key_is_derived() -> None:
    deriving = asyncio.create_task(KeyStore().from_password("password"))
    turns = 0

    while not deriving.done():
        await asyncio.sleep(0)
        turns += 1

    # Derived on the loop, it would be done in the first turn.
    assert turns > 2
    await deriving


async def test_one_key_is_derived_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    at_work = 0
    most_at_work = 0

    def watched(password: str) -> bytes:
        nonlocal at_work, most_at_work
        at_work += 1
        most_at_work = max(most_at_work, at_work)
        try:
            return key_from_password(password)
        finally:
            at_work -= 1

    monkeypatch.setattr("mailserver.api.keys.key_from_password", watched)
    store = KeyStore()

    ids = await asyncio.gather(*(store.from_password(str(number)) for number in range(4)))

    assert len({store.symmetric(key_id) for key_id in ids}) == 4
    assert most_at_work == 1


async def test_password_that_is_no_unicode_text_is_refused_without_being_quoted() -> None:
    with pytest.raises(DecodeError) as caught:
        await KeyStore().from_password("secret \ud800")

    assert str(caught.value) == "password is not Unicode text"
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__


def test_deleted_symmetric_key_is_gone() -> None:
    store = KeyStore()
    key_id, other_id = store.new_symmetric(), store.new_symmetric()

    assert store.delete_symmetric(key_id)

    assert not store.delete_symmetric(key_id)
    assert not store.has_symmetric(key_id)
    assert store.has_symmetric(other_id)
    with pytest.raises(KeyNotFound):
        store.symmetric(key_id)


# Key pairs


def test_key_pair_is_returned_by_its_id() -> None:
    store = KeyStore()

    key_id = store.add_pair(ALICE.secret)

    assert is_id(key_id)
    assert store.has_pair(key_id)
    assert store.pair(key_id).secret == ALICE.secret
    assert store.pair(key_id).public_key == ALICE.public_key


def test_new_key_pairs_differ() -> None:
    store = KeyStore()

    assert len({store.pair(store.new_pair()).public_key for _ in range(100)}) == 100


@pytest.mark.parametrize(
    "secret",
    [
        pytest.param(b"", id="nothing"),
        pytest.param(bytes(31), id="31 bytes"),
        pytest.param(ALICE.secret + b"\x00", id="33 bytes"),
        pytest.param(bytes(32), id="zero"),
        pytest.param(b"\xff" * 32, id="beyond the group order"),
    ],
)
def test_bytes_that_are_no_private_key_are_refused(secret: bytes) -> None:
    with pytest.raises(DecodeError):
        KeyStore().add_pair(secret)


def test_deleted_key_pair_is_gone() -> None:
    store = KeyStore()
    key_id, other_id = store.new_pair(), store.new_pair()

    assert store.delete_pair(key_id)

    assert not store.delete_pair(key_id)
    assert not store.has_pair(key_id)
    assert store.has_pair(other_id)
    with pytest.raises(KeyNotFound):
        store.pair(key_id)


# Ids


def test_ids_of_one_kind_do_not_find_the_other() -> None:
    store = KeyStore()
    symmetric_id, pair_id = store.new_symmetric(), store.new_pair()

    assert not store.has_pair(symmetric_id)
    assert not store.has_symmetric(pair_id)
    assert not store.delete_pair(symmetric_id)
    assert not store.delete_symmetric(pair_id)


@pytest.mark.parametrize("key_id", [NO_ID, "", "0x" + NO_ID, "\ud800"])
def test_unknown_id_is_said_not_to_be_found(key_id: str) -> None:
    with pytest.raises(KeyNotFound, match="no symmetric key has this id"):
        KeyStore().symmetric(key_id)
    with pytest.raises(KeyNotFound, match="no key pair has this id"):
        KeyStore().pair(key_id)


def test_key_that_is_added_twice_has_two_ids() -> None:
    store = KeyStore()

    first, second = store.add_symmetric(SYMMETRIC), store.add_symmetric(SYMMETRIC)
    store.delete_symmetric(first)

    assert store.symmetric(second) == SYMMETRIC


# Bounds


async def test_symmetric_keys_are_bounded() -> None:
    store = KeyStore(max_keys=2)
    key_id = store.new_symmetric()
    store.add_symmetric(SYMMETRIC)

    with pytest.raises(TooManyKeys, match="no room for another symmetric key, the limit is 2"):
        store.new_symmetric()
    with pytest.raises(TooManyKeys):
        store.add_symmetric(SYMMETRIC)
    with pytest.raises(TooManyKeys):
        await store.from_password("password")

    store.new_pair()  # counted by itself
    store.delete_symmetric(key_id)
    store.new_symmetric()


def test_key_pairs_are_bounded() -> None:
    store = KeyStore(max_keys=2)
    key_id = store.new_pair()
    store.add_pair(ALICE.secret)

    with pytest.raises(TooManyKeys, match="no room for another key pair, the limit is 2"):
        store.new_pair()
    with pytest.raises(TooManyKeys):
        store.add_pair(ALICE.secret)

    store.new_symmetric()
    store.delete_pair(key_id)
    store.new_pair()


async def test_no_password_is_derived_where_no_key_has_room(monkeypatch: pytest.MonkeyPatch) -> None:
    derived: list[str] = []
    monkeypatch.setattr("mailserver.api.keys.key_from_password", derived.append)

    with pytest.raises(TooManyKeys):
        await KeyStore(max_keys=0).from_password("password")

    assert derived == []


async def test_last_room_is_given_once_to_passwords_that_are_derived_together() -> None:
    store = KeyStore(max_keys=1)

    outcomes = await asyncio.gather(*(store.from_password(str(number)) for number in range(3)), return_exceptions=True)

    assert [isinstance(outcome, TooManyKeys) for outcome in outcomes].count(True) == 2


def test_ten_thousand_symmetric_keys_are_held_by_default() -> None:
    store = KeyStore()

    for _ in range(MAX_KEYS):
        store.add_symmetric(SYMMETRIC)

    assert MAX_KEYS == 10_000
    with pytest.raises(TooManyKeys):
        store.new_symmetric()


# Secrecy


async def test_keys_show_in_no_repr_error_or_log_line(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    store = KeyStore(max_keys=2)
    symmetric_id, pair_id = store.add_symmetric(SYMMETRIC), store.add_pair(ALICE.secret)
    store.add_symmetric(SYMMETRIC)

    with pytest.raises(TooManyKeys) as refused:
        store.add_symmetric(SYMMETRIC)
    with pytest.raises(DecodeError) as undecoded:
        store.add_pair(b"\xff" * 32)

    shown = "".join(
        [repr(store), str(vars(store)), repr(store.pair(pair_id)), caplog.text]
        + [repr(error.value) + str(error.value) for error in (refused, undecoded)]
    )
    assert symmetric_id not in shown
    for secret in (SYMMETRIC, ALICE.secret, b"\xff" * 32):
        assert secret.hex() not in shown
        assert repr(secret)[2:-1] not in shown
    assert isinstance(store.pair(pair_id), PrivateKey)
