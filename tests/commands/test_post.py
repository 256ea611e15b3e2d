"""`waku-mailserver post` and `request` against a real daemon: what is sealed how, to whom, by whom."""

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from mailserver.codec.keys import PrivateKey
from mailserver.commands.cli import main
from mailserver.errors import Rejection
from mailserver.waku.acceptance import MAX_ENVELOPE_BYTES
from mailserver.waku.envelope import Envelope, decode_envelope
from mailserver.waku.payload import OpenedPayload, key_from_password, open_asymmetric, open_symmetric
from tests.integration.daemons import DEADLINE_S, PROGRAM, Daemon, running_daemon
from tests.pairs import private_key

pytestmark = pytest.mark.integration

MIN_REQUEST_POW = "0.01"

Capture = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """It asks for more proof of work of requests than it announces of envelopes."""
    folder = tmp_path_factory.mktemp("daemon")
    with running_daemon(folder, "--min-request-pow", MIN_REQUEST_POW) as running:
        yield running


@pytest.fixture
def key_file(tmp_path: Path) -> Path:
    """A private key that only its owner may read."""
    path = tmp_path / "key"
    path.touch(0o600)
    path.write_text(f"{private_key('signer').secret.hex()}\n")
    return path


def posted(daemon: Daemon, capsys: Capture, topic: str, *flags: str | Path) -> Envelope:
    """The envelope on this topic, which is posted so; it is asked for, too."""
    assert main(["post", str(daemon.enode), "--topic", topic, *map(str, flags)]) == 0
    confirmed = capsys.readouterr().out.split()
    return asked(daemon, capsys, topic, confirmed[1])


