"""Envelopes, packets, filters, topics and sealed payloads."""

import math
from collections.abc import Iterator

import rlp as plain_rlp

from mailserver.codec import aes, ecies, rlp
from mailserver.codec.keccak import keccak256
from mailserver.codec.keys import SIGNATURE_BYTES, recover
from mailserver.errors import DecodeError
from mailserver.waku.acceptance import Acceptance, Requirements, Verdict
from mailserver.waku.bloom import BLOOM_BYTES, FULL_BLOOM, Interest, bloom_of, check_bloom, matches
from mailserver.waku.envelope import (
    MAX_ENVELOPES_PER_PACKET,
    MAX_U32,
    TOPIC_BYTES,
    Envelope,
    Topic,
    decode_envelope,
    decode_envelopes,
    encode_envelope,
    encode_envelopes,
    packet_bytes,
)
from mailserver.waku.packets import (
    MAX_TOPIC_INTEREST,
    MessageResponse,
    PeerSettings,
    StatusOptions,
    decode_batch_acknowledged,
    encode_batch_acknowledged,
)
from mailserver.waku.payload import (
    MAX_PADDING_BYTES,
    OpenedPayload,
    open_asymmetric,
    open_symmetric,
    seal_asymmetric,
    seal_symmetric,
)
from mailserver.waku.topics import parse_topic
from tests.data import load
from tests.fuzz.choices import Choices
from tests.fuzz.target import Target
from tests.pairs import digest, private_key
from tests.store.samples import deployed_bloom, wants

KEY, EPHEMERAL_KEY, SIGNING_KEY = private_key("fuzzed"), private_key("ephemeral"), private_key("signer")
SYMMETRIC_KEY = digest("symmetric key")
ENVELOPES = [bytes.fromhex(vector["raw"]) for vector in load("envelopes.json")["envelopes"]]
SHORT = encode_envelope(1_796_097_472, 50, b"\x9a\xcb\x04\x42", b"data", 7).raw


# Envelopes


def fuzz_envelope(data: bytes) -> None:
    """Only canonical envelopes decode, to what the `rlp` package makes of their fields."""
    expected = _plain_envelope(data)
    try:
        envelope = decode_envelope(data)
    except DecodeError:
        assert expected is None
        return
    fields = envelope.expiry, envelope.ttl, envelope.topic, envelope.data, envelope.nonce
    assert fields == expected
    assert envelope.raw == data
    assert encode_envelope(*fields) == envelope
    assert envelope.created == envelope.expiry - envelope.ttl
    assert envelope.hash() == keccak256(data)
    _judge(envelope)


def _plain_envelope(data: bytes) -> tuple[int, int, bytes, bytes, int] | None:
    try:
        expiry, ttl, topic, sealed, nonce = fields = plain_rlp.decode(data)
    except (plain_rlp.exceptions.DecodingError, RecursionError, ValueError, TypeError):
        return None
    if not all(isinstance(field, bytes) for field in fields) or len(topic) != TOPIC_BYTES or isinstance(fields, bytes):
        return None
    numbers = (expiry, 4), (ttl, 4), (nonce, 8)
    if any(len(number) > most or number[:1] == b"\0" for number, most in numbers):
        return None
    return (int.from_bytes(expiry, "big"), int.from_bytes(ttl, "big"), topic, sealed, int.from_bytes(nonce, "big"))


def _judge(envelope: Envelope) -> None:
    """Whatever is accepted keeps to what was asked for, by exact arithmetic."""
    for ahead in (0, 10):
        assert 0 < envelope.pow(ahead) < math.inf
    for now in (0, envelope.created, envelope.created - 11, envelope.expiry, envelope.expiry + 21, MAX_U32):
        for min_pow in (0.0, 0.001, 0.002):
            verdict = Acceptance(Requirements(min_pow)).judge(envelope, now)
            if verdict is Verdict.ACCEPTED:
                assert 0 <= envelope.created <= now + 10
                assert envelope.expiry >= now
                assert envelope.pow(envelope.created - now) >= min_pow
            elif verdict is Verdict.LOW_POW:
                assert envelope.pow(envelope.created - now) < min_pow


def envelope_seeds() -> Iterator[bytes]:
    """Recorded ones, and the shortest."""
    yield from ENVELOPES[:3]
    yield SHORT
    yield encode_envelope(0, 0, bytes(4), b"", 0).raw
    yield encode_envelope(MAX_U32, MAX_U32, b"\xff" * 4, bytes(60), 2**64 - 1).raw


