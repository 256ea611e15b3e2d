"""A Go mailserver's LevelDB is moved into a file or a database: whoever moves over keeps the history."""

import importlib.util
import json
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from random import Random

import pytest

from mailserver.commands.cli import main
from mailserver.data_dir.moving import aside_of
from mailserver.errors import ConfigError, StartupError, StoreError
from mailserver.leveldb.entries import Entry
from mailserver.moving import move as moving
from mailserver.store.leveldb import go_history
from mailserver.store.leveldb.folder import LevelDbContents, look_into
from mailserver.store.moving import BEFORE_ALL, ReadRow
from mailserver.waku.envelope import Envelope, decode_envelope, encode_envelope
from tests.data import load
from tests.leveldb.real import RealLevelDb, real_leveldb, require_leveldb
from tests.leveldb.writer import write_database
from tests.mailservers import make_envelope
from tests.moving.ends import End, columns, database, file_in, move_between, show_nothing, some
from tests.moving.go_keys import EARLY_BYTES, by_key, key_of
from tests.store.indexing import ids_indexed_at_once
from tests.store.samples import NEWS, START

RECORDED = [decode_envelope(bytes.fromhex(each["raw"])) for each in load("envelopes.json")["envelopes"]]
DATABASES = load("leveldb.json")["databases"]
MANY = [decode_envelope(each.raw) for each in some(200)]


@pytest.fixture(scope="module", autouse=True)
def _indexed_at_once() -> Iterator[None]:
    with ids_indexed_at_once():
        yield


@pytest.fixture(autouse=True)
def _small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(moving, "MAX_GROUP_ROWS", 16)


def folder_in(folder: Path) -> End:
    return End(folder)


def save(folder: Path, envelopes: Sequence[Envelope], *, tables: int = 2, more: Sequence[Entry] = ()) -> None:
    """Have envelopes in tables, which lie over each other, and the last of them in a journal with what is more."""
    entries = [Entry(key_of(each), number + 1, each.raw) for number, each in enumerate(envelopes)]
    in_tables, written = entries[:-3], [*entries[-3:], *more]
    write_database(folder, [sorted(in_tables[at::tables]) for at in range(tables)], [[each] for each in written])


