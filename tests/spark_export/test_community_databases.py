"""History archives of communities from stores in PostgreSQL: what a store in a file with the same envelopes gives."""

import asyncio
import random
from collections.abc import Sequence
from pathlib import Path

import pytest

from mailserver.catchup.ledger import open_ledger
from mailserver.catchup.ranges import MissingRange
from mailserver.codec.keys import NodeId
from mailserver.communities.formats import TimeRange
from mailserver.community.folder import COMMUNITIES_FOLDER
from mailserver.community.owner.folders import CommunityFolder
from mailserver.community.owner.publishing import take_next_index
from mailserver.data_dir.folder import KEY_FILE
from mailserver.data_dir.running import CONTROL_FILE
from mailserver.net.unix_socket import bind_private
from mailserver.store.interface import NewEnvelope
from mailserver.store.postgres.job import StoreDatabase
from mailserver.store.postgres.store import open_store
from mailserver.waku.envelope import Envelope
from spark_export import community_rows
from spark_export.communities import CommunitiesReport, CommunitiesRun, make_archives_by
from spark_export.community_plan import missing_of
from spark_export.errors import ExportError
from spark_export.places import StorePlace
from tests.community.owner.samples import ATTIC, GARDEN, KITCHEN, garden, made_in, sealed, week
from tests.spark_export.samples import put
from tests.spark_export.test_community_runs import hashes, history, in_order, settled, stored
from tests.store.postgres.server import new_schema, shared_server

pytestmark = pytest.mark.integration

DAY_S = 86_400


class Database:
    """A store in a schema of its own."""

    def __init__(self) -> None:
        self.schema = new_schema(shared_server())
        self.url = shared_server().url(self.schema)
        self.place = StoreDatabase(self.url)

    def put(self, *envelopes: NewEnvelope) -> None:
        async def run() -> None:
            async with open_store(self.url) as store:
                await store.put(envelopes)

        asyncio.run(run())

    def sql(self, statement: str) -> None:
        shared_server().sql(statement, self.schema)


@pytest.fixture
def database() -> Database:
    return Database()


@pytest.fixture
def folder(tmp_path: Path) -> CommunityFolder:
    return made_in(tmp_path / COMMUNITIES_FOLDER, garden(GARDEN, KITCHEN))


def run(folder: CommunityFolder, now: int, *stores: StorePlace) -> CommunitiesReport:
    return make_archives_by(in_order, CommunitiesRun(folder.path.parent, stores), None, now=now)


def posted(number: int, count: int, draw: random.Random) -> list[Envelope]:
    """Envelopes of a week, many of them in the same second, some of no channel."""
    lower, step = week(number).lower, 7 * DAY_S // 40
    return [
        sealed(lower + draw.randrange(0, 7 * DAY_S, step), draw.getrandbits(30), draw.choice((GARDEN, KITCHEN, ATTIC)))
        for _ in range(count)
    ]


@pytest.fixture
def _small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few rows are read by one statement, of whatever engine."""
    monkeypatch.setattr(community_rows, "KEY_ROWS", 3)
    monkeypatch.setattr(community_rows, "ENVELOPE_ROWS", 2)


@pytest.mark.usefixtures("_small_batches")
def test_database_and_file_with_the_same_envelopes_give_the_same_archives_to_the_byte(
    database: Database, folder: CommunityFolder, tmp_path: Path
) -> None:
    draw = random.Random(5)
    twin = made_in(tmp_path / "twin", garden(GARDEN, KITCHEN))
    file = tmp_path / "a" / "mailserver.db"
    archives = []

    for number in range(3):
        late = posted(number - 1, 3, draw) if number else []
        envelopes = stored([*posted(number, 60, draw), *late])
        put(file, envelopes)
        database.put(*envelopes)
        of_file, of_database = run(folder, settled(number), file), run(twin, settled(number), database.place)
        assert of_file.communities[0].messages == of_database.communities[0].messages > 20
        assert twin.data.read_bytes() == folder.data.read_bytes()
        take_next_index(folder)
        take_next_index(twin)
        assert twin.index.read_bytes() == folder.index.read_bytes()
        archives.append(of_database.communities[0].archives)

    assert archives == [1, 2, 2]  # late messages get an archive of their own
    assert run(twin, settled(2), database.place).communities[0].archives == 0


def test_envelopes_of_a_database_and_a_file_are_in_one_history_each_once(
    database: Database, folder: CommunityFolder, tmp_path: Path
) -> None:
    first, both, second = (sealed(week(0).lower + 5, number) for number in range(3))
    file = put(tmp_path / "a" / "mailserver.db", stored([first, both]))
    database.put(*stored([both, second]))

    run(folder, settled(0), file, database.place)

    assert history(folder) == [(week(0), hashes(first, both, second))]


def test_damaged_rows_of_a_database_are_left_out(database: Database, folder: CommunityFolder) -> None:
    good, bad, worse = (sealed(week(0).lower + 5, number) for number in range(3))
    database.put(*stored([good, bad, worse]))
    database.sql(f"UPDATE envelopes SET raw = '\\x00' WHERE hash = '\\x{bad.hash()[:16].hex()}'")
    database.sql(f"UPDATE envelopes SET hash = '\\x00' WHERE hash = '\\x{worse.hash()[:16].hex()}'")

    run(folder, settled(0), database.place)

    assert history(folder) == [(week(0), hashes(good))]


@pytest.mark.parametrize("what", ["another version", "no store", "no database"])
def test_database_that_cannot_be_read_is_named_without_its_password_and_nothing_is_made(
    database: Database, folder: CommunityFolder, what: str
) -> None:
    url = database.url.replace("postgres@", "postgres:verysecret@")
    if what == "another version":
        database.put(*stored([sealed(week(0).lower)]))
        database.sql("UPDATE mailserver_schema SET version = version + 1")
    if what == "no database":
        url = url.replace("/postgres?", "/nowhere?")

    with pytest.raises(ExportError) as refused:
        run(folder, settled(0), StoreDatabase(url))

    assert "postgresql://postgres@" in str(refused.value)
    assert "verysecret" not in str(refused.value)
    assert not folder.next_index.exists()


async def test_what_is_missing_in_a_database_is_what_the_mailserver_of_the_communities_says(tmp_path: Path) -> None:
    database = Database()
    last, now = week(0).lower, week(2).lower
    async with open_store(database.url) as store:
        await store.put(stored([sealed(last - 1)]))
    ledger = open_ledger(tmp_path)
    ledger.note_missed(MissingRange(5, 9))
    ledger.account(NodeId(bytes(64))).add(MissingRange(5, 9))
    await ledger.save()

    def missing(*stores: StorePlace) -> Sequence[TimeRange]:
        return missing_of(stores, tmp_path, now)

    of_a_copy = await asyncio.to_thread(missing, database.place)
    (tmp_path / KEY_FILE).touch()
    of_one_that_is_away = await asyncio.to_thread(missing, database.place)
    with bind_private(tmp_path / CONTROL_FILE) as control:
        control.listen()
        of_one_that_runs = await asyncio.to_thread(missing, database.place)

    assert of_a_copy == of_one_that_runs == (TimeRange(5, 10),)
    assert of_one_that_is_away == (TimeRange(5, 10), TimeRange(last, now))