def fuzz_envelopes(data: bytes) -> None:
    """A packet is its envelopes, each as `decode_envelope` reads it, and nothing else."""
    try:
        envelopes = decode_envelopes(data)
    except DecodeError:
        expected = _plain_packet(data)
        assert expected is None or len(expected) > MAX_ENVELOPES_PER_PACKET
        return
    raws = [envelope.raw for envelope in envelopes]
    assert raws == _plain_packet(data)
    assert encode_envelopes(raws) == data
    assert packet_bytes(sum(map(len, raws))) == len(data)
    assert [decode_envelope(raw) for raw in raws] == envelopes


def _plain_packet(data: bytes) -> list[bytes] | None:
    try:
        items = plain_rlp.decode(data)
    except (plain_rlp.exceptions.DecodingError, RecursionError):
        return None
    raws = [plain_rlp.encode(item) for item in items] if isinstance(items, list) else [b""]
    return None if any(_plain_envelope(raw) is None for raw in raws) else raws


def envelopes_seeds() -> Iterator[bytes]:
    """None, one, several."""
    yield encode_envelopes([])
    yield encode_envelopes([SHORT])
    yield encode_envelopes([SHORT, ENVELOPES[0], SHORT])


# Packets


def fuzz_status(data: bytes) -> None:
    """Status is read within its bounds, and reads the same when it is written again; so is what is new in it."""
    try:
        options = StatusOptions.decode(data)
    except DecodeError:
        return
    assert StatusOptions.decode(options.encode()) == options
    assert options.topic_interest is None or len(options.topic_interest) <= MAX_TOPIC_INTEREST
    assert options.bloom is None or len(options.bloom) == BLOOM_BYTES
    assert options.pow_requirement is None or 0 <= options.pow_requirement < math.inf
    settings = PeerSettings().updated(options)
    assert settings.updated(options) == settings
    assert settings.updated(StatusOptions()) == settings
    assert options.since(options) == StatusOptions()
    assert options.since(StatusOptions()) == options


def status_seeds() -> Iterator[bytes]:
    """Recorded ones, and one with every option."""
    yield from _packets(0)
    yield from _packets(22)
    yield StatusOptions(topic_interest=frozenset({Topic(b"abcd"), Topic(b"efgh")}), bloom=FULL_BLOOM).encode()
    yield rlp.encode([[b"\x07", b"unknown"], [b"", [b""]], [b"\x02", b"\x01"]])


def fuzz_confirmations(data: bytes) -> None:
    """Both confirmations read the same when they are written again."""
    try:
        batch_hash = decode_batch_acknowledged(data)
        assert decode_batch_acknowledged(encode_batch_acknowledged(batch_hash)) == batch_hash
    except DecodeError:
        pass
    try:
        response = MessageResponse.decode(data)
    except DecodeError:
        return
    if response is not None:
        assert MessageResponse.decode(response.encode()) == response


def confirmation_seeds() -> Iterator[bytes]:
    """Recorded ones, and each in its other form."""
    yield from _packets(11)
    yield from _packets(12)
    yield rlp.encode([b"\x01", bytes(32)])
    yield rlp.encode([b"\x01", [bytes(32), [[bytes(32), b"\x15", b"text"], [bytes(32), b"", b"\xff"]]]])
    yield rlp.encode([b"\x02", b""])


def _packets(code: int) -> Iterator[bytes]:
    for packet in load("packets.json")["packets"]:
        if packet["code"] == code:
            yield bytes.fromhex(packet["payload"])
    for session in load("sessions.json")["sessions"]:
        for message in session["messages"]:
            if message["message_id"] == 0x10 + code:
                yield bytes.fromhex(message["payload"])


def fuzz_bloom(data: bytes) -> None:
    """A filter matches its topics, however it was made, and matches as the specification's words say."""
    choices = Choices(data)
    bloom = choices.fixed(choices.pick((BLOOM_BYTES, 0, 63, 65)))
    topics = [choices.fixed(TOPIC_BYTES).ljust(TOPIC_BYTES, b"\0") for _ in range(1 + choices.below(8))]
    made = bloom_of(topics)
    for topic in topics:
        assert matches(made, topic)
        assert matches(deployed_bloom(topic), topic)
    try:
        checked = check_bloom(bloom)
    except DecodeError:
        assert len(bloom) not in (0, BLOOM_BYTES)
        return
    for interest in (Interest(bloom=checked), Interest(bloom=made), Interest(topics=frozenset(map(Topic, topics[1:])))):
        for topic in topics:
            assert interest.wants(Topic(topic)) == wants(interest, topic)


def fuzz_topic(data: bytes) -> None:
    """Any text that is UTF-8 is a topic, but for what begins with 0x and is none."""
    text = data.decode("utf-8", "replace")
    try:
        topic = parse_topic(text)
    except DecodeError as error:
        assert text.startswith("0x")
        assert str(error)
        return
    assert len(topic) == TOPIC_BYTES
    assert parse_topic(f"0x{topic.hex()}") == topic


