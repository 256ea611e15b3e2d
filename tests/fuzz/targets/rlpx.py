"""Hello and its like, auth and ack, frames: raw, and sealed around what the fuzzer chose."""

import contextlib
from collections.abc import Callable, Iterator

from mailserver.codec import aes, ecies, rlp
from mailserver.codec.keccak import running_keccak
from mailserver.errors import DecodeError, DisconnectReason
from mailserver.rlpx import p2p
from mailserver.rlpx.capabilities import RESERVED_MESSAGE_IDS, Capability, locate, share
from mailserver.rlpx.framing import (
    HEADER_BYTES,
    MAC_BYTES,
    FrameDecoder,
    FrameEncoder,
    encode_message_id,
    padded,
    split_message,
)
from mailserver.rlpx.handshake import (
    MAX_HANDSHAKE_PACKET_BYTES,
    NONCE_BYTES,
    PLAIN_AUTH_BYTES,
    RLPX_VERSION,
    SIZE_PREFIX_BYTES,
    Initiator,
    Recipient,
    Secrets,
    is_plain_auth,
    open_auth,
    packet_length,
)
from tests.data import load
from tests.fuzz.choices import Choices
from tests.fuzz.target import Target
from tests.pairs import INITIATOR_KEY_NAME, RECIPIENT_KEY_NAME, TOY, digest, entropy, private_key

INITIATOR_KEY, RECIPIENT_KEY = private_key(INITIATOR_KEY_NAME), private_key(RECIPIENT_KEY_NAME)
AUTH = Initiator(INITIATOR_KEY, RECIPIENT_KEY.public_key, entropy(INITIATOR_KEY_NAME)).auth
ACK = Recipient(RECIPIENT_KEY, entropy(RECIPIENT_KEY_NAME)).receive_auth(AUTH)[0]

OURS = {TOY: 17, Capability("toy", 2): 3, Capability("waku", 1): 128}
MAX_BODY_BYTES = 1024
MAX_FRAMES = 16


# The payloads of "p2p"


def fuzz_hello(data: bytes) -> None:
    """A Hello is read within its bounds, and reads the same when it is written again."""
    try:
        hello = p2p.Hello.decode(data)
    except DecodeError:
        return
    assert len(hello.capabilities) <= p2p.MAX_CAPABILITIES
    assert len(hello.client_id) <= p2p.MAX_CLIENT_ID_BYTES
    if len(hello.client_id.encode()) <= p2p.MAX_CLIENT_ID_BYTES:  # else what was no UTF-8 has become longer
        assert p2p.Hello.decode(hello.encode()) == hello
    shared = share(OURS, hello.capabilities)
    offset = RESERVED_MESSAGE_IDS
    for entry in shared:
        assert entry.offset == offset
        assert entry.capability in hello.capabilities
        assert entry.length == OURS[entry.capability]
        assert locate(shared, offset) == (entry.capability, 0)
        offset += entry.length
    assert locate(shared, offset) is None
    assert [entry.capability.name for entry in shared] == sorted({entry.capability.name for entry in shared})


def hello_seeds() -> Iterator[bytes]:
    """Recorded ones, and EIP-8's."""
    yield bytes.fromhex(load("eip8_formats.json")["hello"]["payload"])
    for session in load("sessions.json")["sessions"]:
        for message in session["messages"]:
            if message["message_id"] == p2p.MessageId.HELLO:
                yield bytes.fromhex(message["payload"])
    yield p2p.Hello(
        5, "two", (TOY, Capability("toy", 2), Capability("waku", 0)), 30303, INITIATOR_KEY.public_key
    ).encode()


def fuzz_disconnect(data: bytes) -> None:
    """Whatever stands in Disconnect, it is a reason or none."""
    reason = p2p.decode_disconnect(data)
    if reason is not None:
        assert p2p.decode_disconnect(p2p.encode_disconnect(reason)) is reason
        assert rlp.encode_uint(reason) in (data, data[1:]) or len(data) > 1


# The handshake


