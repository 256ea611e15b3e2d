"""RLP, Snappy, ECIES, keys and enode URLs; RLP and Snappy beside a second implementation."""

from collections.abc import Iterator

import rlp as plain_rlp

from mailserver.codec import ecies, rlp, snappy
from mailserver.codec.keys import (
    PRIVATE_KEY_BYTES,
    PUBLIC_KEY_BYTES,
    SIGNATURE_BYTES,
    Enode,
    PrivateKey,
    check_public_key,
    recover,
)
from mailserver.errors import DecodeError
from tests.data import load
from tests.fuzz.choices import Choices
from tests.fuzz.target import Target
from tests.pairs import digest, private_key

FEW_ITEMS = 16
MAX_INFLATED_BYTES = 64 * 1024

KEY, EPHEMERAL_KEY = private_key("fuzzed"), private_key("ephemeral")


# RLP


def fuzz_rlp(data: bytes) -> None:
    """Only what is canonical and within the bounds decodes, to what the `rlp` package makes of it."""
    expected, depth, items = plain(data)
    for max_items in (rlp.MAX_ITEMS, FEW_ITEMS):
        try:
            item = rlp.decode(data, max_items=max_items)
        except DecodeError:
            assert expected is None or depth > rlp.MAX_DEPTH or items > max_items
            continue
        assert item == expected
        assert depth <= rlp.MAX_DEPTH
        assert items <= max_items or isinstance(item, bytes)
        assert rlp.encode(item) == data
        assert rlp.decode_first(data + b"\xff") == item
        _as_every_kind(item)
    try:
        first = rlp.decode_first(data)
    except DecodeError:
        assert expected is None or depth > rlp.MAX_DEPTH or items > rlp.MAX_ITEMS
    else:
        assert data.startswith(rlp.encode(first))


def plain(data: bytes) -> "tuple[rlp.Item | None, int, int]":
    """What the package makes of it, how deep its lists nest, and how many items it has; None if it refuses it."""
    try:
        item: rlp.Item = plain_rlp.decode(data)
    except (plain_rlp.exceptions.DecodingError, RecursionError):  # it recurses for each level
        return None, 0, 0
    deepest, count, waiting = 0, 0, [(item, 1)]
    while waiting:
        each, depth = waiting.pop()
        count += 1
        if isinstance(each, list):
            deepest = max(deepest, depth)
            waiting += [(inner, depth + 1) for inner in each]
    return item, deepest, count


def _as_every_kind(item: rlp.Item) -> None:
    try:
        assert rlp.as_list(item) == item
    except DecodeError:
        assert isinstance(item, bytes)
    try:
        number = rlp.as_uint(item, 8)
    except DecodeError:
        return
    assert rlp.encode_uint(number) == item
    assert number < 1 << 64


def fuzz_rlp_value(data: bytes) -> None:
    """Whatever is within the bounds is encoded as the `rlp` package does it, and decodes to itself."""
    choices = Choices(data)
    item = _item(choices, 10)
    encoded = rlp.encode(item)
    assert encoded == plain_rlp.encode(item)
    _, depth, items = plain(encoded)
    try:
        assert rlp.decode(encoded) == item
    except DecodeError:
        assert depth > rlp.MAX_DEPTH or items > rlp.MAX_ITEMS
    number = int.from_bytes(choices.fixed(8), "big")
    assert rlp.as_uint(rlp.decode(rlp.encode(rlp.encode_uint(number))), 8) == number


def _item(choices: Choices, levels: int) -> rlp.Item:
    if not levels or not choices.flag():
        return choices.take(80)
    return [_item(choices, levels - 1) for _ in range(choices.below(8))]


def rlp_seeds() -> Iterator[bytes]:
    """Ethereum's vectors, valid and not."""
    for name in ("rlptest.json", "invalidRLPTest.json"):
        for vector in load(name).values():
            yield bytes.fromhex(vector["out"].removeprefix("0x"))
    yield b"\xc1" * 8 + b"\xc0"
    yield bytes([0xC0 + FEW_ITEMS]) + b"\x01" * FEW_ITEMS


