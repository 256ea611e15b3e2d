"""mailserver.commands.printer: envelopes as a table, JSON lines and raw RLP; the count and the progress beside them."""

import contextlib
import io
import json
import sys

import pytest

from mailserver.codec.keys import PrivateKey
from mailserver.commands.printer import FORMATS, Printer
from mailserver.waku.envelope import MAX_U32, Envelope, Topic, decode_envelope, encode_envelope
from mailserver.waku.payload import key_from_password, seal_symmetric
from mailserver.waku.topics import topic_of
from tests.data import load
from tests.pairs import private_key

KEY, OTHER_KEY = bytes(range(32)), bytes(32)
CREATED = 1_792_324_800  # 2026-10-18 12:00:00
HEADING = "CREATED (UTC)        TOPIC        BYTES HASH               PAYLOAD"


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


def sealed(payload: bytes, *, topic: Topic | None = None, signing_key: PrivateKey | None = None) -> Envelope:
    data = seal_symmetric(payload, KEY, nonce=bytes(12), padding=bytes(255), signing_key=signing_key)
    return encode_envelope(CREATED + 60, 60, topic or topic_of("news"), data, 7)


def shown(form: str, *envelopes: Envelope, key: bytes | None = KEY, capsys: pytest.CaptureFixture[str]) -> list[str]:
    """The lines on stdout."""
    with Printer(form, key) as printer:
        printer.show(envelopes)
    captured = capsys.readouterr()
    assert captured.err == ""
    return captured.out.splitlines()


# Table


def test_table_has_a_heading_even_if_nothing_comes(capsys: pytest.CaptureFixture[str]) -> None:
    with Printer("table", None) as printer:
        printer.finish("")

    assert capsys.readouterr().out.splitlines() == [HEADING]


def test_table_has_no_heading_if_there_is_no_answer(capsys: pytest.CaptureFixture[str]) -> None:
    with Printer("table", None):
        pass

    assert capsys.readouterr().out == ""


def test_row_says_when_what_how_long_which_and_what_is_in_it(capsys: pytest.CaptureFixture[str]) -> None:
    envelope = sealed(b"good news")

    _, row = shown("table", envelope, capsys=capsys)

    assert row.split(maxsplit=5) == [
        "2026-10-18",
        "12:00:00",
        f"0x{topic_of('news').hex()}",
        str(len(envelope.raw)),
        f"{envelope.hash().hex()[:16]}..",
        "good news",
    ]
    assert row.index("good news") == HEADING.index("PAYLOAD")


@pytest.mark.parametrize("key", [None, OTHER_KEY])
def test_payload_that_does_not_open_is_a_dash(key: bytes | None, capsys: pytest.CaptureFixture[str]) -> None:
    _, row = shown("table", sealed(b"good news"), key=key, capsys=capsys)

    assert row.endswith(".. -")


def test_row_of_an_empty_payload_has_no_trailing_space(capsys: pytest.CaptureFixture[str]) -> None:
    _, row = shown("table", sealed(b""), capsys=capsys)

    assert row.endswith("..")


