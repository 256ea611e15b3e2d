"""`ids` and `fetch` against a real daemon on loopback: what they do and print."""

import io
import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from mailserver.ids.envelopes import envelope_muid
from mailserver.ids.muid import DEFAULT_NETWORK_TOPIC
from mailserver.waku.envelope import Envelope, decode_envelope
from tests.integration.commands import NEWS, NODE_ID, SPORT, assert_fails, call, listening, post, request
from tests.integration.daemons import Daemon, run_command, running_daemon

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """A daemon with five posted envelopes: four of news, then one of sport."""
    with running_daemon(tmp_path_factory.mktemp("ids"), "--max-request-limit", "3") as running:
        for number in range(4):
            post(running.enode, f"{NEWS} {number}", "--ttl", str(60 + number))  # so that no metadata is the same
        post(running.enode, "goal", "--ttl", "70", topic=SPORT)
        yield running


@pytest.fixture(scope="module")
def envelopes(server: Daemon) -> list[Envelope]:
    """They, as history has them."""
    raw = request(server.enode, "--format", "raw", "--all").stdout.split()
    return [decode_envelope(bytes.fromhex(line)) for line in raw]


def ids(server: Daemon, *flags: str) -> subprocess.CompletedProcess[str]:
    return call("ids", str(server.enode), *flags)


def fetch(server: Daemon, *flags: str) -> subprocess.CompletedProcess[str]:
    return call("fetch", str(server.enode), *flags)


def muids(envelopes: list[Envelope]) -> list[str]:
    return [envelope_muid(DEFAULT_NETWORK_TOPIC, envelope).hex() for envelope in envelopes]


def test_ids_are_those_of_the_history(server: Daemon, envelopes: list[Envelope]) -> None:
    done = ids(server)

    assert (done.returncode, done.stderr) == (0, "5 ids\n")
    assert done.stdout.split() == muids(envelopes)


@pytest.mark.parametrize("flags", [("--format", "json"), ("--json",)])
def test_ids_as_json_say_what_the_metadata_says(
    server: Daemon, envelopes: list[Envelope], flags: tuple[str, ...]
) -> None:
    lines = [json.loads(line) for line in ids(server, *flags).stdout.splitlines()]

    assert lines == [
        {"muid": name, "created": each.created, "ttl": each.ttl, "nonce": each.nonce}
        for name, each in zip(muids(envelopes), envelopes, strict=True)
    ]


def test_cursor_that_is_printed_leads_to_the_rest(server: Daemon, envelopes: list[Envelope]) -> None:
    for order in ([], ["--arrival"]):
        first = ids(server, *order, "--limit", "3")
        assert first.stderr.startswith("3 ids, more with --cursor ")
        rest = ids(server, *order, "--cursor", first.stderr.split()[-1])
        whole = ids(server, *order, "--limit", "2", "--all")

        assert first.stdout + rest.stdout == whole.stdout
        assert sorted(whole.stdout.split()) == sorted(muids(envelopes))
        assert whole.stderr.startswith("5 ids")


def test_what_arrives_later_follows_the_cursor_of_a_list_by_arrival(data_dir: Path) -> None:
    with running_daemon(data_dir) as daemon:
        post(daemon.enode, "first")
        first = ids(daemon, "--arrival")
        assert "what arrives later with --cursor " in first.stderr
        post(daemon.enode, "second")

        later = ids(daemon, "--arrival", "--cursor", first.stderr.split()[-1])
        whole = ids(daemon, "--arrival")

    assert len(later.stdout.split()) == 1
    assert whole.stdout == first.stdout + later.stdout


def test_ids_are_filtered_by_topic_time_and_metadata(server: Daemon, envelopes: list[Envelope]) -> None:
    sport = [each for each in envelopes if each.topic == envelopes[0].topic]
    (other,) = {each.topic for each in envelopes} - {sport[0].topic} or {sport[0].topic}
    names = muids(envelopes)

    for topic in (sport[0].topic, other):
        listed = ids(server, "--topic", "0x" + topic.hex()).stdout.split()
        assert listed == [name for name, each in zip(names, envelopes, strict=True) if each.topic == topic]
    assert ids(server, "--from", "1", "--to", "2").stdout == ""
    assert ids(server, "--prefix", names[2][64:]).stdout.split() == [names[2]]
    low, high = sorted(name[64:] for name in names)[1::2]
    between = ids(server, "--metadata", low, high).stdout.split()
    assert between == [name for name in names if low <= name[64:] < high]


def test_envelopes_are_fetched_by_the_ids_that_were_listed(server: Daemon, envelopes: list[Envelope]) -> None:
    asked = muids([envelopes[3], envelopes[1]])

    done = fetch(server, "--id", asked[0], "--id", "0x" + asked[1], "--id", asked[0], "--format", "raw")

    assert (done.returncode, done.stderr) == (0, "2 envelopes\n")
    assert done.stdout.split() == [envelopes[3].raw.hex(), envelopes[1].raw.hex()]


