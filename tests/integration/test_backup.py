"""`waku-mailserver backup` and `check` beside real daemons, and a daemon on what was backed up."""

import contextlib
import json
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from mailserver.codec.keys import Enode
from mailserver.data_dir.folder import KEY_FILE
from mailserver.store.sqlite.schema import STORE_FILE
from tests.integration.daemons import Daemon, run_command, running_daemon
from tests.store.samples import names_in

pytestmark = pytest.mark.integration

TOPIC = "news"


def post(enode: Enode, payload: str) -> None:
    done = run_command("post", enode, "--topic", TOPIC, "--payload", payload, "--pow", "0.000002")
    assert done.returncode == 0, done.stderr


def payloads(enode: Enode) -> set[str]:
    done = run_command("request", enode, "--topic", TOPIC, "--all", "--json", "--sym-key-password", TOPIC)
    assert done.returncode == 0, done.stderr
    return {json.loads(line)["payload"] for line in done.stdout.splitlines()}


@contextlib.contextmanager
def posting(daemon: Daemon) -> Iterator[list[str]]:
    """Post one envelope after the other, in the background; yields the confirmed ones."""
    confirmed: list[str] = []
    stop = threading.Event()

    def run() -> None:
        while not stop.is_set():
            payload = f"during {len(confirmed)}"
            post(daemon.enode, payload)
            confirmed.append(payload)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield confirmed
    finally:
        stop.set()
        thread.join()


def test_daemon_on_a_backup_serves_all_that_was_confirmed_before_it(tmp_path: Path) -> None:
    with running_daemon(tmp_path / "data") as daemon, posting(daemon) as confirmed:
        post(daemon.enode, "first")
        held = {"first", *confirmed}
        done = run_command("backup", tmp_path / "copy", "--data-dir", tmp_path / "data", "--json")
        first_enode = daemon.enode
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    made = json.loads(done.stdout)
    assert made["folder"] == str(tmp_path / "copy")
    assert made["files"][:2] == [STORE_FILE, KEY_FILE]
    assert made["envelopes"] >= len(held)
    assert run_command("check", "--data-dir", tmp_path / "copy").returncode == 0

    with running_daemon(tmp_path / "copy") as restored:
        restored.wait_for_line("store restored from a backup identity=")
        assert restored.enode.node_id == first_enode.node_id
        assert held <= payloads(restored.enode)
        restored.stop()
    with running_daemon(tmp_path / "copy") as again:
        assert "restored" not in again.log


def test_what_came_after_the_backup_is_fetched_from_a_trusted_peer(tmp_path: Path) -> None:
    with running_daemon(tmp_path / "data") as daemon:
        post(daemon.enode, "before")
        assert run_command("backup", tmp_path / "copy", "--data-dir", tmp_path / "data").returncode == 0
        daemon.stop()

    with running_daemon(tmp_path / "other") as other:
        post(other.enode, "after")
        with running_daemon(tmp_path / "copy", "--trusted-peers", str(other.enode)) as restored:
            restored.wait_for_line("caught up source=")
            assert payloads(restored.enode) == {"before", "after"}


def test_backup_and_check_need_no_daemon(tmp_path: Path) -> None:
    with running_daemon(tmp_path / "data") as daemon:
        post(daemon.enode, "before")
        daemon.stop()

    done = run_command("backup", tmp_path / "copy", "--data-dir", tmp_path / "data")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"{tmp_path / 'copy'}: 1 envelope, ")

    before = names_in(tmp_path / "copy")
    checked = run_command("check", "--data-dir", tmp_path / "copy")
    assert (checked.returncode, checked.stderr) == (0, "")
    assert checked.stdout.endswith(": sound\n")
    assert names_in(tmp_path / "copy") == before


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    with running_daemon(tmp_path / "data"):
        done = run_command("backup", tmp_path / "data", "--data-dir", tmp_path / "data")

    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr == f"waku-mailserver: {tmp_path / 'data'} is not empty: nothing is overwritten\n"


def test_check_beside_a_daemon_that_stores_finds_it_sound(tmp_path: Path) -> None:
    with running_daemon(tmp_path / "data") as daemon, posting(daemon):
        post(daemon.enode, "first")
        done = run_command("check", "--data-dir", tmp_path / "data", "--json")

    assert done.returncode == 0, done.stdout
    assert json.loads(done.stdout)["sound"] is True


def test_damage_is_told_of_with_exit_code_1(tmp_path: Path) -> None:
    with running_daemon(tmp_path / "data") as daemon:
        post(daemon.enode, "before")
        daemon.stop()
    path = tmp_path / "data" / STORE_FILE
    path.write_bytes(path.read_bytes()[:-20_000])

    done = run_command("check", "--data-dir", tmp_path / "data")
    as_json = run_command("check", "--data-dir", tmp_path / "data", "--json")

    assert done.returncode == as_json.returncode == 1
    assert done.stderr == as_json.stderr == ""
    assert "the file is cut off" in done.stdout
    assert "restore a backup" in done.stdout
    assert done.stdout.endswith("1 envelope can be salvaged; how many there were is unknown\n")
    (damage, *_) = json.loads(as_json.stdout)["damage"]
    assert damage["kind"] == "pages"
    assert damage["count"] >= 1
    assert "the file is cut off" in damage["what"][0]