def set_aside(file: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


@pytest.mark.parametrize("number", range(len(DATABASES)), ids=[each["name"] for each in DATABASES])
async def test_all_that_goleveldb_has_kept_is_there(number: int, tmp_path: Path) -> None:
    target, folder = file_in(tmp_path / "data"), tmp_path / "waku"
    folder.mkdir()
    for name, content in DATABASES[number]["files"].items():
        (folder / name).write_bytes(bytes.fromhex(content))
    envelopes = {envelope for _, envelope in DATABASES[number]["entries"]}

    report = await move_between(folder_in(folder), target)

    assert await target.rows() == columns(by_key([RECORDED[envelope] for envelope in envelopes]))
    assert (report.moved, report.there, report.compared) == (len(envelopes), 0, len(envelopes))
    assert report.is_whole
    assert report.more is None


async def test_it_is_moved_into_a_database_too(tmp_path: Path) -> None:
    target = database()
    save(tmp_path / "waku", MANY)

    report = await move_between(folder_in(tmp_path / "waku"), target)

    assert await target.rows() == columns(by_key(MANY))
    assert (report.moved, report.compared, report.is_whole) == (200, 200, True)


async def test_what_claims_to_be_of_the_future_was_received_now(tmp_path: Path) -> None:
    target = file_in(tmp_path / "data")
    ahead = make_envelope(1, created=int(time.time()) + 10**6)
    save(tmp_path / "waku", [ahead], tables=0)
    before = int(time.time())

    await move_between(folder_in(tmp_path / "waku"), target)

    ((received, created, *_),) = await target.rows()
    assert before <= received <= time.time()
    assert created == ahead.created


async def test_move_that_ended_skips_what_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = file_in(tmp_path / "data")
    save(tmp_path / "waku", MANY)
    monkeypatch.setattr(moving, "RECORD_INTERVAL_S", 0.0)

    def end(step: str, done: int, total: int | None) -> None:
        raise KeyError("ended")

    with pytest.raises(KeyError):
        await move_between(folder_in(tmp_path / "waku"), target, end)
    report = await move_between(folder_in(tmp_path / "waku"), target)

    assert (report.moved, report.there) == (184, 16)
    assert await target.rows() == columns(by_key(MANY))


async def test_progress_says_about_how_much_there_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    random = Random(1)
    sealed = [encode_envelope(START + number, 50, NEWS, random.randbytes(300), number) for number in range(200)]
    save(tmp_path / "waku", sealed)
    monkeypatch.setattr(moving, "RECORD_INTERVAL_S", 0.0)
    shown: list[tuple[int, int | None]] = []

    await move_between(
        folder_in(tmp_path / "waku"), file_in(tmp_path / "data"), lambda _, done, total: shown.append((done, total))
    )

    halfway = [total for done, total in shown if 90 <= done <= 110]
    assert halfway
    assert all(total is not None and 190 <= total <= 230 for total in halfway)
    assert shown[-1] == (200, 200)


async def test_what_leveldb_writes_and_compacts_meanwhile_is_there_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    require_leveldb()
    monkeypatch.setattr(moving, "RECORD_INTERVAL_S", 0.0)
    target, folder = file_in(tmp_path / "data"), tmp_path / "waku"
    folder.mkdir()
    late = [make_envelope(number, created=1 + number) for number in (991, 992, 993)]  # those read first
    with real_leveldb(folder) as real:
        for envelope in MANY:
            real.put(key_of(envelope), envelope.raw)
        real.compact()
        meanwhile = _saves_one_by_one(real, late)
        before = set(folder.glob("*.ldb"))

        report = await move_between(folder_in(folder), target, meanwhile)

    assert not before & set(folder.glob("*.ldb"))  # all that it has begun with was replaced
    assert report.moved == 203
    assert sorted(await target.rows()) == sorted(columns(by_key([*MANY, *late])))
    assert report.is_whole


def _saves_one_by_one(real: RealLevelDb, envelopes: list[Envelope]) -> Callable[[str, int, int | None], None]:
    left = list(envelopes)

    def save_one(step: str, done: int, total: int | None) -> None:
        if left:
            ends = sorted(MANY, key=key_of)
            for envelope in (left.pop(), ends[0], ends[-1]):  # so that all tables are merged with this one
                real.put(key_of(envelope), envelope.raw)
            real.compact()

    return save_one


async def test_tables_that_are_replaced_all_the_time_end_the_move(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(tmp_path / "waku", MANY)
    looks: list[int] = []

    def replaced(folder: Path) -> LevelDbContents:
        found = look_into(folder)
        looks.append(1)
        for path in [*folder.glob("*.ldb"), *folder.glob("*.sst")]:
            path.rename(path.with_suffix(".sst" if len(looks) % 2 else ".ldb"))
        return found

    monkeypatch.setattr(go_history, "look_into", replaced)

    with pytest.raises(StoreError, match="changes all the time: stop its mailserver"):
        await move_between(folder_in(tmp_path / "waku"), file_in(tmp_path / "data"))
    assert len(looks) == 2 + go_history.MAX_LOST_TABLES


async def test_each_row_and_each_damage_is_read_once_when_a_table_was_replaced(tmp_path: Path) -> None:
    folder = tmp_path / "waku"
    entries = sorted(Entry(key_of(each), number + 1, each.raw) for number, each in enumerate(MANY))
    write_database(folder, [entries[:100], entries[100:]])
    (folder / "000004.log").write_bytes(bytes(4) + b"\x05\x00\x01other")  # a chunk whose checksum would be 0

    rows = list[ReadRow]()
    async with go_history.open_go_history(folder) as history:
        read = await history.after(BEFORE_ALL, 16, 10**6)
        (folder / "000006.ldb").rename(folder / "000006.sst")
        rows += read.rows
        while not read.is_all:
            read = await history.after(rows[-1].place, 16, 10**6)
            rows += read.rows

    assert [row.columns[4] for row in rows if not row.why] == [entry.value for entry in entries]
    assert [row.why for row in rows if row.why] == ["chunk fails its checksum"]


async def test_file_that_cannot_be_opened_ends_the_move(tmp_path: Path) -> None:
    save(tmp_path / "waku", MANY)
    (tmp_path / "waku" / "000006.ldb").unlink()
    (tmp_path / "waku" / "000006.ldb").mkdir()

    with pytest.raises(StoreError, match=f"cannot read the LevelDB in {tmp_path}/waku: Is a directory"):
        await move_between(folder_in(tmp_path / "waku"), file_in(tmp_path / "data"))


async def test_pieces_that_are_not_as_they_were_are_set_aside_once(tmp_path: Path) -> None:
    target, folder = file_in(tmp_path / "data"), tmp_path / "waku"
    wrong = MANY[5].raw[:-1] + bytes([MANY[5].raw[-1] ^ 1])
    more = [
        Entry(key_of(MANY[5]), 900, wrong),
        Entry(key_of(MANY[6])[:EARLY_BYTES], 901, b"no envelope"),
        Entry(b"short", 902, MANY[7].raw),
        Entry(key_of(MANY[8])[:EARLY_BYTES] + b"news", 903, MANY[8].raw),
    ]
    save(folder, MANY, more=more)
    table = folder / "000006.ldb"  # which is not compressed
    table.write_bytes(table.read_bytes().replace(MANY[11].raw, bytes(len(MANY[11].raw))))

    first = await move_between(folder_in(folder), target)
    again = await move_between(folder_in(folder), target)

    lost = 4  # in the block of that table
    assert (first.moved, first.set_aside, first.is_whole) == (200 - 1 - lost, 5, False)
    assert (again.moved, again.there, again.set_aside) == (0, 200 - 1 - lost, 5)
    lines = set_aside(tmp_path / "data" / "mailserver.db-set-aside.jsonl")
    assert sorted((str(line["why"]), len(line["row"])) for line in lines) == [  # type: ignore[arg-type]
        ("block fails its checksum", 3),
        ("its columns are not those of an envelope", 3),
        ("its columns are not those of an envelope", 3),
        ("its hash is different", 5),
        ("its topic or time is different", 5),
    ]
    (block,) = (line["row"] for line in lines if line["why"] == "block fails its checksum")
    assert isinstance(block, list)
    assert block[0] == "000006.ldb"
    assert bytes.fromhex(block[2]) in table.read_bytes()


async def test_moved_to_a_database_what_is_damaged_is_beside_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(tmp_path / "waku", MANY, more=[Entry(b"short", 902, b"")])

    report = await move_between(folder_in(tmp_path / "waku"), database())

    assert report.set_aside == 1
    (line,) = set_aside(tmp_path / "waku-set-aside.jsonl")
    assert line["store"] == str(tmp_path / "waku")
    monkeypatch.chdir(tmp_path / "waku")
    assert aside_of(Path(), "postgresql:///mail") == tmp_path / "waku-set-aside.jsonl"


async def test_leveldb_of_another_program_is_refused(tmp_path: Path) -> None:
    write_database(tmp_path / "chaindata", [[Entry(b"h%031d" % number, 1, b"header") for number in range(40)]])

    with pytest.raises(StoreError, match="is not a Go mailserver's: of its first 16 keys none is that of an envelope"):
        await move_between(folder_in(tmp_path / "chaindata"), file_in(tmp_path / "data"))


async def test_folder_without_a_leveldb_leaves_the_target_alone(tmp_path: Path) -> None:
    target, other = file_in(tmp_path / "data"), tmp_path / "other"
    other.mkdir()

    with pytest.raises(StoreError, match=f"there is no LevelDB in {other}"):
        await move_between(folder_in(other), target)
    with pytest.raises(ConfigError, match=r"only by the name mailserver\.db"):
        await move_between(folder_in(other), folder_in(tmp_path))

    assert list((tmp_path / "data").iterdir()) == []


async def test_what_is_not_installed_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mailserver.data_dir.moving.find_spec", lambda _: None)

    with pytest.raises(StartupError, match=r"crc32c is not installed: pip install -r requirements-leveldb\.lock"):
        await move_between(folder_in(tmp_path), file_in(tmp_path / "data"), show_nothing)
    assert importlib.util.find_spec("google_crc32c") is not None


def test_command_says_what_was_moved(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = file_in(tmp_path / "data")
    save(tmp_path / "waku", MANY, more=[Entry(b"short", 902, b"")])

    assert main(["migrate", "--from", str(tmp_path / "waku"), "--to", str(target.place)]) == 1

    assert capsys.readouterr().out.splitlines() == [
        "200 envelopes moved, 0 were there before",
        f"1 damaged piece set aside in {target.place}-set-aside.jsonl",
        "read again: all of 200 envelopes are there",
    ]