def fuzz_handshake(data: bytes) -> None:
    """Bytes that nobody sealed are no auth and no ack; what may be one is never longer than its bound."""
    for candidate in (data, len(data).to_bytes(2, "big") + data):
        with contextlib.suppress(DecodeError):
            assert SIZE_PREFIX_BYTES + ecies.OVERHEAD_BYTES < packet_length(candidate) <= MAX_HANDSHAKE_PACKET_BYTES
        _refused(lambda packet: open_auth(RECIPIENT_KEY, packet), candidate, AUTH)
        _refused(initiator().receive_ack, candidate, ACK)
        if len(candidate) >= PLAIN_AUTH_BYTES:
            assert not is_plain_auth(RECIPIENT_KEY, candidate)


def _refused(read: Callable[[bytes], object], packet: bytes, sound: bytes) -> None:
    try:
        read(packet)
    except DecodeError:
        assert packet != sound
    else:
        assert packet == sound


def handshake_seeds() -> Iterator[bytes]:
    """Sound ones, recorded ones, and those of EIP-8, which are for others."""
    yield from (AUTH, ACK)
    formats = load("eip8_formats.json")
    for vector in (*formats["auth"], *formats["ack"]):
        yield bytes.fromhex(vector["packet"])


def fuzz_handshake_sealed(data: bytes) -> None:
    """What is sealed for us is read, or refused; both sides come to the same secrets if it is as it should be."""
    choices = Choices(data)
    is_auth = choices.flag()
    body, is_sound = _handshake_body(choices, is_auth=is_auth)
    packet = _sealed(RECIPIENT_KEY.public_key if is_auth else INITIATOR_KEY.public_key, body)
    if body and len(packet) <= MAX_HANDSHAKE_PACKET_BYTES:
        assert packet_length(packet) == len(packet)
    try:
        if is_auth:
            ack, secrets = Recipient(RECIPIENT_KEY, entropy(RECIPIENT_KEY_NAME)).receive_auth(packet)
            if is_sound:
                remote = initiator().receive_ack(ack)
                assert (remote.aes, remote.mac) == (secrets.aes, secrets.mac)
                assert remote.ingress_seed == secrets.egress_seed
        else:
            secrets = initiator().receive_ack(packet)
    except DecodeError:
        assert not is_sound
        return
    _assert_secrets(secrets)


def _handshake_body(choices: Choices, *, is_auth: bool) -> tuple[bytes, bool]:
    """An auth or ack body, and whether all of it is as it should be."""
    if choices.flag():
        return choices.take(1000), False
    who = entropy(INITIATOR_KEY_NAME if is_auth else RECIPIENT_KEY_NAME)
    static = int.from_bytes(INITIATOR_KEY.agree(RECIPIENT_KEY.public_key), "big")
    proof = who.ephemeral_key.sign((static ^ int.from_bytes(who.nonce, "big")).to_bytes(NONCE_BYTES, "big"))
    sound: list[rlp.Item] = [proof, INITIATOR_KEY.public_key] if is_auth else [who.ephemeral_key.public_key]
    sound += [who.nonce, rlp.encode_uint(RLPX_VERSION)]
    fields: list[rlp.Item] = []
    is_sound = True
    for index, field in enumerate(sound):
        match choices.below(8):
            case 1:
                fields.append(choices.take(80))
            case 2:
                fields.append([field])
            case 3:
                assert isinstance(field, bytes)
                fields.append(field[: choices.below(70)])
            case _:
                fields.append(field)
        if index < len(sound) - 1:  # the version says nothing
            is_sound = is_sound and fields[-1] == field
    is_whole = not choices.flag()
    if not is_whole:
        del fields[choices.below(4) :]
    fields += [choices.take(8) for _ in range(choices.below(4))]
    is_sound = is_sound and fields[: len(sound) - 1] == sound[:-1]
    return rlp.encode(fields) + choices.take(300), is_sound


def _sealed(public_key: bytes, plaintext: bytes) -> bytes:
    size = (len(plaintext) + ecies.OVERHEAD_BYTES).to_bytes(SIZE_PREFIX_BYTES, "big")
    seal_key, iv = private_key("fuzzed seal"), bytes(16)
    return size + ecies.seal(public_key, plaintext, ephemeral_key=seal_key, iv=iv, authdata=size)


def _assert_secrets(secrets: Secrets) -> None:
    assert len(secrets.aes) == len(secrets.mac) == 32
    assert len(secrets.remote_id) == 64


def initiator() -> Initiator:
    """A new one; it is always the same."""
    return Initiator(INITIATOR_KEY, RECIPIENT_KEY.public_key, entropy(INITIATOR_KEY_NAME))


