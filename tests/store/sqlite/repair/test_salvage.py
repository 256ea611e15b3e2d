"""mailserver.store.sqlite.repair.salvage: whatever is damaged, the rest is saved, nothing wrong, nothing twice."""

import asyncio
import functools
import json
import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from mailserver.errors import StoreError
from mailserver.handoff.archived import Archived
from mailserver.store.interface import NewEnvelope
from mailserver.store.retention import END_OF_TIME, Surplus
from mailserver.store.sqlite.handoff import archived_file, read_archived, write_archived
from mailserver.store.sqlite.repair.check import check_store
from mailserver.store.sqlite.repair.report import DamageKind
from mailserver.store.sqlite.repair.salvage import SalvageReport, salvage
from mailserver.store.sqlite.schema import PAGE_BYTES, STORE_FILE
from mailserver.store.sqlite.store import open_store
from mailserver.store.sqlite.wal import wal_file
from mailserver.waku.envelope import Topic
from tests.mailservers import NOW, make_envelope, stored
from tests.store.samples import assert_counts_are_right, change, contents_of, copy_as_on_disk, pages_of, read, rows
from tests.store.samples import stored as rows_in
from tests.waiting import until

LARGE = 50_000
"""Bytes of an envelope that takes several pages."""

TOPICS = [Topic(b"abcd"), Topic(b"efgh"), Topic(b"ijkl")]


