"""mailserver.handoff.archived: the record of what is archived, and the lock of the run that reads the store."""

import contextlib
import json
import os
import signal
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from datetime import date
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mailserver.handoff.archived import Archived, ArchivedError, CompactionRunning
from mailserver.handoff.json_records import MAX_RECORD_BYTES
from mailserver.store.sqlite import handoff as handoff_module
from mailserver.store.sqlite.handoff import (
    archived_file,
    compaction_lock,
    compaction_running,
    pruning_turn,
    read_archived,
    write_archived,
)
from mailserver.store.sqlite.schema import STORE_FILE
from tests.store.samples import names_in

DAY = (date(2026, 11, 20) - date(1970, 1, 1)).days
RECORD = Archived("0123abcd", "s3://bucket/archive", 1_795_236_010, {DAY: 12345, DAY + 1: 20000})


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return tmp_path / STORE_FILE


# The record


def test_record_lies_beside_the_store_and_is_named_after_it(store: Path) -> None:
    write_archived(store, RECORD)

    assert names_in(store.parent) == {f"{STORE_FILE}-archived.json"}
    assert archived_file(store) == store.parent / f"{STORE_FILE}-archived.json"
    assert stat.S_IMODE(archived_file(store).stat().st_mode) == 0o600


def test_record_is_json_that_people_can_read(store: Path) -> None:
    write_archived(store, RECORD)

    assert json.loads(archived_file(store).read_text(encoding="ascii")) == {
        "version": 1,
        "store_id": "0123abcd",
        "archive": "s3://bucket/archive",
        "verified_at": 1_795_236_010,
        "days": {"2026-11-20": 12345, "2026-11-21": 20000},
    }


@given(
    st.builds(
        Archived,
        st.text(st.characters(exclude_categories=["Cs"])),
        st.text(st.characters(exclude_categories=["Cs"])),
        st.integers(0, 2**40),
        st.dictionaries(st.integers(0, 100_000), st.integers(0, 2**63 - 1)),
    )
)
def test_record_is_read_as_it_was_written(tmp_path_factory: pytest.TempPathFactory, record: Archived) -> None:
    store = tmp_path_factory.mktemp("record") / STORE_FILE

    write_archived(store, record)

    assert read_archived(store) == record


def test_no_record_is_none(store: Path) -> None:
    assert read_archived(store) is None


def test_later_record_replaces_the_earlier(store: Path) -> None:
    write_archived(store, RECORD)
    write_archived(store, Archived("other", "elsewhere", 2, {}))

    assert read_archived(store) == Archived("other", "elsewhere", 2, {})


def test_record_that_cannot_be_written_leaves_the_earlier(store: Path) -> None:
    write_archived(store, RECORD)
    archived_file(store).with_name(f"{archived_file(store).name}.tmp").mkdir()

    with pytest.raises(OSError, match="Is a directory"):
        write_archived(store, Archived("other", "elsewhere", 2, {}))

    assert read_archived(store) == RECORD


def test_what_a_later_program_adds_is_passed_over(store: Path) -> None:
    write_archived(store, RECORD)
    change(store, more="of it")

    assert read_archived(store) == RECORD


def change(store: Path, **fields: object) -> None:
    """Change fields of the record; Ellipsis takes one away."""
    record = json.loads(archived_file(store).read_text()) | fields
    left = {name: value for name, value in record.items() if value is not ...}
    archived_file(store).write_text(json.dumps(left))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("version", ...),
        ("version", 2),
        ("version", "1"),
        ("store_id", ...),
        ("store_id", None),
        ("store_id", 7),
        ("archive", ...),
        ("archive", ["s3"]),
        ("verified_at", ...),
        ("verified_at", "now"),
        ("verified_at", 1.5),
        ("verified_at", True),
        ("days", ...),
        ("days", []),
        ("days", {"2026-11-20": "12345"}),
        ("days", {"2026-11-20": True}),
        ("days", {"2026-11-20": -1}),
        ("days", {"2026-11-20": 2**63}),
        ("days", {"2026-11-20": None}),
        ("days", {"20261120": 12345}),
        ("days", {"2026-W47-5": 12345}),
        ("days", {"2026-11-31": 12345}),
        ("days", {"20412": 12345}),
        ("days", {"": 12345}),
    ],
)
def test_record_that_is_not_understood_is_an_error(store: Path, field: str, value: Any) -> None:
    write_archived(store, RECORD)
    change(store, **{field: value})

    with pytest.raises(ArchivedError, match="is no record of the compaction") as refused:
        read_archived(store)

    assert str(archived_file(store)) in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("content", [b"", b"\n", b"[]", b"1", b"null", b"{", b"[" * 100_000, b"not JSON"])
def test_file_that_is_no_record_is_an_error(store: Path, content: bytes) -> None:
    archived_file(store).write_bytes(content)

    with pytest.raises(ArchivedError, match="is no record of the compaction"):
        read_archived(store)