@pytest.mark.parametrize(
    ("payload", "text"),
    [
        ("h\u00e9llo w\u00f6rld \U0001f600".encode(), "h\u00e9llo w\u00f6rld \U0001f600"),
        (b"two\nlines\r\n\tand a tab", "two\\nlines\\r\\n\\tand a tab"),
        (b"\x1b[2J\x1b]0;title\x07", "\\x1b[2J\\x1b]0;title\\x07"),
        ("right\u202eto left\u2028".encode(), "right\\u202eto left\\u2028"),
        ("\u009b31m".encode(), "\\x9b31m"),
        (b"\xff\x00", "\\xff\\x00"),
    ],
)
def test_payload_is_one_line_that_cannot_command_the_terminal(
    payload: bytes, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    _, row = shown("table", sealed(payload), capsys=capsys)

    assert row.endswith(f".. {text}")


@pytest.mark.parametrize(
    ("expiry", "ttl", "created"),
    [(5, 10, "1969-12-31 23:59:55"), (0, MAX_U32, "1833-11-24 17:31:45"), (MAX_U32, 0, "2106-02-07 06:28:15")],
)
def test_time_of_a_forged_envelope_is_shown_all_the_same(
    expiry: int, ttl: int, created: str, capsys: pytest.CaptureFixture[str]
) -> None:
    envelope = encode_envelope(expiry, ttl, bytes(4), b"data", 0)

    _, row = shown("table", envelope, capsys=capsys)

    assert row.startswith(created)


def test_envelopes_are_shown_in_the_order_of_their_arrival(capsys: pytest.CaptureFixture[str]) -> None:
    with Printer("table", KEY) as printer:
        printer.show([sealed(b"1"), sealed(b"2")])
        printer.show([])
        printer.show([sealed(b"3")])

    assert [line[-1] for line in capsys.readouterr().out.splitlines()[1:]] == ["1", "2", "3"]


# JSON


def test_json_is_one_object_for_each_envelope_and_nothing_else(capsys: pytest.CaptureFixture[str]) -> None:
    envelope = sealed(b"good\nnews", signing_key=private_key("author"))

    (line,) = shown("json", envelope, capsys=capsys)

    assert json.loads(line) == {
        "hash": envelope.hash().hex(),
        "topic": "0x" + topic_of("news").hex(),
        "created": CREATED,
        "expiry": CREATED + 60,
        "ttl": 60,
        "pow": envelope.pow(),
        "size": len(envelope.raw),
        "raw": envelope.raw.hex(),
        "payload": "good\nnews",
        "payload_hex": b"good\nnews".hex(),
        "signer": private_key("author").public_key.hex(),
    }


def test_json_of_an_unsigned_payload_has_no_signer(capsys: pytest.CaptureFixture[str]) -> None:
    (line,) = shown("json", sealed(b"good news"), capsys=capsys)

    assert json.loads(line)["payload"] == "good news"
    assert json.loads(line)["signer"] is None


@pytest.mark.parametrize("key", [None, OTHER_KEY])
def test_json_of_what_does_not_open_has_no_payload(key: bytes | None, capsys: pytest.CaptureFixture[str]) -> None:
    (line,) = shown("json", sealed(b"good news"), key=key, capsys=capsys)

    fields = json.loads(line)
    assert (fields["payload"], fields["payload_hex"], fields["signer"]) == (None, None, None)


def test_json_is_ascii_and_keeps_bytes_that_are_no_text(capsys: pytest.CaptureFixture[str]) -> None:
    (line,) = shown("json", sealed("h\u00e9".encode() + b"\xff"), capsys=capsys)

    assert line.isascii()
    assert json.loads(line)["payload"] == "h\u00e9\\xff"
    assert json.loads(line)["payload_hex"] == "68c3a9ff"


# Raw


def test_raw_is_the_hex_of_the_received_bytes(capsys: pytest.CaptureFixture[str]) -> None:
    one, two = sealed(b"1"), sealed(b"2")

    assert shown("raw", one, two, key=None, capsys=capsys) == [one.raw.hex(), two.raw.hex()]


def test_envelope_of_the_deployed_client_is_opened(capsys: pytest.CaptureFixture[str]) -> None:
    vector = load("envelopes.json")["envelopes"][0]
    envelope = decode_envelope(bytes.fromhex(vector["raw"]))

    (line,) = shown("json", envelope, key=key_from_password(vector["symmetric_key_password"]), capsys=capsys)

    fields = json.loads(line)
    assert fields["payload_hex"] == vector["payload"]
    assert {name: fields[name] for name in ("raw", "hash", "expiry", "ttl", "pow")} == {
        name: vector[name] for name in ("raw", "hash", "expiry", "ttl", "pow")
    }


# The last word


@pytest.mark.parametrize("form", FORMATS)
def test_count_goes_to_stderr(form: str, capsys: pytest.CaptureFixture[str]) -> None:
    with Printer(form, None) as printer:
        printer.show([sealed(b"1"), sealed(b"2")])
        printer.show([sealed(b"3")])
        capsys.readouterr()
        printer.finish("")

    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == "3 envelopes\n"


def test_how_to_ask_for_the_rest_follows_the_number(capsys: pytest.CaptureFixture[str]) -> None:
    with Printer("raw", None) as printer:
        printer.finish(", more with --cursor 00")

    assert capsys.readouterr().err == "0 envelopes, more with --cursor 00\n"


# Progress


def test_progress_is_shown_on_a_terminal_while_the_rows_go_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setattr(sys, "stdout", io.StringIO())

    with Printer("raw", None) as printer:
        printer.show([sealed(b"1")] * 5)
        printer.show([sealed(b"2")] * 2)
        shown_meanwhile = terminal.getvalue()
        printer.finish("")

    assert shown_meanwhile == "\r\x1b[K5 envelopes\r\x1b[K7 envelopes"
    assert terminal.getvalue().startswith(shown_meanwhile + "\r\x1b[K7 envelopes\n")


def test_progress_is_wiped_away_when_it_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setattr(sys, "stdout", io.StringIO())

    with contextlib.suppress(LookupError), Printer("raw", None) as printer:
        printer.show([sealed(b"1")])
        raise LookupError

    assert terminal.getvalue() == "\r\x1b[K1 envelope\r\x1b[K"


@pytest.mark.parametrize(("stdout", "stderr"), [(Terminal, Terminal), (Terminal, io.StringIO), (io.StringIO,) * 2])
def test_no_progress_where_the_rows_are_seen_or_nobody_looks(
    stdout: type[io.StringIO], stderr: type[io.StringIO], monkeypatch: pytest.MonkeyPatch
) -> None:
    messages = stderr()
    monkeypatch.setattr(sys, "stdout", stdout())
    monkeypatch.setattr(sys, "stderr", messages)

    with Printer("table", None) as printer:
        printer.show([sealed(b"1")])
        printer.finish("")

    assert messages.getvalue() == "1 envelope\n"


def test_rows_have_left_when_the_printer_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    sink = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(io.BufferedWriter(sink), encoding="utf-8"))

    with Printer("raw", None) as printer:
        printer.show([sealed(b"1")])

    assert sink.getvalue() == sealed(b"1").raw.hex().encode() + b"\n"