def test_ids_of_a_file_are_fetched_and_opened(server: Daemon, envelopes: list[Envelope], tmp_path: Path) -> None:
    names = tmp_path / "names"
    names.write_text("\n\n".join(muids(envelopes)) + "\n")

    done = fetch(server, "--ids-file", str(names), "--json", "--sym-key-password", NEWS)

    payloads = [json.loads(line)["payload"] for line in done.stdout.splitlines()]
    assert done.returncode == 0, done.stderr
    assert sorted(payload for payload in payloads if payload) == [f"{NEWS} {number}" for number in range(4)]


def test_list_is_piped_into_fetch(server: Daemon, envelopes: list[Envelope], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(ids(server, "--limit", "2").stdout))

    fetched = fetch(server, "--ids-file", "-", "--format", "raw")

    assert fetched.stdout.split() == [each.raw.hex() for each in envelopes[:2]]


def test_missing_envelope_is_named(server: Daemon, envelopes: list[Envelope]) -> None:
    (there,) = muids(envelopes[:1])
    missing = [f"{number:0104x}" for number in range(1, 13)]

    one = fetch(server, "--id", there, "--id", missing[0], "--format", "raw")
    many = fetch(server, *(word for name in missing for word in ("--id", name)))

    assert one.returncode == 1
    assert one.stdout.split() == [envelopes[0].raw.hex()]
    assert one.stderr == f"1 envelope\nwaku-mailserver: the mailserver does not have 1 envelope: {missing[0]}\n"
    assert many.returncode == 1
    assert many.stderr.endswith(f"does not have 12 envelopes: {', '.join(missing[:10])} and 2 more\n")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("00" * 32, "MUID is not 33 to 64 bytes, got 32, limit 64"),
        ("00" * 600, "MUID is not hex|MUID is not 33 to 64 bytes"),
        ("no hex", "MUID is not hex, got no hex"),
    ],
)
def test_file_of_ids_that_are_none_is_refused_with_the_line(text: str, why: str, tmp_path: Path) -> None:
    names = tmp_path / "names"
    names.write_text(f"{'00' * 33}\n{text}\n")

    done = call("fetch", f"enode://{NODE_ID.hex()}@127.0.0.1:1", "--ids-file", names)

    assert done.returncode == 2
    assert "line 2 of --ids-file: " in done.stderr
    assert any(each in done.stderr for each in why.split("|"))


def test_file_of_ids_that_is_not_there_is_named(tmp_path: Path) -> None:
    done = call("fetch", f"enode://{NODE_ID.hex()}@127.0.0.1:1", "--ids-file", tmp_path / "none")

    assert_fails(done, 2, f"cannot read --ids-file {tmp_path / 'none'}: No such file or directory")


def test_wrong_password_is_refused(server: Daemon) -> None:
    for command in (ids(server, "--password", "guess"), fetch(server, "--id", "00" * 52, "--password", "guess")):
        assert_fails(command, 1, "request could not be decrypted")


def test_node_that_is_not_there_is_named() -> None:
    with listening(close_at_once=True) as (enode, _):
        assert_fails(call("ids", str(enode)), 1, "cannot connect to 127.0.0.1:")


@pytest.mark.parametrize(
    "flags",
    [
        ["--prefix", "xx"],
        ["--prefix", "00" * 33],
        ["--metadata", "00"],
        ["--cursor", "00" * 37],
        ["--limit", "-1"],
        ["--prefix", "00", "--metadata", "00", "01"],
    ],
)
def test_wrong_flags_are_usage_errors(flags: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        call("ids", f"enode://{NODE_ID.hex()}@127.0.0.1:1", *flags)

    assert ended.value.code == 2


# Another network topic


def test_network_topic_is_changed_by_a_command_and_by_nothing_else(data_dir: Path) -> None:
    other = ("--network-topic", "/waku/2/rs/1/5")
    with running_daemon(data_dir) as daemon:
        post(daemon.enode, "hello")
        before = ids(daemon)
        fetched = fetch(daemon, "--id", before.stdout.strip(), "--format", "raw")
        envelope = decode_envelope(bytes.fromhex(fetched.stdout.strip()))
        in_use = call("reindex", "--data-dir", data_dir, *other)
        daemon.stop()

    refused = run_command("run", "--data-dir", data_dir, "--listen", "127.0.0.1:0", *other)
    changed = call("reindex", "--data-dir", data_dir, *other)
    again = call("reindex", "--data-dir", data_dir, *other, "--json")
    with running_daemon(data_dir, *other) as daemon:
        after = ids(daemon)
        found = fetch(daemon, "--id", after.stdout.strip(), "--format", "raw")

    assert in_use.returncode == 1
    assert refused.returncode == 1
    assert "belong to the network topic /waku/2/rs/1/4, not /waku/2/rs/1/5" in refused.stderr
    assert (changed.returncode, changed.stdout) == (0, "1 envelope: message ids belong to /waku/2/rs/1/5\n")
    assert json.loads(again.stdout) == {"envelopes": 1, "network_topic": "/waku/2/rs/1/5"}
    assert after.stdout.strip() == envelope_muid("/waku/2/rs/1/5", envelope).hex()
    assert found.stdout == fetched.stdout
