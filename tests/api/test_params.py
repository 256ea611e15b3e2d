"""mailserver.api.params: each check against what passes, what does not, and what is said about it."""

from typing import Any

import pytest

from mailserver.api.errors import ErrorCode, RpcError
from mailserver.api.params import (
    MAX_FLOAT,
    Check,
    Fields,
    Invalid,
    Json,
    encode_hex,
    encode_public_key,
    enode,
    flag,
    hex_bytes,
    identifier,
    list_of,
    number,
    private_key,
    public_key,
    text,
    topic,
    topic_prefix,
    whole,
)
from mailserver.codec.keys import PUBLIC_KEY_BYTES
from tests.pairs import private_key as key_of

ALICE = key_of("alice")
ENODE = f"enode://{ALICE.public_key.hex()}@127.0.0.1:30303"


@pytest.mark.parametrize(
    ("check", "value", "result"),
    [
        (flag, True, True),
        (flag, False, False),
        (whole(0, 10), 0, 0),
        (whole(0, 10), 10, 10),
        (number(0, MAX_FLOAT), 0, 0.0),
        (number(0, MAX_FLOAT), 1e308, 1e308),
        (number(0, MAX_FLOAT), 0.002, 0.002),
        (text(3), "", ""),
        (text(3), "äöü", "äöü"),
        (text(3), "😀", "😀"),
        (identifier, "ab" * 32, "ab" * 32),
        (hex_bytes(0, 2), "0x", b""),
        (hex_bytes(0, 2), "0x00fF", b"\x00\xff"),
        (hex_bytes(0, 2), "0X00", b"\x00"),
        (hex_bytes(2, 2, bare=True), "00ff", b"\x00\xff"),
        (hex_bytes(2, 2, bare=True), "0x00ff", b"\x00\xff"),
        (list_of(whole(0, 10), 2), [], []),
        (list_of(whole(0, 10), 2), [1, 2], [1, 2]),
        (topic, "0x9acb0442", b"\x9a\xcb\x04\x42"),
        (topic_prefix, "0x9a", b"\x9a"),
        (topic_prefix, "0x9acb0442", b"\x9a\xcb\x04\x42"),
        (public_key, f"0x04{ALICE.public_key.hex()}", ALICE.public_key),
    ],
)
def test_what_passes(check: Check[Any], value: Json, result: object) -> None:
    checked = check(value)

    assert checked == result
    assert type(checked) is type(result)


def test_keys_and_enodes_pass() -> None:
    assert private_key(encode_hex(ALICE.secret)).secret == ALICE.secret
    assert str(enode(ENODE)) == ENODE
    assert enode(f"{ENODE}?discport=0").port == 30303


@pytest.mark.parametrize(
    ("check", "value", "problem"),
    [
        (flag, 1, "not true or false"),
        (flag, "true", "not true or false"),
        (whole(0, 10), -1, "not between 0 and 10"),
        (whole(0, 10), 11, "not between 0 and 10"),
        (whole(0, 10), 10**4000, "not between 0 and 10"),
        (whole(0, 10), 5.0, "not a whole number"),
        (whole(0, 10), True, "not a whole number"),
        (whole(0, 10), "5", "not a whole number"),
        (number(0, 10), -0.1, "not between 0 and 10"),
        (number(0, 10), 10.1, "not between 0 and 10"),
        (number(0, MAX_FLOAT), 10**400, "not between 0 and 1.79769e+308"),
        (number(0, MAX_FLOAT), -(10**400), "not between 0 and 1.79769e+308"),
        (number(0, 10), True, "not a number"),
        (number(0, 10), "1", "not a number"),
        (text(3), "abcd", "longer than 3 characters"),
        (text(3), "a\ud800", "contains half of a surrogate pair"),
        (text(3), b"", "not a string"),
        (identifier, "x" * 129, "longer than 128 characters"),
        (hex_bytes(0, 2), "00", "not bytes in hex digits after 0x"),
        (hex_bytes(0, 2), "0x0", "not bytes in hex digits after 0x"),
        (hex_bytes(0, 2), "0x0g", "not bytes in hex digits after 0x"),
        (hex_bytes(0, 2), "0x00 00", "not bytes in hex digits after 0x"),
        (hex_bytes(0, 2), "0x00\n", "not bytes in hex digits after 0x"),
        (hex_bytes(0, 2), "0x\u0660\u0660", "not bytes in hex digits after 0x"),
        (hex_bytes(0, 2), 0, "not bytes in hex digits after 0x"),
        (hex_bytes(0, 2), "0x000000", "3 bytes, not 0 to 2"),
        (hex_bytes(2, 2), "0x00", "1 bytes, not 2"),
        (hex_bytes(2, 2, bare=True), "00f", "not bytes in hex digits"),
        (list_of(flag, 2), "ab", "not an array"),
        (list_of(flag, 2), {"0": True}, "not an array"),
        (list_of(flag, 2), [True] * 3, "3 values, but at most 2 are allowed"),
        (list_of(flag, 2), [True, None], "[1]: not true or false"),
        (list_of(list_of(flag, 2), 2), [[], [True, 0]], "[1][1]: not true or false"),
        (topic, "0x9acb04", "3 bytes, not 4"),
        (topic_prefix, "0x", "0 bytes, not 1 to 4"),
        (enode, "", "not an enode URL (enode://<128 hex digits>@host:port)"),
        (enode, ENODE.replace("30303", "0"), "enode port is out of range, got 0, limit 65535"),
        (enode, f"enode://{'00' * PUBLIC_KEY_BYTES}@127.0.0.1:1", "public key is not on the curve"),
        (enode, f"{ENODE}?{'x' * 512}", "longer than 512 characters"),
        (public_key, f"0x{ALICE.public_key.hex()}", "64 bytes, not 65"),
        (public_key, f"0x02{ALICE.public_key.hex()}", "not an uncompressed public key, 0x04 and 64 bytes"),
        (public_key, f"0x04{'00' * PUBLIC_KEY_BYTES}", "public key is not on the curve"),
        (private_key, f"0x{'00' * 32}", "private key is not on the curve"),
        (private_key, f"0x{'00' * 31}", "31 bytes, not 32"),
    ],
)
def test_what_does_not_pass(check: Check[Any], value: Any, problem: str) -> None:
    with pytest.raises(Invalid) as invalid:
        check(value)

    assert str(invalid.value) == problem


