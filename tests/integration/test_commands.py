"""Commands against real daemons on loopback: what `request`, `post`, `enode` and `stats` do and print."""

import contextlib
import json
import re
import shutil
import signal
import socket
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from mailserver.codec.keys import Enode
from mailserver.rlpx import session as session_module
from mailserver.waku.envelope import decode_envelope
from mailserver.waku.topics import topic_of
from tests.integration.commands import NEWS, NODE_ID, SPORT, assert_fails, call, found, listening, post, request
from tests.integration.daemons import (
    Daemon,
    run_command,
    running_daemon,
)

pytestmark = pytest.mark.integration


def payloads(enode: Enode, *flags: str) -> list[object]:
    return [envelope["payload"] for envelope in found(enode, "--sym-key-password", NEWS, *flags)]


@contextlib.contextmanager
def taken_port() -> Iterator[int]:
    """A port that belongs to somebody who does not listen."""
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        yield int(holder.getsockname()[1])


# From a post to its history, over a restart


def test_posted_envelope_is_in_the_history_before_and_after_a_restart(data_dir: Path) -> None:
    with running_daemon(data_dir) as daemon:
        posted = run_command("post", daemon.enode, "--topic", NEWS, "--payload", "hello")
        before = run_command("request", daemon.enode, "--topic", NEWS, "--sym-key-password", NEWS)
        assert daemon.stop(signal.SIGTERM) == 0
        assert daemon.lines[-1].endswith("stopped")

    with running_daemon(data_dir) as daemon:
        after = run_command("request", daemon.enode, "--topic", NEWS, "--sym-key-password", NEWS)
        assert daemon.stop(signal.SIGINT) == 0
        assert daemon.lines[-1].endswith("stopped")

    assert (posted.returncode, posted.stderr) == (0, "")
    assert re.fullmatch(r"confirmed [0-9a-f]{64}\n", posted.stdout)
    assert (before.returncode, before.stderr) == (0, "1 envelope\n")
    assert before.stdout.endswith(f" {posted.stdout.split()[1][:16]}.. hello\n")
    assert (after.returncode, after.stdout) == (0, before.stdout)


def test_installed_command_is_the_same_program(shared: Daemon) -> None:
    command = shutil.which("waku-mailserver", path=str(Path(sys.executable).parent))
    assert command is not None, "the project is not installed in this environment"

    installed = run_command("enode", "--data-dir", shared.data_dir, program=[command])

    assert installed.stdout == f"{shared.enode}\n"


# request


def test_table_shows_the_newest_first_and_their_number(archive: Daemon) -> None:
    done = request(archive.enode, "--topic", NEWS, "--sym-key-password", NEWS, "--limit", "2", "--all")

    heading, *rows = done.stdout.splitlines()
    assert heading.split()[0] == "CREATED"
    assert sorted(row[-6:] for row in rows) == [f"{NEWS} {number}" for number in range(4)]
    assert all(f"0x{topic_of(NEWS).hex()}" in row for row in rows)
    assert rows == sorted(rows, key=lambda row: row[:19], reverse=True)
    assert done.stderr == "4 envelopes\n"


def test_payloads_stay_closed_without_the_password(archive: Daemon) -> None:
    assert [envelope["payload"] for envelope in found(archive.enode, "--all")] == [None] * 5
    assert payloads(archive.enode, "--topic", SPORT) == [None]


def test_raw_lines_are_the_envelopes_as_they_were_posted(archive: Daemon) -> None:
    done = request(archive.enode, "--topic", NEWS, "--format", "raw", "--all")

    envelopes = [decode_envelope(bytes.fromhex(line)) for line in done.stdout.splitlines()]
    assert {envelope.topic for envelope in envelopes} == {topic_of(NEWS)}
    assert [envelope.hash().hex() for envelope in envelopes] == [
        envelope["hash"] for envelope in found(archive.enode, "--topic", NEWS, "--all")
    ]


def test_topic_is_asked_for_by_name_or_by_its_four_bytes(archive: Daemon) -> None:
    by_name = found(archive.enode, "--topic", SPORT)
    by_hex = found(archive.enode, "--topic", f"0x{topic_of(SPORT).hex()}")

    assert len(by_name) == 1
    assert by_hex == by_name