def asked(daemon: Daemon, capsys: Capture, topic: str, envelope_hash: str) -> Envelope:
    flags = ["--topic", topic, "--format", "raw", "--pow", MIN_REQUEST_POW]
    assert main(["request", str(daemon.enode), *flags]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    envelope = decode_envelope(bytes.fromhex(line))
    assert envelope.hash().hex() == envelope_hash
    return envelope


def opened(envelope: Envelope, topic: str) -> OpenedPayload:
    return open_symmetric(envelope.data, key_from_password(topic))


def failure(arguments: list[str], code: int, capsys: Capture) -> str:
    """Run what fails with one line; return what stands after the program's name."""
    assert main(arguments) == code
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.count("\n") == 1
    return printed.err.partition(": ")[2].rstrip("\n")


# The payload


def test_payload_may_be_empty(daemon: Daemon, capsys: Capture) -> None:
    assert opened(posted(daemon, capsys, "empty", "--payload", ""), "empty").payload == b""


def test_payload_comes_from_a_file_byte_for_byte(daemon: Daemon, capsys: Capture, tmp_path: Path) -> None:
    payload = bytes(range(256)) * 10
    (tmp_path / "payload").write_bytes(payload)

    envelope = posted(daemon, capsys, "file", "--payload-file", tmp_path / "payload")

    assert opened(envelope, "file").payload == payload


@pytest.mark.parametrize("payload", [b"", b"from a pipe\n\xff\x00"])
def test_payload_comes_from_standard_input(payload: bytes, daemon: Daemon, capsys: Capture) -> None:
    topic = f"stdin {len(payload)}"
    command = [*PROGRAM, "post", str(daemon.enode), "--topic", topic, "--payload-file", "-", "--json"]

    done = subprocess.run(command, input=payload, capture_output=True, timeout=DEADLINE_S, check=False)

    assert (done.returncode, done.stderr) == (0, b"")
    envelope = asked(daemon, capsys, topic, json.loads(done.stdout)["confirmed"])
    assert opened(envelope, topic).payload == payload


@pytest.mark.parametrize(
    ("name", "why"),
    [("missing", "No such file or directory"), (".", "Is a directory"), ("nul\0", "embedded null byte")],
)
def test_payload_that_cannot_be_read_is_named(
    name: str, why: str, daemon: Daemon, capsys: Capture, tmp_path: Path
) -> None:
    path = f"{tmp_path}/{name}"

    said = failure(["post", str(daemon.enode), "--topic", "x", "--payload-file", path], 2, capsys)

    assert said.startswith("cannot read ")
    assert said.endswith(why)


@pytest.mark.parametrize(
    ("length", "how_long"),
    [
        (MAX_ENVELOPE_BYTES + 1, f"an envelope may have at most {MAX_ENVELOPE_BYTES} bytes"),
        (MAX_ENVELOPE_BYTES, f", and an envelope may have at most {MAX_ENVELOPE_BYTES}"),
    ],
)
def test_payload_that_fits_into_no_envelope_is_refused(
    length: int, how_long: str, daemon: Daemon, capsys: Capture, tmp_path: Path
) -> None:
    (tmp_path / "payload").write_bytes(bytes(length))
    flags = ["--payload-file", str(tmp_path / "payload"), "--pow", "0"]

    said = failure(["post", str(daemon.enode), "--topic", "x", *flags], 2, capsys)

    assert said.startswith("the payload is too long: ")
    assert said.endswith(how_long)


@pytest.mark.parametrize("flags", [["--payload", "a", "--payload-file", "-"], ["--seal-to", "00", "--payload", "a"]])
def test_post_takes_one_payload_and_a_key_of_the_curve(flags: list[str], daemon: Daemon, capsys: Capture) -> None:
    with pytest.raises(SystemExit) as left:
        main(["post", str(daemon.enode), "--topic", "x", *flags])

    assert left.value.code == 2
    assert flags[2 if "-" in flags else 0] in capsys.readouterr().err


# To whom, and by whom


@pytest.mark.parametrize("prefix", ["", "0x", "04", "0x04"])
def test_payload_is_sealed_to_a_public_key(prefix: str, daemon: Daemon, capsys: Capture) -> None:
    recipient = private_key("recipient")

    envelope = posted(
        daemon, capsys, f"sealed {prefix}", "--payload", "psst", "--seal-to", prefix + recipient.public_key.hex()
    )

    sealed = open_asymmetric(envelope.data, recipient)
    assert (sealed.payload, sealed.signer) == (b"psst", None)


def test_payload_is_signed_with_the_key_of_a_file(daemon: Daemon, capsys: Capture, key_file: Path) -> None:
    recipient, signer = private_key("recipient"), private_key("signer").public_key

    to_all = posted(daemon, capsys, "signed", "--payload", "hear", "--sign-with", key_file)
    to_one = posted(
        daemon, capsys, "both", "--payload", "psst", "--sign-with", key_file, "--seal-to", recipient.public_key.hex()
    )

    assert opened(to_all, "signed").signer == signer
    assert open_asymmetric(to_one.data, recipient).signer == signer


def test_key_file_that_others_may_read_is_refused(daemon: Daemon, capsys: Capture, key_file: Path) -> None:
    key_file.chmod(0o644)

    said = failure(
        ["post", str(daemon.enode), "--topic", "x", "--payload", "x", "--sign-with", str(key_file)], 1, capsys
    )

    assert said == f"{key_file} is readable by others (mode 0644); run: chmod 600 {key_file}"


@pytest.mark.parametrize("content", ["", "xyz", "00" * 32, "11" * 31])
def test_file_without_a_key_is_refused(content: str, daemon: Daemon, capsys: Capture, key_file: Path) -> None:
    key_file.write_text(content)

    said = failure(
        ["post", str(daemon.enode), "--topic", "x", "--payload", "x", "--sign-with", str(key_file)], 1, capsys
    )

    assert said == f"{key_file} holds no private key (64 hex digits of a secp256k1 private key)"


def test_request_opens_what_is_sealed_to_the_key_of_a_file(daemon: Daemon, capsys: Capture, key_file: Path) -> None:
    to_us, to_another = (private_key(name).public_key.hex() for name in ("signer", "recipient"))
    for payload, key in (("for us", to_us), ("for another", to_another)):
        assert main(["post", str(daemon.enode), "--topic", "ours", "--payload", payload, "--seal-to", key]) == 0
    capsys.readouterr()

    flags = ["--topic", "ours", "--json", "--pow", MIN_REQUEST_POW, "--open-with", str(key_file)]
    assert main(["request", str(daemon.enode), *flags]) == 0

    found = [json.loads(line)["payload"] for line in capsys.readouterr().out.splitlines()]
    assert sorted(found, key=str) == [None, "for us"]


# Requests


def test_request_below_what_the_mailserver_asks_for_names_the_flag_that_raises_it(
    daemon: Daemon, capsys: Capture
) -> None:
    said = failure(["request", str(daemon.enode)], 1, capsys)

    assert said == f"{Rejection.POW_TOO_LOW.value} (it was sealed with 0.000002): give more with --pow"


def test_request_is_sealed_to_the_mailservers_public_key_by_name_or_in_full(daemon: Daemon, capsys: Capture) -> None:
    for key in ("node", daemon.enode.node_id.hex()):
        flags = ["--seal-to", key, "--topic", "nobody's", "--pow", MIN_REQUEST_POW]
        assert main(["request", str(daemon.enode), *flags]) == 0
        assert capsys.readouterr().err == "0 envelopes\n"

    other = PrivateKey(os.urandom(31) + b"\x01").public_key.hex()
    refused = failure(["request", str(daemon.enode), "--seal-to", other, "--pow", MIN_REQUEST_POW], 1, capsys)
    assert refused == Rejection.UNDECRYPTABLE.value
