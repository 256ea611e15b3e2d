"""mailserver.store.sqlite.repair.check: damage of every kind is found in real files, and nothing is changed."""

import asyncio
import contextlib
import re
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mailserver.errors import StoreError
from mailserver.handoff.archived import Archived
from mailserver.store.sqlite.handoff import archived_file, compaction_file, write_archived
from mailserver.store.sqlite.repair import check as check_module
from mailserver.store.sqlite.repair.check import check_store
from mailserver.store.sqlite.repair.report import MAX_SHOWN, CheckReport, DamageKind
from mailserver.store.sqlite.schema import PAGE_BYTES, STORE_FILE
from mailserver.store.sqlite.store import open_store
from mailserver.store.sqlite.wal import wal_file
from mailserver.waku.envelope import Topic
from tests.mailservers import NOW, fill, make_envelope, make_envelopes, stored
from tests.store.samples import change, contents_of, copy_as_on_disk, make_store, names_in, plain, rows

DAY = 86_400
TODAY = NOW // DAY


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A sound store of 300 envelopes, some pages of each tree, of two days and two topics, closed."""
    path = tmp_path / "data" / STORE_FILE
    path.parent.mkdir()
    yesterday = [
        make_envelope(n, created=NOW - DAY - n, topic=Topic(b"abcd"), data_bytes=1500) for n in range(900, 1000)
    ]
    envelopes = [stored(envelope) for envelope in make_envelopes(200, data_bytes=1500)]
    make_store(path, [*(stored(envelope, received=NOW - DAY) for envelope in yesterday), *envelopes])
    change(path, "PRAGMA journal_mode = WAL")
    return path


def check(path: Path) -> CheckReport:
    return check_store(path, lambda step, done, total: None)


def texts(report: CheckReport, kind: DamageKind) -> str:
    return "\n".join(report.shown.get(kind, []))


def damage(path: Path, *statements: str) -> CheckReport:
    change(path, *statements)
    return check(path)


def leave_log(path: Path, cut: Callable[[bytes], bytes]) -> None:
    """Delete all topics in a log of one commit, and leave what a power cut may leave of it, and of its index."""
    before = path.read_bytes()
    with plain(path, write=True) as connection:
        connection.execute("DELETE FROM day_topics")
        log = path.with_name(f"{STORE_FILE}-wal").read_bytes()
    path.write_bytes(before)
    path.with_name(f"{STORE_FILE}-wal").write_bytes(cut(log))
    path.with_name(f"{STORE_FILE}-shm").write_bytes(b"?" * 32768)


def test_sound_store_is_found_sound(path: Path) -> None:
    report = check(path)

    assert report.is_sound
    assert (report.envelopes, report.bytes) == (300, rows(path, "SELECT sum(length(raw)) FROM envelopes")[0][0])


def test_store_of_the_daemon_is_found_sound_beside_it_and_after_it(tmp_path: Path) -> None:
    async def use() -> CheckReport:
        async with open_store(tmp_path / STORE_FILE) as store:
            await fill(store, make_envelopes(50))
            return check(tmp_path / STORE_FILE)

    assert asyncio.run(use()).envelopes == 50
    assert check(tmp_path / STORE_FILE).is_sound


@pytest.mark.parametrize(
    "cut",
    [
        pytest.param(lambda log: log[:20], id="half a header"),
        pytest.param(lambda log: log[:32], id="a header"),
        pytest.param(lambda log: log[:31] + b"?", id="a torn header"),
        pytest.param(lambda log: log[:20_000], id="one frame of two"),
        pytest.param(lambda log: log[:16_440] + bytes(len(log) - 16_440), id="zeros in place of a frame"),
        pytest.param(lambda log: log[:-1] + b"?", id="a torn frame"),
        pytest.param(lambda log: bytes(len(log)), id="zeros"),
        pytest.param(lambda log: b"?" * len(log), id="garbage"),
    ],
)
def test_log_without_a_commit_is_no_log(path: Path, cut: Callable[[bytes], bytes]) -> None:
    leave_log(path, cut)
    before = contents_of(path.parent)

    report = check(path)  # SQLite would look for ten seconds, and say "locking protocol"

    assert report.is_sound
    assert report.envelopes == 300
    assert contents_of(path.parent) == before


def test_commit_in_a_log_that_a_kill_has_left_counts(path: Path) -> None:
    leave_log(path, lambda log: log + b"?" * 10_000)

    assert DamageKind.COUNTS in check(path).found


def test_nothing_is_written_beside_a_closed_store(path: Path) -> None:
    before = contents_of(path.parent)

    check(path)

    assert names_in(path.parent) == {STORE_FILE}
    assert contents_of(path.parent) == before


async def test_nothing_is_written_beside_what_a_kill_has_left(tmp_path: Path) -> None:
    async with open_store(tmp_path / STORE_FILE) as store:
        await fill(store, make_envelopes(50))
        copy = copy_as_on_disk(tmp_path / STORE_FILE, tmp_path / "killed")
        copy.with_name(f"{STORE_FILE}-shm").write_bytes((tmp_path / f"{STORE_FILE}-shm").read_bytes())
    before = {file.name: file.read_bytes() for file in copy.parent.iterdir()}

    report = check(copy)

    assert report.is_sound
    assert report.envelopes == 50
    assert {file.name: file.read_bytes() for file in copy.parent.iterdir()} == before


async def test_log_without_its_index_is_not_read_past(tmp_path: Path) -> None:
    async with open_store(tmp_path / STORE_FILE) as store:
        await fill(store, make_envelopes(5))
        copy = copy_as_on_disk(tmp_path / STORE_FILE, tmp_path / "killed")
    names = names_in(copy.parent)

    with pytest.raises(StoreError, match="-wal has no index"):
        check(copy)

    assert names_in(copy.parent) == names


def test_daemon_that_begins_meanwhile_is_noticed(path: Path) -> None:
    def start(step: str, done: int, total: int | None) -> None:
        if step == "rows" and done == 0:
            change(path, "DELETE FROM day_topics", "PRAGMA wal_checkpoint(TRUNCATE)")

    with pytest.raises(StoreError, match="has begun to write"):
        check_store(path, start)


async def test_daemon_can_cut_its_log_back_while_rows_are_read(tmp_path: Path) -> None:
    path = tmp_path / STORE_FILE
    async with open_store(path) as store:
        await fill(store, make_envelopes(check_module.BATCH_ROWS + 1))
        cut_back: list[object] = []

        def cut(step: str, done: int, total: int | None) -> None:
            if step == "rows" and done:
                cut_back.extend(rows_of_writer(path, "PRAGMA wal_checkpoint(TRUNCATE)"))

        report = await asyncio.to_thread(check_store, path, cut)

    assert cut_back == [(0, 0, 0)]  # nobody was in the way
    assert report.is_sound
    assert report.envelopes == check_module.BATCH_ROWS + 1


def rows_of_writer(path: Path, sql: str) -> list[object]:
    with plain(path, write=True) as connection:
        return connection.execute(sql).fetchall()


# What SQLite finds


def test_bytes_turned_in_any_page_are_found(path: Path) -> None:
    whole = path.read_bytes()
    ((page,),) = rows(path, "PRAGMA page_size")
    for suffix in ("-shm", "-wal"):
        path.with_name(path.name + suffix).unlink(missing_ok=True)
    unseen = []
    for at in range(page, len(whole), page):  # the first page is the next test's
        path.write_bytes(whole[:at] + b"\xa5" * 64 + whole[at + 64 :])  # where a tree's page says what it is
        if check(path).is_sound:
            unseen.append(at // page + 1)

    assert not unseen


def test_bytes_turned_inside_of_an_envelope_are_found(path: Path) -> None:
    ((raw,),) = rows(path, "SELECT raw FROM envelopes WHERE seq = 150")
    path.with_name(f"{STORE_FILE}-wal").unlink()
    path.with_name(f"{STORE_FILE}-shm").unlink()
    whole = path.read_bytes()
    at = whole.index(raw[:1000]) + 500
    path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])

    report = check(path)

    assert report.found == {DamageKind.ROW: 1}
    assert texts(report, DamageKind.ROW) == "row 150: its hash is different"


def damage_pages(path: Path, *pages: int) -> CheckReport:
    """Turn what tells of what kind these pages are."""
    content = bytearray(path.read_bytes())
    for page in pages:
        content[(page - 1) * PAGE_BYTES : (page - 1) * PAGE_BYTES + 64] = b"\xa5" * 64
    for suffix in ("-shm", "-wal"):
        path.with_name(path.name + suffix).unlink(missing_ok=True)
    path.write_bytes(content)
    return check(path)


def page_of_row(path: Path, seq: int) -> int:
    ((raw,),) = rows(path, "SELECT raw FROM envelopes WHERE seq = ?", seq)
    return path.read_bytes().index(raw) // PAGE_BYTES + 1


def test_damaged_page_is_told_once_with_what_is_lost(path: Path) -> None:
    page = page_of_row(path, 150)
    content = path.read_bytes()
    in_page = sum(
        (page - 1) * PAGE_BYTES <= content.index(raw) < page * PAGE_BYTES
        for (raw,) in rows(path, "SELECT raw FROM envelopes")
    )

    report = damage_pages(path, page)

    assert report.found == {DamageKind.PAGES: 1}
    assert f"page {page}" in texts(report, DamageKind.PAGES)
    assert (report.saved, report.lost) == (300 - in_page, in_page)
    assert in_page > 1


def test_damaged_pages_are_each_told_once(path: Path) -> None:
    damaged = sorted({page_of_row(path, seq) for seq in (50, 150, 250)})

    report = damage_pages(path, *damaged)

    assert report.found == {DamageKind.PAGES: 3}
    assert [int(re.findall("page ([0-9]+)", line)[0]) for line in report.shown[DamageKind.PAGES]] == damaged


def test_damaged_index_costs_no_envelope(path: Path) -> None:
    ((page,),) = rows(path, "SELECT rootpage FROM sqlite_master WHERE name = 'envelopes_by_reception'")

    report = damage_pages(path, page)

    assert report.found == {DamageKind.PAGES: 1}
    assert (report.saved, report.lost) == (300, 0)


def test_damaged_row_is_told_once_and_not_again_by_what_follows_from_it(path: Path) -> None:
    report = damage(path, "UPDATE envelopes SET created = created + 100000 WHERE seq = 5")

    assert report.found == {DamageKind.ROW: 1}
    assert (report.saved, report.lost) == (299, 1)


def test_row_on_a_damaged_disk_is_told_with_its_page(path: Path) -> None:
    page, other = page_of_row(path, 150), page_of_row(path, 290)
    change(path, "UPDATE envelopes SET hash = zeroblob(16) WHERE seq = 290", "PRAGMA wal_checkpoint(TRUNCATE)")

    report = damage_pages(path, page)

    assert report.found == {DamageKind.PAGES: 1, DamageKind.ROW: 1}
    assert texts(report, DamageKind.ROW) == f"page {other}, row 290: its hash is different"


def test_sound_store_has_nothing_to_save(path: Path) -> None:
    report = check(path)

    assert (report.saved, report.lost) == (None, None)


@pytest.mark.parametrize("left", [0.1, 0.5, 0.9, 0.999])
def test_file_that_was_cut_off_is_found(path: Path, left: float) -> None:
    whole = path.read_bytes()
    path.write_bytes(whole[: int(len(whole) * left)])

    report = check(path)

    assert f"the file is cut off, {int(len(whole) * left)} bytes of {len(whole)}" in texts(report, DamageKind.PAGES)


@pytest.mark.parametrize("index", ["envelopes_by_time", "envelopes_by_topic", "envelopes_by_reception"])
def test_entry_missing_in_an_index_is_found(path: Path, index: str) -> None:
    ((sql,),) = rows(path, "SELECT sql FROM sqlite_master WHERE name = ?", index)
    partial = f"{sql} WHERE seq <> 7"
    change(path, f"DROP INDEX {index}", partial)  # an index without that entry, which then says that it is whole
    with contextlib.closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("PRAGMA writable_schema = ON")
        connection.execute("UPDATE sqlite_master SET sql = ? WHERE name = ?", (sql, index))

    report = check(path)

    assert f"row 7 missing from index {index}" in texts(report, DamageKind.INDEX)
    assert report.found.keys() == {DamageKind.INDEX}


def test_missing_index_is_found(path: Path) -> None:
    report = damage(path, "DROP INDEX envelopes_by_reception")

    assert texts(report, DamageKind.SCHEMA) == "index envelopes_by_reception is missing"


def test_index_of_another_kind_is_found(path: Path) -> None:
    report = damage(
        path, "DROP INDEX envelopes_by_reception", "CREATE INDEX envelopes_by_reception ON envelopes (created)"
    )

    assert "index envelopes_by_reception is not ours" in texts(report, DamageKind.SCHEMA)


# What only this program knows


@pytest.mark.parametrize(
    ("statement", "what"),
    [
        ("UPDATE envelopes SET raw = x'c0' WHERE seq = 5", "row 5: undecodable: "),
        ("UPDATE envelopes SET raw = substr(raw, 2) WHERE seq = 5", "row 5: undecodable: "),
        ("UPDATE envelopes SET raw = x'' WHERE seq = 5", "row 5: undecodable: "),
        ("UPDATE envelopes SET hash = zeroblob(16) WHERE seq = 5", "row 5: its hash is different"),
        ("UPDATE envelopes SET hash = 'text' WHERE seq = 5", "row 5: its hash is different"),
        ("UPDATE envelopes SET created = created + 1 WHERE seq = 5", "row 5: its topic or time is different"),
        ("UPDATE envelopes SET topic = x'00000000' WHERE seq = 5", "row 5: its topic or time is different"),
        ("UPDATE envelopes SET topic = 'abcde' WHERE seq = 5", "row 5: its topic or time is different"),
        ("UPDATE envelopes SET received = -1 WHERE seq = 5", "row 5: its time of reception is not a time"),
        ("UPDATE envelopes SET received = 4294967296 WHERE seq = 5", "row 5: its time of reception is not a time"),
        ("UPDATE envelopes SET received = 'noon' WHERE seq = 5", "row 5: "),
    ],
)
def test_changed_row_is_found(path: Path, statement: str, what: str) -> None:
    report = damage(path, statement)

    if "noon" not in statement:
        assert texts(report, DamageKind.ROW).startswith(what)
    assert not report.is_sound


@pytest.mark.parametrize(
    ("statement", "what"),
    [
        ("DELETE FROM envelopes WHERE seq = 150", "days, day "),
        ("DELETE FROM envelopes WHERE seq = 150", "reception_days, day "),
        (f"UPDATE days SET envelopes = envelopes + 1 WHERE day = {TODAY}", f"days, day {TODAY}: it says 201 envelopes"),
        (f"UPDATE days SET bytes = bytes - 1 WHERE day = {TODAY}", f"days, day {TODAY}: it says 200 envelopes"),
        (f"DELETE FROM days WHERE day = {TODAY}", f"days, day {TODAY}: it says 0 envelopes of 0 bytes, there are 200"),
        ("INSERT INTO days VALUES (7, 1, 1)", "days, day 7: it says 1 envelopes of 1 bytes, there are 0 of 0"),
        (f"UPDATE reception_days SET bytes = 1 WHERE day = {TODAY}", f"reception_days, day {TODAY}: it says 200"),
        (f"DELETE FROM reception_days WHERE day = {TODAY}", f"reception_days, day {TODAY}: it says 0"),
        (
            f"UPDATE reception_days SET first_seq = 1 WHERE day = {TODAY}",
            f"reception_days, day {TODAY}: it says rows 1",
        ),
        (f"UPDATE reception_days SET last_seq = 299 WHERE day = {TODAY}", f"day {TODAY}: it says rows 101 to 299"),
        ("DELETE FROM day_topics WHERE topic = x'61626364'", "topic 0x61626364 of day "),
        ("INSERT INTO day_topics VALUES (7, x'00000000')", "topic 0x00000000 of day 7 is in day_topics, but has no"),
        ("UPDATE sqlite_sequence SET seq = 299", "sqlite_sequence says 299, but there is row 300"),
    ],
)
def test_wrong_count_is_found(path: Path, statement: str, what: str) -> None:
    report = damage(path, statement)

    assert report.found.keys() == {DamageKind.COUNTS}
    assert what in texts(report, DamageKind.COUNTS)


def test_days_whose_newest_rows_were_deleted_are_sound(path: Path) -> None:
    assert damage(path, f"UPDATE reception_days SET last_seq = 1000 WHERE day = {TODAY}").is_sound


def test_second_identity_is_found(path: Path) -> None:
    assert "not one identity" in texts(damage(path, "INSERT INTO identity VALUES ('x')"), DamageKind.SCHEMA)


def test_backup_that_has_no_identity_yet_is_sound(path: Path) -> None:
    assert damage(path, "DELETE FROM identity").is_sound


def test_everything_is_counted_and_few_are_told_of(path: Path) -> None:
    report = damage(path, "UPDATE envelopes SET hash = substr(hash, 1, 15)")

    assert report.found[DamageKind.ROW] == 300
    assert len(report.shown[DamageKind.ROW]) == MAX_SHOWN


# The record of the compaction


def record(path: Path, **fields: Any) -> None:
    ((identity,),) = rows(path, "SELECT id FROM identity")
    values: dict[str, Any] = {
        "store_id": identity,
        "archive": "archive",
        "verified_at": NOW,
        "days": {TODAY: 250},
    } | fields
    write_archived(path, Archived(**values))


def test_record_of_the_store_is_sound(path: Path) -> None:
    record(path)

    assert check(path).is_sound


@pytest.mark.parametrize(
    ("spoil", "what"),
    [
        (lambda path: archived_file(path).write_text("{"), "is no record of the compaction"),
        (lambda path: record(path, store_id="other"), "belongs to another store, other"),
        (lambda path: record(path, days={TODAY: 301}), f"day {TODAY}: archived up to row 301, but there were 300"),
    ],
)
def test_record_that_is_of_no_use_is_found(path: Path, spoil: Callable[[Path], None], what: str) -> None:
    spoil(path)

    report = check(path)

    assert report.found.keys() == {DamageKind.RECORD}
    assert what in texts(report, DamageKind.RECORD)


def test_record_of_the_last_run_is_read_too(path: Path) -> None:
    compaction_file(path).write_text("{")

    report = check(path)

    assert report.found.keys() == {DamageKind.RECORD}
    assert str(compaction_file(path)) in texts(report, DamageKind.RECORD)


# What is no store


@pytest.mark.parametrize(
    ("content", "what"), [(None, "there is none"), (b"", "not an SQLite database"), (b"text", "not an SQLite database")]
)
def test_what_is_no_store_is_refused(tmp_path: Path, content: bytes | None, what: str) -> None:
    if content is not None:
        (tmp_path / STORE_FILE).write_bytes(content)

    with pytest.raises(StoreError, match=what):
        check(tmp_path / STORE_FILE)


@pytest.mark.parametrize(
    ("statement", "what"),
    [
        ("PRAGMA application_id = 1", "not a mailserver store"),
        ("PRAGMA user_version = 99", "use a newer one"),
        ("PRAGMA user_version = 1", "which migrates it"),
    ],
)
def test_foreign_store_and_other_versions_are_refused(path: Path, statement: str, what: str) -> None:
    change(path, statement)

    with pytest.raises(StoreError, match=what):
        check(path)


def test_interrupt_is_heard_in_the_middle_of_a_statement(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check_module, "_INTERRUPTIBLE_EVERY", 1)

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(check_module, "_look_for_signals", interrupted)

    with pytest.raises(KeyboardInterrupt):
        check(path)


async def test_damage_of_the_log_is_named(tmp_path: Path) -> None:
    """SQLite reads what is before it, and says nothing."""
    async with open_store(tmp_path / STORE_FILE) as store:
        for number in range(4):
            await fill(store, make_envelopes(20, first=20 * number))
        copy = copy_as_on_disk(tmp_path / STORE_FILE, tmp_path / "killed")
    log = bytearray(wal_file(copy).read_bytes())
    log[32 + 24 + 500] ^= 1
    wal_file(copy).write_bytes(log)

    report = check(copy)

    assert report.found.keys() == {DamageKind.LOG}
    assert "is damaged at frame 1, and committed transactions follow" in texts(report, DamageKind.LOG)
    assert "waku-mailserver salvage" in DamageKind.LOG.value


async def test_log_of_a_later_state_is_named(tmp_path: Path) -> None:
    """Nothing else that is looked for may show it."""
    path = tmp_path / STORE_FILE
    copies = []
    for first in (0, 20, 40):
        async with open_store(path) as store:
            await fill(store, make_envelopes(20, first=first))
            copies.append(copy_as_on_disk(path, tmp_path / f"killed-{first}"))
    wal_file(copies[2]).rename(wal_file(copies[1]))

    report = check(copies[1])

    assert "belongs to a later state of" in texts(report, DamageKind.LOG)