# Snappy


def fuzz_snappy(data: bytes) -> None:
    """A block is inflated as its format says, and never beyond the bound."""
    try:
        inflated = snappy.decompress(data, max_bytes=MAX_INFLATED_BYTES)
    except DecodeError:
        assert reference_inflate(data, MAX_INFLATED_BYTES) is None
    else:
        assert len(inflated) <= MAX_INFLATED_BYTES
        assert inflated == reference_inflate(data, MAX_INFLATED_BYTES)
    compressed = snappy.compress(data)
    assert len(compressed) <= snappy.max_compressed_bytes(len(data))
    assert snappy.decompress(compressed, max_bytes=len(data)) == data
    assert reference_inflate(compressed, len(data)) == data


def reference_inflate(data: bytes, max_bytes: int) -> bytes | None:
    """The block format read word by word (google/snappy, format_description.txt); None for a damaged block."""
    size = shift = at = 0
    while True:
        if at >= min(len(data), 5):
            return None
        size |= (data[at] & 0x7F) << shift
        shift, at = shift + 7, at + 1
        if data[at - 1] < 0x80:
            break
    if size > max_bytes:
        return None
    out = bytearray()
    while at < len(data):
        tag = data[at]
        at += 1
        kind, upper = tag & 3, tag >> 2
        if kind == 0:  # a literal; its length less one stands here, or in the next 1 to 4 bytes
            width = max(upper - 59, 0)
            if width and at + 4 > len(data):  # no encoder writes a short literal in the long form: ours refuses it
                return None
            length = (int.from_bytes(data[at : at + width], "little") if width else upper) + 1
            at += width
            if at + length > len(data):
                return None
            out += data[at : at + length]
            at += length
        else:  # a copy of what has been written, that far back
            width = (1, 2, 4)[kind - 1]
            if at + width > len(data):
                return None
            offset = int.from_bytes(data[at : at + width], "little")
            length = upper + 1
            if kind == 1:
                offset, length = offset | upper >> 3 << 8, (upper & 7) + 4
            at += width
            if not 0 < offset <= len(out):
                return None
            for _ in range(min(length, size - len(out) + 1)):
                out.append(out[-offset])
        if len(out) > size:
            return None
    return bytes(out) if len(out) == size else None


def snappy_seeds() -> Iterator[bytes]:
    """Compressed packets, and each kind of element."""
    for envelope in load("envelopes.json")["envelopes"][:2]:
        yield snappy.compress(bytes.fromhex(envelope["raw"]))
    yield snappy.compress(bytes(5000))
    yield snappy.compress(bytes(2 * MAX_INFLATED_BYTES))
    yield snappy.compress(bytes(range(256)) * 8)
    yield b""
    yield b"\x0a\x00a\x11\x01"  # a literal, then a copy by 1 byte
    yield b"\x0a\x00a\x22\x01\x00"
    yield b"\x0a\x00a\x23\x01\x00\x00\x00"
    yield b"\x40\xf0\x3f" + bytes(64)
    yield b"\xff\xff\xff\xff\x0f\x00a"


# Keys


def fuzz_ecies(data: bytes) -> None:
    """What was sealed opens to what it was, and nothing else opens."""
    choices = Choices(data)
    if choices.flag():
        try:
            ecies.open_sealed(KEY, choices.rest())
        except DecodeError:
            return
        raise AssertionError("opened what nobody sealed")
    iv, authdata, plaintext, at = choices.fixed(16).ljust(16), choices.take(4), choices.take(600), choices.below(1000)
    sealed = ecies.seal(KEY.public_key, plaintext, ephemeral_key=EPHEMERAL_KEY, iv=iv, authdata=authdata)
    assert len(sealed) == len(plaintext) + ecies.OVERHEAD_BYTES
    assert ecies.open_sealed(KEY, sealed, authdata=authdata) == plaintext
    at %= len(sealed)
    try:
        ecies.open_sealed(KEY, sealed[:at] + bytes([sealed[at] ^ 1 + choices.below(255)]) + sealed[at + 1 :])
    except DecodeError:
        return
    raise AssertionError(f"opened although byte {at} is another")


