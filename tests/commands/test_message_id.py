"""`waku-mailserver id`: the ids of envelopes and v2 messages, from a file or stdin, and what --check says of them."""

import io
import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from mailserver.commands.cli import main
from mailserver.commands.message_id import MAX_LINE_CHARS
from mailserver.ids.envelopes import envelope_muid, message_of
from mailserver.ids.muid import DEFAULT_NETWORK_TOPIC, Muid, muid
from mailserver.waku.envelope import Envelope, decode_envelope, encode_envelope
from tests.ids.vectors import CHECKSUM, HASHES, MESSAGE, NETWORK
from tests.waku.envelopes import RECORDED_RAWS

ENVELOPES = [decode_envelope(raw) for raw in RECORDED_RAWS[:3]]
FIRST = ENVELOPES[0]
OTHER_NETWORK = "/waku/2/rs/1/5"

Capture = pytest.CaptureFixture[str]
Said = tuple[int, list[str], list[str]]


def run(lines: Sequence[str], capsys: Capture, monkeypatch: pytest.MonkeyPatch, *flags: str) -> Said:
    """Give lines on stdin; return the exit code, the lines printed, and those on stderr without the program's name."""
    monkeypatch.setattr(sys, "stdin", io.StringIO("".join(f"{line}\n" for line in lines)))
    code = main(["id", *flags])
    printed = capsys.readouterr()
    return code, printed.out.splitlines(), [line.partition(": ")[2] for line in printed.err.splitlines()]


def name(envelope: Envelope, network: str = DEFAULT_NETWORK_TOPIC) -> Muid:
    return envelope_muid(network, envelope)


def ids(envelope: Envelope, network: str = DEFAULT_NETWORK_TOPIC) -> str:
    return f"{name(envelope, network).hex()} {message_of(envelope).hash(network).hex()}"


# What they are