# Payloads


def fuzz_payload(data: bytes) -> None:
    """What is sealed around any plaintext opens to its parts, or is refused; what nobody sealed is refused."""
    choices = Choices(data)
    match choices.below(4):
        case 0:
            _open_raw(choices.rest())
        case 1:
            plaintext = choices.rest()
            _open_plaintext(plaintext)
        case 2:
            unsigned = choices.rest()
            _open_plaintext(unsigned + SIGNING_KEY.sign(keccak256(unsigned)))
        case _:
            _seal_and_open(choices)


def _open_raw(data: bytes) -> None:
    try:
        open_symmetric(data, SYMMETRIC_KEY)
    except DecodeError:
        pass
    else:
        raise AssertionError("opened what nobody sealed")
    try:
        open_asymmetric(data, KEY)
    except DecodeError:
        pass
    else:
        raise AssertionError("opened what nobody sealed")


def _open_plaintext(plaintext: bytes) -> None:
    nonce = bytes(aes.GCM_NONCE_BYTES)
    opened: OpenedPayload | None
    try:
        opened, refusal = open_symmetric(aes.gcm_seal(SYMMETRIC_KEY, nonce, plaintext) + nonce, SYMMETRIC_KEY), ""
    except DecodeError as error:
        opened, refusal = None, str(error)
    sealed = ecies.seal(KEY.public_key, plaintext, ephemeral_key=EPHEMERAL_KEY, iv=bytes(16))
    try:
        assert open_asymmetric(sealed, KEY) == opened
    except DecodeError as error:
        assert opened is None
        assert str(error) == refusal
    if opened is not None:
        _assert_makes_up(opened, plaintext)


def _assert_makes_up(opened: OpenedPayload, plaintext: bytes) -> None:
    size_bytes, is_signed = plaintext[0] & 3, bool(plaintext[0] & 4)
    unsigned = plaintext[:-SIGNATURE_BYTES] if is_signed else plaintext
    start = 1 + size_bytes
    assert unsigned[start:] == opened.payload + opened.padding
    assert int.from_bytes(unsigned[1:start], "little") == len(opened.payload)
    assert opened.signer == (recover(plaintext[-SIGNATURE_BYTES:], keccak256(unsigned)) if is_signed else None)


def _seal_and_open(choices: Choices) -> None:
    signing_key = SIGNING_KEY if choices.flag() else None
    exact = choices.flag()
    payload, padding = choices.take(600), choices.take(300)
    if not exact:
        padding = padding[:MAX_PADDING_BYTES].ljust(MAX_PADDING_BYTES, b"p")
    data = seal_symmetric(
        payload,
        SYMMETRIC_KEY,
        nonce=bytes(aes.GCM_NONCE_BYTES),
        padding=padding,
        exact_padding=exact,
        signing_key=signing_key,
    )
    sealed = seal_asymmetric(
        payload,
        KEY.public_key,
        ephemeral_key=EPHEMERAL_KEY,
        iv=bytes(16),
        padding=padding,
        exact_padding=exact,
        signing_key=signing_key,
    )
    opened = open_symmetric(data, SYMMETRIC_KEY)
    assert opened == open_asymmetric(sealed, KEY)
    assert opened.payload == payload
    assert opened.padding == padding if exact else padding.startswith(opened.padding)
    assert opened.signer == (None if signing_key is None else signing_key.public_key)


def payload_seeds() -> Iterator[bytes]:
    """Each kind of plaintext, and a recorded box."""
    yield b"\x00" + ENVELOPES[0][20:]
    yield b"\x01\x01\x05helloand padding"
    yield b"\x01\x02\x05\x00hello"
    yield b"\x01\x00"
    yield b"\x02\x05\x05hello"
    yield b"\x03\x01\x00\x02\x00hi\x01\x00pad"


TARGETS = {
    "envelope": Target(fuzz_envelope, envelope_seeds),
    "envelopes": Target(fuzz_envelopes, envelopes_seeds),
    "status": Target(fuzz_status, status_seeds),
    "confirmations": Target(fuzz_confirmations, confirmation_seeds),
    "bloom": Target(fuzz_bloom, lambda: [bytes(97), b"\x00" + bytes(range(96)), b"\x01" + bytes(range(40))], 256),
    "topic": Target(fuzz_topic, lambda: [b"0x9acb0442", b"0x9acb044", b"contact-discovery-1", b"0X9acb0442"], 64),
    "payload": Target(fuzz_payload, payload_seeds),
}