def refusal(error: pytest.ExceptionInfo[RpcError]) -> str:
    assert error.value.code is ErrorCode.INVALID_PARAMS
    return error.value.message


def test_value_is_taken_by_name() -> None:
    fields = Fields({"a": 1, "b": True}, ("a", "b", "c"))

    assert fields.required("a", whole(0, 9)) == 1
    assert fields.maybe("b", flag) is True
    assert fields.maybe("c", flag) is None
    assert fields.optional("c", whole(0, 9), 7) == 7


@pytest.mark.parametrize("value", [None, "", "0x"])
def test_what_counts_as_absent(value: Json) -> None:
    fields = Fields({"a": value}, ("a",))

    assert fields.maybe("a", flag) is None
    assert fields.optional("a", flag, default=True) is True


@pytest.mark.parametrize("value", [0, False, [], {}])
def test_what_is_there_though_it_is_empty(value: Json) -> None:
    with pytest.raises(RpcError):
        Fields({"a": value}, ("a",)).maybe("a", text(9))


def test_required_value_may_be_empty_but_not_absent() -> None:
    assert Fields({"a": "0x"}, ("a",)).required("a", hex_bytes(0, 1)) == b""
    for values in ({}, {"a": None}):
        with pytest.raises(RpcError) as missing:
            Fields(values, ("a",)).required("a", flag)
        assert refusal(missing) == "a: missing"


def test_error_names_the_value() -> None:
    fields = Fields({"outer": {"flags": [True, 1]}}, ("outer",))

    with pytest.raises(RpcError) as wrong:
        fields.object("outer", ("flags",)).maybe("flags", list_of(flag, 9))

    assert refusal(wrong) == "outer.flags[1]: not true or false"


def test_unknown_name_is_an_error_that_names_it_and_not_all_of_it() -> None:
    with pytest.raises(RpcError) as unknown:
        Fields({"outer": {"x" * 100: 1}}, ("outer",)).object("outer", ("a",))

    assert refusal(unknown) == f"outer.{'x' * 64!r}..: unknown"


@pytest.mark.parametrize("value", [1, "a", [], True])
def test_what_is_no_object(value: Json) -> None:
    with pytest.raises(RpcError) as wrong:
        Fields({"outer": value}, ("outer",)).object("outer", ())

    assert refusal(wrong) == "outer: not an object"


def test_error_of_one_value_beside_the_others() -> None:
    fields = Fields({"outer": {"a": 2, "b": 1}}, ("outer",)).object("outer", ("a", "b"))

    assert str(fields.wrong("a", "above b")) == "outer.a: above b"


def test_what_is_sent_is_encoded_as_it_is_read() -> None:
    assert hex_bytes(2, 2)(encode_hex(b"\x00\xff")) == b"\x00\xff"
    assert public_key(encode_public_key(ALICE.public_key)) == ALICE.public_key