def test_each_envelope_has_a_line_with_its_muid_and_message_hash(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = [ENVELOPES[0].raw.hex(), "", f"0x{ENVELOPES[1].raw.hex()}", ENVELOPES[2].raw.hex().upper()]

    assert run(lines, capsys, monkeypatch) == (0, [ids(envelope) for envelope in ENVELOPES], [])


def test_lines_are_read_from_a_file(capsys: Capture, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / "envelopes"
    file.write_text(FIRST.raw.hex())

    assert run([], capsys, monkeypatch, str(file)) == (0, [ids(FIRST)], [])


def test_ids_belong_to_a_network_topic(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    said = run([FIRST.raw.hex()], capsys, monkeypatch, "--network-topic", OTHER_NETWORK)

    assert said == (0, [ids(FIRST, OTHER_NETWORK)], [])


def test_messages_of_v2_have_the_published_ids(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = [message.encode().hex() for message, _ in HASHES]

    code, printed, said = run(lines, capsys, monkeypatch, "--v2", "--network-topic", NETWORK)

    assert code == 0
    assert [line.split()[1] for line in printed] == [expected for _, expected in HASHES]
    names = [line.split()[0] for line in printed]
    assert names[0] == CHECKSUM + MESSAGE.meta.hex()
    assert names[1:3] == ["-", "-"]
    assert said == [
        "line 2: a message without meta has no MUID",
        "line 3: a message with 64 bytes of meta has no MUID: it may have 32",
    ]


def test_json_has_an_object_for_each_line(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    _, printed, _ = run([FIRST.raw.hex()], capsys, monkeypatch, "--json")
    bare = replace(MESSAGE, meta=b"")
    _, of_v2, _ = run([bare.encode().hex()], capsys, monkeypatch, "--json", "--v2", "--network-topic", NETWORK)

    muid_text, hash_text = ids(FIRST).split()
    assert [json.loads(line) for line in printed] == [
        {"muid": muid_text, "message_hash": hash_text, "envelope_hash": FIRST.hash().hex()}
    ]
    assert [json.loads(line) for line in of_v2] == [{"muid": None, "message_hash": HASHES[1][1]}]


# What cannot be read


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("zz", "not hex, got zz"),
        ("z" * 1000, "not hex, got " + "z" * 80),
        ("\x1b[2J", r"not hex, got \x1b[2J"),
        ("c0", "expiry is missing"),
        (FIRST.raw.hex() + "00", f"envelope is followed by other bytes, got {len(FIRST.raw) + 1}"),
        (f"{FIRST.raw.hex()} {name(FIRST).hex()}", "not 1 word, got 2"),
        (
            encode_envelope(100, 100, b"news", b"data", 1).raw.hex(),
            "an envelope that was created 0 s after the beginning of 1970",
        ),
    ],
)
def test_line_that_cannot_be_read_is_named_and_the_others_are_not_lost(
    line: str, why: str, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    code, printed, said = run([line, FIRST.raw.hex()], capsys, monkeypatch)

    assert (code, printed, len(said)) == (1, [ids(FIRST)], 1)
    assert said[0].startswith(f"line 1: {why}")
    assert len(said[0]) < 200


def test_line_without_end_is_not_read_to_its_end(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    code, printed, said = run(["a" * MAX_LINE_CHARS], capsys, monkeypatch)

    assert (code, printed) == (2, [])
    assert said == [f"a line of - has {MAX_LINE_CHARS} characters or more"]


@pytest.mark.parametrize(
    ("content", "why"), [(None, "No such file or directory"), (b"\xff\n", "'utf-8' codec can't decode byte 0xff")]
)
def test_file_that_cannot_be_read_is_wrong_usage(
    content: bytes | None, why: str, capsys: Capture, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "envelopes"
    if content is not None:
        file.write_bytes(content)

    code, _, said = run([], capsys, monkeypatch, str(file))

    assert code == 2
    assert said[0].startswith(f"cannot read {file}: {why}")


# --check


def test_right_ids_of_both_kinds_are_ok(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    both = ids(FIRST).split()
    lines = [f"{FIRST.raw.hex()} {each}" for each in both]

    assert run(lines, capsys, monkeypatch, "--check") == (0, [f"ok {each}" for each in both], [])


def test_what_differs_of_an_envelope_is_named(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    later = encode_envelope(FIRST.expiry + 1, FIRST.ttl + 1, FIRST.topic, FIRST.data + b"x", FIRST.nonce)
    claimed = [name(later).hex(), name(FIRST, OTHER_NETWORK).hex(), message_of(later).hash(NETWORK).hex()]
    lines = [f"{FIRST.raw.hex()} {each}" for each in claimed]

    code, printed, said = run(lines, capsys, monkeypatch, "--check")

    assert code == 1
    assert printed == [
        f"differs: network topic, topic or data, ttl {claimed[0]}",
        f"differs: network topic, topic or data {claimed[1]}",
        f"differs: message hash {claimed[2]}",
    ]
    assert said == ["3 lines did not pass"]


def test_what_differs_of_a_v2_message_is_named(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    right = muid(NETWORK, MESSAGE.content_topic, MESSAGE.meta, MESSAGE.payload).hex()
    given = [
        MESSAGE,
        replace(MESSAGE, meta=b"other"),
        replace(MESSAGE, payload=b"other"),
        replace(MESSAGE, meta=b"", payload=b""),
        replace(MESSAGE, timestamp=1, version=7),
    ]
    lines = [f"{message.encode().hex()} {right}" for message in given]

    code, printed, _ = run(lines, capsys, monkeypatch, "--check", "--v2", "--network-topic", NETWORK)

    content = "network topic, content topic or payload"
    assert code == 1
    assert [line.removesuffix(f" {right}") for line in printed] == [
        "ok",
        "differs: meta",
        f"differs: {content}",
        f"differs: meta, {content}",
        "ok",
    ]


def test_json_names_what_differs(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    both = [name(FIRST).hex(), name(ENVELOPES[1]).hex()]

    code, printed, _ = run([f"{FIRST.raw.hex()} {each}" for each in both], capsys, monkeypatch, "--check", "--json")

    first, second = map(json.loads, printed)
    assert code == 1
    assert first == {"claimed": both[0], "ok": True, "differs": []}
    assert (second["ok"], second["claimed"]) == (False, both[1])
    assert "network topic, topic or data" in second["differs"]


@pytest.mark.parametrize(
    ("claimed", "why"),
    [
        ("", "not 2 words, got 1"),
        ("abc", "not hex, got abc"),
        ("ab" * 31, "MUID is not 33 to 64 bytes, got 31, limit 64"),
    ],
)
def test_claim_that_is_no_id_does_not_pass(
    claimed: str, why: str, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    code, printed, said = run([f"{FIRST.raw.hex()} {claimed}"], capsys, monkeypatch, "--check")

    assert (code, printed) == (1, [])
    assert said == [f"line 1: {why}", "1 line did not pass"]
