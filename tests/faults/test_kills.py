"""The kills in short, and that what looks at their outcome sees what is wrong."""

import argparse
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from mailserver.store.sqlite.schema import STORE_FILE
from tests.faults import kills
from tests.faults.kills.moments import after, grown, killing, then, wait_for
from tests.faults.kills.promises import Promises
from tests.faults.kills.wreck import look_at, rows_of
from tests.store.samples import copy_as_on_disk, make_store, new_envelopes, plain

A, B, C, D = (bytes([number]) * 32 for number in range(4))


@pytest.mark.integration
@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=pytest.mark.spark if kind == "compacting" else ()) for kind in kills.KINDS]
)
def test_nothing_confirmed_is_lost_by_kills(kind: str) -> None:
    arguments = argparse.Namespace(seed=1, only=[kind], **kills.QUICK)

    report = kills.run(arguments)

    assert report.broken == ()
    (row,) = report.rows
    assert row.figures["envelopes_compared"]


def promised(*confirmed: tuple[bytes, float, float], sent: tuple[bytes, ...] = ()) -> Promises:
    """Envelopes (hash, sent at, confirmed at), each with its hash as content; and some that were only sent."""
    promises = Promises()
    for each, sent_at, confirmed_at in confirmed:
        promises.send({each: each}, sent_at)
        promises.confirm([each], confirmed_at)
    for each in sent:
        promises.send({each: each}, 0)
    return promises


def test_what_was_confirmed_must_be_served_once_as_it_was_sent() -> None:
    promises = promised((A, 1, 2), (B, 3, 4), sent=(C,))

    assert list(promises.broken_by([(A, A), (B, B)])) == []
    assert list(promises.broken_by([(A, A), (B, B), (C, C)])) == []
    assert list(promises.broken_by([(A, A)])) == [f"confirmed, and not served: 1, {B.hex()[:16]}"]
    assert list(promises.broken_by([(A, A), (B, B), (B, B)])) == [f"served twice: 1, {B.hex()[:16]}"]
    assert list(promises.broken_by([(A, A), (B, A)])) == [f"served other bytes than were sent: {B.hex()}"]
    assert list(promises.broken_by([(A, A), (B, B), (D, D)])) == [f"served what was never sent: {D.hex()}"]


def test_retention_may_delete_only_the_oldest_and_what_is_too_much() -> None:
    promises = promised((A, 1, 2), (B, 3, 4), (C, 5, 6))

    assert list(promises.broken_by([(B, B), (C, C)], keeps=2)) == []
    assert list(promises.broken_by([(C, C)], keeps=1)) == []
    assert list(promises.broken_by([(C, C)], keeps=2)) == [
        "1 envelopes are left of 3 confirmed, though 2 are to be kept"
    ]
    assert list(promises.broken_by([(A, A), (C, C)], keeps=2)) == [f"deleted before older ones: 1, {B.hex()[:16]}"]


def test_of_envelopes_that_were_under_way_together_nobody_knows_which_is_older() -> None:
    promises = promised((A, 1, 4), (B, 3, 5), (C, 5, 6))

    assert list(promises.broken_by([(A, A), (C, C)], keeps=2)) == []


def test_what_waits_for_the_archive_must_not_go_before() -> None:
    promises = promised((A, 1, 2), (B, 3, 4))

    assert list(promises.broken_by([(B, B)], keeps=1, archived=[A])) == []
    assert list(promises.broken_by([(B, B)], keeps=1, archived=[])) == [f"deleted, and not archived: 1, {A.hex()[:16]}"]


def test_wreck_says_what_was_interrupted(tmp_path: Path) -> None:
    path = tmp_path / STORE_FILE
    make_store(path, new_envelopes(3))
    with plain(path, write=True) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("DELETE FROM envelopes WHERE seq = 1")
        index = path.with_name(f"{STORE_FILE}-shm").read_bytes()
        idle = copy_as_on_disk(path, tmp_path / "idle")
        idle.with_name(f"{STORE_FILE}-shm").write_bytes(index)
        connection.execute("DELETE FROM envelopes WHERE seq = 2")
        writing = copy_as_on_disk(path, tmp_path / "writing")
        writing.with_name(f"{STORE_FILE}-shm").write_bytes(index)  # what was counted before
        copying = copy_as_on_disk(path, tmp_path / "copying")
        begun = bytearray(path.with_name(f"{STORE_FILE}-shm").read_bytes())
        begun[128:132] = (2).to_bytes(4, sys.byteorder)
        copying.with_name(f"{STORE_FILE}-shm").write_bytes(begun)

    wrecks = {each: look_at(tmp_path / each / STORE_FILE, since=0) for each in ("idle", "writing", "copying")}
    assert {each: (wreck.in_commit, wreck.in_checkpoint) for each, wreck in wrecks.items()} == {
        "idle": (False, False),
        "writing": (True, False),
        "copying": (False, True),
    }
    assert (wrecks["idle"].rows, wrecks["idle"].first_seq, wrecks["idle"].last_seq) == (2, 2, 3)
    assert [row.seq for row in rows_of(tmp_path / "writing" / STORE_FILE)] == [3]


def test_process_is_killed_when_its_moment_comes(tmp_path: Path) -> None:
    file = tmp_path / "file"
    script = f"import time; open({str(file)!r}, 'w').write('x' * 10); time.sleep(60)"
    process = subprocess.Popen([sys.executable, "-c", script])

    with killing(process.pid, then(file.exists, lambda: grown(file, 10))):
        pass

    assert process.wait() == -signal.SIGKILL
    assert file.stat().st_size == 10


def test_moments_come_one_after_another() -> None:
    assert wait_for(then(after(0.001), lambda: after(0.001)))