def ecies_seeds() -> Iterator[bytes]:
    """A sealed box of another recipient, and boxes to be sealed."""
    yield b"\x01" + bytes.fromhex(load("eip8.json")["auth"])[2:]
    yield b"\x00" + bytes(16) + b"\x02ab\x00\x05plain\x00\x07"


def fuzz_keys(data: bytes) -> None:
    """Keys, points and signatures are what they should be, or refused."""
    choices = Choices(data)
    secret = choices.take(40)
    try:
        key = PrivateKey(secret)
    except DecodeError:
        key = KEY
    else:
        assert key.secret == secret
        assert len(secret) == PRIVATE_KEY_BYTES
        assert check_public_key(key.public_key) == key.public_key
    assert key.agree(EPHEMERAL_KEY.public_key) == EPHEMERAL_KEY.agree(key.public_key)
    signed = choices.fixed(32).ljust(32)
    signature = key.sign(signed)
    assert recover(signature, signed) == key.public_key
    assert recover(signature[:64] + bytes([signature[64] + 27]), signed) == key.public_key
    damaged = bytearray(signature)
    damaged[choices.below(SIGNATURE_BYTES)] ^= choices.below(256)
    for candidate in (bytes(damaged), choices.take(80)):
        try:
            node_id = recover(candidate, signed)
        except DecodeError:
            continue
        assert check_public_key(node_id) == node_id
    point = choices.take(80)
    try:
        assert len(check_public_key(point)) == PUBLIC_KEY_BYTES
    except DecodeError:
        return
    assert len(key.agree(point)) == 32


def key_seeds() -> Iterator[bytes]:
    """A key, a signature and a point; zero, and the order of the group."""
    signed = digest("signed")
    rest = signed + b"\x40\x01" + b"\x41" + KEY.sign(signed) + b"\x40" + KEY.public_key
    yield b"\x20" + KEY.secret + rest
    yield b"\x20" + bytes(32) + rest
    yield b"\x20" + bytes.fromhex("fffffffffffffffffffffffffffffffebaaedce6af48a03bbfd25e8cd0364141") + rest


def fuzz_enode(data: bytes) -> None:
    """An enode URL is read, and written so that it reads the same."""
    text = data.decode("utf-8", "replace")
    try:
        enode = Enode.parse(text)
    except DecodeError as error:
        assert "\n" not in str(error)
        return
    assert 0 < enode.port <= 65535
    assert enode.host
    assert not set(enode.host) & set("[]@/?# \n\0")
    assert Enode.parse(str(enode)) == enode


def enode_seeds() -> Iterator[bytes]:
    """URLs with every kind of host."""
    for rest in (
        "127.0.0.1:30303",
        "[::1]:1",
        "node.example.org:65535?discport=30301",
        "[::ffff:1.2.3.4]:0",
        "a:99999",
    ):
        yield f"enode://{KEY.public_key.hex()}@{rest}".encode()
    yield f"enode://{'00' * 64}@127.0.0.1:30303".encode()


TARGETS = {
    "rlp": Target(fuzz_rlp, rlp_seeds, max_bytes=32 * 1024),
    "rlpvalue": Target(fuzz_rlp_value, lambda: [bytes([1, 5, 1, 2, 1, 0]) * 20]),
    "snappy": Target(fuzz_snappy, snappy_seeds, max_bytes=8192),
    "ecies": Target(fuzz_ecies, ecies_seeds),
    "keys": Target(fuzz_keys, key_seeds),
    "enode": Target(fuzz_enode, enode_seeds, max_bytes=512),
}