@functools.cache
def envelopes() -> list[NewEnvelope]:
    """1,200 of three days and topics, now and then a large one."""
    return [
        stored(
            make_envelope(
                n, created=NOW - 200 * n, topic=TOPICS[n % 3], data_bytes=LARGE if n % 400 == 7 else 300 + n % 500
            ),
            received=NOW - 100 * (1200 - n),
        )
        for n in range(1200)
    ]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store as a kill left it, with 1,000 rows in the file and 100 more in the log; 100 were pruned between."""
    path = tmp_path_factory.mktemp("whole") / STORE_FILE
    all_of_them = envelopes()

    async def fill_and_kill() -> Path:
        async with open_store(path) as store:
            await store.put(all_of_them[:1100])
            await until(lambda: not store.unindexed)
            await store.prune(Surplus(END_OF_TIME, 100))
        async with open_store(path) as store:
            for at in range(1100, 1200, 20):
                await store.put(all_of_them[at : at + 20])
                await store.touch()
                await until(lambda: not store.unindexed)  # always the same log
            return copy_as_on_disk(path, path.parent / "killed")

    return asyncio.run(fill_and_kill())


@pytest.fixture
def path(whole: Path, tmp_path: Path) -> Path:
    """A copy of it to be damaged."""
    shutil.copytree(whole.parent, tmp_path / "data")
    return tmp_path / "data" / STORE_FILE


async def save(path: Path) -> tuple[SalvageReport, Path]:
    """What is saved; it is sound, and the source untouched."""
    before = contents_of(path.parent)
    target = path.parent.parent / "saved" / STORE_FILE
    target.parent.mkdir()

    found = await salvage(path, target, target.with_name("aside"), lambda step, done, total: None)

    assert contents_of(path.parent) == before
    assert check_store(target, lambda step, done, total: None).found.keys() <= {DamageKind.RECORD}
    assert_counts_are_right(target)
    saved = rows_in(target)
    assert {row.raw for row in saved} <= {row.raw for row in envelopes()}
    assert len({row.raw for row in saved}) == len(saved) == found.saved
    return found, target


def aside(target: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in target.with_name("aside").read_text().splitlines()]


def overwrite(path: Path, at: int, content: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        file.write(content)


def settle(path: Path) -> Path:
    """Have all of it in the file."""
    change(path, "PRAGMA wal_checkpoint(TRUNCATE)")
    return path


def damage_pages(path: Path, name: str, kind: str, every: int = 1) -> int:
    """Overwrite pages of a tree with what is nothing; return how many."""
    settle(path)
    pages = pages_of(path, name, kind)[::every]
    for number in pages:
        overwrite(path, (number - 1) * PAGE_BYTES, random.Random(number).randbytes(PAGE_BYTES))
    return len(pages)


async def test_of_a_sound_store_all_is_saved_in_its_order(path: Path) -> None:
    found, target = await save(path)

    assert rows_in(target) == rows_in(path)
    assert (found.saved, found.wrong, found.unreadable, found.pages) == (1100, 0, 0, 0)
    assert not target.with_name("aside").exists()


async def test_what_was_pruned_does_not_come_back(path: Path) -> None:
    settle(path)
    assert rows(path, "SELECT freelist_count FROM pragma_freelist_count")[0][0]

    _, target = await save(path)

    assert {row.raw for row in rows_in(target)} == {row.raw for row in envelopes()[100:]}


@pytest.mark.parametrize(
    "damage",
    [
        lambda path: damage_pages(path, "envelopes", "internal"),
        lambda path: damage_pages(path, "envelopes_by_time", "leaf"),
        lambda path: damage_pages(path, "envelopes_by_topic", "internal"),
        lambda path: damage_pages(path, "days", "leaf"),
        lambda path: overwrite(settle(path), 0, bytes(100)),
        lambda path: overwrite(settle(path), 100, random.Random(1).randbytes(PAGE_BYTES - 100)),
        lambda path: overwrite(settle(path), 36, b"\x00\x00\x00\x01"),
        lambda path: overwrite(wal_file(path), 32 + 24 + 1000, b"damaged"),
        lambda path: overwrite(wal_file(path), 9, b"x"),
        lambda path: change(path, "DELETE FROM days", "DELETE FROM reception_days"),
    ],
    ids=[
        "interior",
        "index",
        "index's interior",
        "days",
        "header",
        "schema",
        "freelist",
        "log",
        "log's header",
        "counts",
    ],
)
async def test_all_is_saved_where_no_row_is_damaged(path: Path, damage: Callable[[Path], object]) -> None:
    damage(path)

    found, target = await save(path)

    assert {row.raw for row in rows_in(target)} == {row.raw for row in envelopes()[100:]}
    assert (found.wrong, found.unreadable) == (0, 0)


async def test_of_damaged_leaves_the_rest_is_saved(path: Path) -> None:
    before = len(rows_in(path))
    count = damage_pages(path, "envelopes", "leaf", every=3)

    found, target = await save(path)

    assert before * 0.6 < found.saved < before * 0.72
    assert count <= found.pages <= count + 4  # and where the large ones of these leaves went on
    assert len(aside(target)) == found.pages
    assert found.expected in (before, None)


async def test_of_a_leaf_that_is_damaged_in_part_the_other_rows_are_saved(path: Path) -> None:
    settle(path)
    leaf = pages_of(path, "envelopes", "leaf")[3]
    overwrite(path, (leaf - 1) * PAGE_BYTES + 9000, bytes(512))

    found, target = await save(path)

    assert 1100 - 4 <= found.saved < 1100
    assert found.wrong + found.unreadable == 1100 - found.saved == len(aside(target))


async def test_of_a_file_that_is_cut_off_the_beginning_is_saved(path: Path) -> None:
    settle(path)
    size = len(read(path))
    os.truncate(path, size // 2)

    found, _ = await save(path)

    assert found.pages >= size // 2 // PAGE_BYTES - 1
    assert 300 < found.saved < 900


async def test_of_a_log_that_is_cut_off_the_beginning_is_saved(path: Path) -> None:
    os.truncate(wal_file(path), wal_file(path).stat().st_size // 2)

    found, _ = await save(path)

    assert 1000 <= found.saved < 1100


async def test_row_that_is_another_is_set_aside(path: Path) -> None:
    change(path, "UPDATE envelopes SET topic = x'00000000' WHERE seq = 500")

    found, target = await save(path)

    assert (found.saved, found.wrong) == (1099, 1)
    (wrong,) = aside(target)
    assert (wrong["seq"], wrong["why"]) == (500, "its topic or time is different")
    assert str(wrong["row"]).count(envelopes()[499].raw.hex()) == 1


async def test_nothing_of_the_new_store_counts_as_archived(path: Path) -> None:
    identity = rows(path, "SELECT id FROM identity")[0][0]
    write_archived(path, Archived(identity, "archive", NOW, {NOW // 86_400: 600}, went_back_from=2000))

    _, target = await save(path)

    new_identity = rows(target, "SELECT id FROM identity")[0][0]
    assert new_identity != identity
    assert read_archived(target) == Archived(new_identity, "archive", NOW, {})


async def test_record_that_is_damaged_holds_up_pruning_in_the_new_store_too(path: Path) -> None:
    archived_file(path).write_text("no record")

    _, target = await save(path)

    assert archived_file(target).read_text() == "no record"


@pytest.mark.parametrize(
    ("change_it", "said"),
    [
        (lambda path: path.write_bytes(b"nothing of ours"), "has no row of a mailserver store"),
        (lambda path: change(settle(path), "PRAGMA application_id = 7"), "application_id 0x7"),
        (lambda path: change(settle(path), "PRAGMA user_version = 9"), "has schema version 9"),
    ],
    ids=["foreign", "of another program", "downgrade"],
)
async def test_what_is_no_store_is_refused(path: Path, change_it: Callable[[Path], object], said: str) -> None:
    change_it(path)
    for name in (f"{STORE_FILE}-wal", f"{STORE_FILE}-shm"):
        path.with_name(name).unlink(missing_ok=True)

    with pytest.raises(StoreError) as caught:
        await salvage(path, path.with_name("new"), path.with_name("aside"), lambda step, done, total: None)

    assert said in str(caught.value)


@pytest.mark.parametrize("seed", range(20))
async def test_whatever_is_damaged_nothing_wrong_is_saved(path: Path, seed: int) -> None:
    """Stretches of file and log, anywhere, of any length, are overwritten, zeroed or turned in one bit."""
    draw = random.Random(seed)
    for file in (path, wal_file(path)):
        content = bytearray(file.read_bytes())
        for _ in range(draw.randrange(1, 6)):
            at, length = draw.randrange(len(content)), draw.choice([1, 16, 512, 4096, 40_000])
            piece = content[at : at + length]
            turned = bytes([piece[0] ^ 4]) + piece[1:]
            content[at : at + length] = draw.choice([draw.randbytes(len(piece)), bytes(len(piece)), turned])
        file.write_bytes(content)

    found, _ = await save(path)  # looks at every row

    assert found.saved > 500