def test_each_truncation_of_a_record_is_an_error(store: Path) -> None:
    write_archived(store, RECORD)
    whole = archived_file(store).read_bytes()

    for end in range(len(whole.rstrip())):
        archived_file(store).write_bytes(whole[:end])
        with pytest.raises(ArchivedError):
            read_archived(store)


def test_record_that_cannot_be_read_is_an_error(store: Path) -> None:
    archived_file(store).mkdir()

    with pytest.raises(ArchivedError, match="cannot read"):
        read_archived(store)


@pytest.mark.parametrize(
    "content",
    [b"\xff\xfe", '{"version": 1}'.encode("utf-16"), b" " * (MAX_RECORD_BYTES + 1)],
    ids=["bytes", "utf-16", "long"],
)
def test_what_is_no_text_of_ours_is_no_record(store: Path, content: bytes) -> None:
    archived_file(store).write_bytes(content)

    with pytest.raises(ArchivedError, match="is no record of the compaction"):
        read_archived(store)


# The lock


def test_lock_is_named_after_the_store_and_says_who_holds_it(store: Path) -> None:
    with compaction_lock(store):
        assert (store.parent / f"{STORE_FILE}-compaction.lock").read_text() == f"{os.getpid()}\n"


def test_second_run_is_refused_with_the_process_of_the_first(store: Path) -> None:
    with compaction_lock(store), pytest.raises(CompactionRunning) as refused, compaction_lock(store):
        pass

    assert refused.value.pid == str(os.getpid())
    assert str(refused.value) == f"another compaction (pid {os.getpid()}) reads this store"


def test_lock_is_free_after_a_run_and_after_one_that_failed(store: Path) -> None:
    with pytest.raises(LookupError), compaction_lock(store):
        raise LookupError

    with compaction_lock(store):
        pass
    assert not compaction_running(store)


def test_run_is_seen_as_long_as_it_lasts(store: Path) -> None:
    assert not compaction_running(store)

    with compaction_lock(store):
        assert compaction_running(store)
        assert compaction_running(store)

    assert not compaction_running(store)


def test_looking_for_a_run_leaves_nothing_behind(store: Path) -> None:
    assert not compaction_running(store)

    assert names_in(store.parent) == set()


def test_runs_on_two_stores_do_not_meet(tmp_path: Path) -> None:
    with compaction_lock(tmp_path / "one.db"):
        assert not compaction_running(tmp_path / "two.db")
        with compaction_lock(tmp_path / "two.db"):
            pass


@contextlib.contextmanager
def run_of_another_process(store: Path) -> Iterator[subprocess.Popen[str]]:
    program = (
        "import sys, pathlib\n"
        "from mailserver.store.sqlite.handoff import compaction_lock\n"
        "with compaction_lock(pathlib.Path(sys.argv[1])):\n"
        "    print('locked', flush=True)\n"
        "    sys.stdin.read()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program, str(store)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "locked\n"
            yield process
        finally:
            process.kill()


def test_lock_ends_with_its_process_however_that_ends(store: Path) -> None:
    with run_of_another_process(store) as process:
        assert compaction_running(store)
        with pytest.raises(CompactionRunning, match=f"pid {process.pid}"), compaction_lock(store):
            pass

        process.send_signal(signal.SIGKILL)
        process.wait()

        assert not compaction_running(store)
        with compaction_lock(store):
            pass


def test_batch_has_its_turn_only_while_no_run_is_under_way(store: Path) -> None:
    with pruning_turn(store) as before_any_run:
        assert before_any_run
    with compaction_lock(store), pruning_turn(store) as beside_a_run:
        assert not beside_a_run
    with pruning_turn(store) as after_the_run:
        assert after_the_run


def test_run_that_starts_waits_for_the_batch_that_has_begun(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with compaction_lock(store):
        pass  # from now on there is a lock file
    events: list[str] = []
    waiting = threading.Event()
    monkeypatch.setattr("time.sleep", lambda _: waiting.set())

    def run() -> None:
        with compaction_lock(store):
            events.append("run")

    thread = threading.Thread(target=run)
    with pruning_turn(store) as ours:
        assert ours
        thread.start()
        assert waiting.wait(15)
        events.append("batch has ended")
    thread.join(15)

    assert events == ["batch has ended", "run"]


def test_batch_that_does_not_end_is_not_waited_for_for_ever(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with compaction_lock(store):
        pass
    monkeypatch.setattr(handoff_module, "_PRUNING_LIMIT_S", 0.0)

    with (
        pruning_turn(store),
        pytest.raises(TimeoutError, match="has been deleting one batch"),
        compaction_lock(store),
    ):
        pass


def test_two_batches_do_not_keep_each_other_out(store: Path) -> None:
    with compaction_lock(store):
        pass

    with pruning_turn(store) as one, pruning_turn(store) as other:
        assert one
        assert other


def test_lock_file_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError), compaction_lock(tmp_path / "missing" / STORE_FILE):
        pass