def handshake_sealed_seeds() -> Iterator[bytes]:
    """Sound auth and ack, an empty body, a field left out."""
    yield from (bytes([1, 0]), bytes([0, 0]), bytes([1, 1]), bytes([1, 0, 0, 0, 0, 0, 1, 2]), bytes([1, 0, 1, 5]))


# Frames


class AnyFrames:
    """Seals frames as rlpx.md "Framing" says, with any header: a second implementation of the encoder."""

    def __init__(self, aes_secret: bytes, mac_secret: bytes, seed: bytes) -> None:
        self._encrypt = aes.ctr_stream(aes_secret)
        self._mac = running_keccak(seed)
        self._block = aes.block_cipher(mac_secret)

    def header(self, plaintext: bytes) -> bytes:
        """Seal 16 bytes."""
        ciphertext = self._encrypt(plaintext)
        return ciphertext + self._step(ciphertext)

    def body(self, plaintext: bytes) -> bytes:
        """Seal whole blocks."""
        ciphertext = self._encrypt(plaintext)
        self._mac.update(ciphertext)
        return ciphertext + self._step(self._mac.digest()[:16])

    def _step(self, value: bytes) -> bytes:
        encrypted = self._block(self._mac.digest()[:16])
        self._mac.update(bytes(left ^ right for left, right in zip(encrypted, value, strict=True)))
        return self._mac.digest()[:16]


def fuzz_frames(data: bytes) -> None:
    """Frames open in their order to what was sealed; a flipped bit, a repeated frame or a wrong size is refused."""
    choices = Choices(data)
    secrets = digest("aes"), digest("mac"), b"seed"
    any_frames, encoder, decoder = AnyFrames(*secrets), FrameEncoder(*secrets), FrameDecoder(*secrets)
    last = b""
    for _ in range(MAX_FRAMES):
        if not choices.more:
            return
        kind = choices.below(8)
        body = choices.take(200)
        size = choices.below(1 << 24) if kind == 1 else len(body)
        header = any_frames.header(size.to_bytes(3, "big") + choices.fixed(13).ljust(13, b"\0"))
        blocks = body + bytes(padded(len(body)) - len(body))
        frame = header + any_frames.body(blocks)
        expected: bytes | None = body
        if kind == 1 or not body:
            expected = blocks[:size] if 0 < size <= MAX_BODY_BYTES and padded(size) == padded(len(body)) else None
        elif kind == 2:
            frame, expected = last, None
        elif kind == 3:
            at = choices.below(len(frame))
            frame, expected = frame[:at] + bytes([frame[at] ^ 1 << choices.below(8)]) + frame[at + 1 :], None
        if _opened(decoder, frame) != expected:
            raise AssertionError(f"frame of kind {kind} opened to something else")
        if expected is None:
            return
        last = frame
    assert len(encoder.encode(b"body")) == HEADER_BYTES + 16 + MAC_BYTES


def _opened(decoder: FrameDecoder, frame: bytes) -> bytes | None:
    try:
        size = decoder.decode_header(frame[:HEADER_BYTES], max_body_bytes=MAX_BODY_BYTES)
        end = HEADER_BYTES + padded(size) + MAC_BYTES
        return None if len(frame) < end else decoder.decode_body(frame[HEADER_BYTES:end], size)
    except DecodeError:
        return None


def fuzz_message(data: bytes) -> None:
    """A frame body is split into a message id and data that make it up again."""
    body = data or b"\0"
    try:
        message_id, rest = split_message(body)
    except DecodeError:
        return
    assert encode_message_id(message_id) + rest == body
    assert message_id < 256


TARGETS = {
    "hello": Target(fuzz_hello, hello_seeds, max_bytes=p2p.MAX_P2P_MESSAGE_BYTES),
    "disconnect": Target(fuzz_disconnect, lambda: [p2p.encode_disconnect(reason) for reason in DisconnectReason], 64),
    "handshake": Target(fuzz_handshake, handshake_seeds),
    "sealedhandshake": Target(fuzz_handshake_sealed, handshake_sealed_seeds),
    "frames": Target(
        fuzz_frames, lambda: [b"\x00\x05hello" * 6, b"\x01\x05hello\x00\x00\x04", b"\x03\x05hello\x07\x01"]
    ),
    "message": Target(fuzz_message, lambda: [b"\x80", b"\x81\x80", b"\x10ab", b"\x81\x10"], 64),
}