def test_several_topics_are_asked_for_at_once(archive: Daemon) -> None:
    both = found(archive.enode, "--topic", SPORT, "--topic", NEWS, "--all")
    none = found(archive.enode, "--topic", "weather")

    assert len(both) == 5
    assert none == []


def test_history_up_to_a_moment_is_that_of_the_day_before_it(archive: Daemon) -> None:
    newest = int(str(found(archive.enode)[0]["created"]))

    assert found(archive.enode, "--to", str(newest), "--all") == found(archive.enode, "--all")
    assert found(archive.enode, "--to", str(newest + 86400 + 60)) == []
    assert found(archive.enode, "--to", "2020-01-01") == []


def test_history_is_asked_for_from_one_moment_to_another(archive: Daemon) -> None:
    every = found(archive.enode, "--all")
    newest, oldest = (int(str(every[at]["created"])) for at in (0, -1))

    within = ["--from", str(oldest), "--to", str(newest), "--all"]
    before = ["--from", "0", "--to", str(oldest - 1)]
    after = ["--from", datetime.fromtimestamp(newest + 1, UTC).isoformat()]
    assert found(archive.enode, *within) == every
    assert found(archive.enode, *before) == []
    assert found(archive.enode, *after) == []


@pytest.fixture
def far_west(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A machine whose time zone is far from UTC."""
    with monkeypatch.context() as zone:
        zone.setenv("TZ", "XYZ+11:30")
        time.tzset()
        yield
    time.tzset()


@pytest.mark.usefixtures("far_west")
def test_moment_without_a_zone_is_utc_and_with_one_is_not(archive: Daemon) -> None:
    newest = int(str(found(archive.enode)[0]["created"]))
    naive = datetime.fromtimestamp(newest, UTC).strftime("%Y-%m-%dT%H:%M:%S")

    in_utc = request(archive.enode, "--from", naive)
    an_hour_later = request(archive.enode, "--from", f"{naive}-01:00", "--to", str(newest + 7200))

    assert in_utc.stdout.count("\n") > 1
    assert an_hour_later.stderr == "0 envelopes\n"


def test_cursor_leads_from_page_to_page_to_the_same_end_as_all(archive: Daemon) -> None:
    whole = request(archive.enode, "--format", "raw", "--all")

    pages: list[list[str]] = []
    cursor: list[str] = []
    while True:
        page = request(archive.enode, "--format", "raw", "--limit", "2", *cursor)
        assert page.returncode == 0
        pages.append(page.stdout.splitlines())
        more = re.fullmatch(r"\d envelopes, more with (--cursor) ([0-9a-f]{72})\n", page.stderr)
        if more is None:
            break
        cursor = list(more.groups())

    assert [len(page) for page in pages] == [2, 2, 1]
    assert [line for page in pages for line in page] == whole.stdout.splitlines()
    assert whole.stderr == "5 envelopes\n"


def test_limit_beyond_the_mailservers_own_is_capped_and_a_cursor_given(archive: Daemon) -> None:
    for limit in ("0", "1000"):
        done = request(archive.enode, "--limit", limit)

        assert done.returncode == 0
        assert done.stderr.startswith("2 envelopes, more with --cursor ")


def test_payload_is_opened_with_the_password_it_was_sealed_with(shared: Daemon) -> None:
    post(shared.enode, "h\u00e9llo", "--sym-key-password", "our secret", topic="passwords")

    opened = found(shared.enode, "--topic", "passwords", "--sym-key-password", "our secret")
    closed = found(shared.enode, "--topic", "passwords", "--sym-key-password", "passwords")

    assert [envelope["payload"] for envelope in opened] == ["h\u00e9llo"]
    assert [envelope["payload"] for envelope in closed] == [None]


def test_request_with_another_password_is_answered_with_an_error(archive: Daemon) -> None:
    done = request(archive.enode, "--password", "guess")

    assert_fails(done, 1, "request could not be decrypted")


# post


def test_post_below_the_least_proof_of_work_is_refused(data_dir: Path) -> None:
    with running_daemon(data_dir, "--min-pow", "0.01") as daemon:
        arguments = ["post", str(daemon.enode), "--topic", NEWS, "--payload", "cheap", "--ttl", "3600"]

        refused = call(*arguments, "--pow", "0")
        assert_fails(refused, 1, "envelope refused: proof of work is too low")
        assert refused.stdout == ""
        assert found(daemon.enode) == []

        enough = call(*arguments)  # what the node asks for
        assert enough.returncode == 0


def test_ttl_of_a_post_is_the_envelopes(shared: Daemon) -> None:
    post(shared.enode, "short-lived", "--ttl", "15", topic="mayflies")

    (envelope,) = found(shared.enode, "--topic", "mayflies")
    assert envelope["ttl"] == 15
    assert envelope["created"] == int(str(envelope["expiry"])) - 15


def test_envelope_that_expires_before_its_work_is_found_is_not_posted(data_dir: Path) -> None:
    with running_daemon(data_dir, "--min-pow", "1e12") as daemon:  # more than --pow allows: no luck is enough
        done = call("post", str(daemon.enode), "--topic", "status", "--payload", "hello", "--ttl", "1")

    assert_fails(done, 1, "no proof of work within 1 s: ")


def test_topic_of_a_post_may_be_four_bytes(shared: Daemon) -> None:
    post(shared.enode, "to whom it may concern", "--sym-key-password", "key", topic="0x01020304")

    (envelope,) = found(shared.enode, "--topic", "0x01020304", "--sym-key-password", "key")
    assert (envelope["topic"], envelope["payload"]) == ("0x01020304", "to whom it may concern")


@pytest.mark.parametrize("command", ["post", "request"])
def test_nobody_listens(command: str) -> None:
    more = ["--topic", NEWS, "--payload", "x"] if command == "post" else ["--format", "json"]

    with taken_port() as port:
        done = call(command, str(Enode(NODE_ID, "127.0.0.1", port)), *more)

    assert_fails(done, 1, f"cannot connect to 127.0.0.1:{port}: ")
    assert done.stdout == ""


@pytest.mark.parametrize("command", ["post", "request"])
def test_somebody_hangs_up_at_once(command: str) -> None:
    more = ["--topic", NEWS, "--payload", "x"] if command == "post" else ["--format", "json"]

    with listening(close_at_once=True) as (enode, _):
        done = call(command, str(enode), *more)

    assert_fails(done, 1, "")
    assert done.stdout == ""


def test_somebody_listens_and_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session_module, "HANDSHAKE_TIMEOUT_S", 0.25)

    with listening(close_at_once=False) as (enode, _):
        done = call("post", str(enode), "--topic", NEWS, "--payload", "x")

    assert_fails(done, 1, f"cannot connect to {enode.host}:{enode.port}: no handshake within 0.25 s")


def test_node_with_another_key_than_the_enodes_is_left(shared: Daemon) -> None:
    imposter = Enode(NODE_ID, shared.enode.host, shared.enode.port)

    done = call("post", str(imposter), "--topic", "imposters", "--payload", "x")

    assert_fails(done, 1, "")
    assert found(shared.enode, "--topic", "imposters") == []


# enode and stats


def test_stats_are_the_same_beside_the_daemon_and_after_it(data_dir: Path) -> None:
    with running_daemon(data_dir) as daemon:
        post(daemon.enode, "one")
        post(daemon.enode, "two", topic=SPORT)
        envelopes = found(daemon.enode)

        beside = run_command("stats", "--json", "--data-dir", data_dir)
        assert daemon.stop() == 0

    after = run_command("stats", "--json", "--data-dir", data_dir)
    created = [int(str(envelope["created"])) for envelope in envelopes]
    assert json.loads(beside.stdout) == {
        "envelopes": 2,
        "bytes": sum(int(str(envelope["size"])) for envelope in envelopes),
        "topics": 2,
        "oldest": min(created),
        "newest": max(created),
    }
    assert after.stdout == beside.stdout


# For programs


def test_commands_of_clients_print_json(shared: Daemon) -> None:
    posted = call("post", str(shared.enode), "--topic", "json", "--payload", "hello", "--json")
    asked = call("request", str(shared.enode), "--topic", "json", "--json")
    enode = call("enode", "--data-dir", shared.data_dir, "--json")

    assert json.loads(posted.stdout) == {"confirmed": json.loads(asked.stdout)["hash"]}
    assert json.loads(enode.stdout) == {
        "enode": str(shared.enode),
        "node_id": shared.enode.node_id.hex(),
        "host": shared.enode.host,
        "port": shared.enode.port,
    }
