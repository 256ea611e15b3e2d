"""mailserver.doctor.database: a database that can keep the store, and what may be wrong with one."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from mailserver.app.config import Config
from mailserver.data_dir.own_store import RECORD_FILE, open_own_store
from mailserver.doctor import archive, database
from mailserver.doctor.archive import check_archive
from mailserver.doctor.database import check_database
from mailserver.doctor.findings import Finding, FindingVerdict
from mailserver.errors import StoreError
from mailserver.ids.muid import DEFAULT_NETWORK_TOPIC
from mailserver.store.message_ids import ComparedScope
from mailserver.store.postgres import connections, inspection
from mailserver.store.postgres.connections import MIN_SERVER_VERSION
from mailserver.store.postgres.store import open_store
from tests.store.engines import EVERYTHING
from tests.store.postgres.server import Server, new_schema, running_server, shared_server
from tests.store.samples import EVER, FULL, new_envelopes

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def durable() -> Iterator[Server]:
    """A server as it should be."""
    with running_server({}) as server:
        yield server


def found(config: Config) -> dict[str, Finding]:
    return {finding.check: finding for finding in check_database(config)}


def test_nothing_is_checked_where_the_store_is_a_file() -> None:
    assert check_database(Config()) == []


def test_suitable_database_has_nothing_wrong(durable: Server) -> None:
    schema = new_schema(durable)

    findings = check_database(Config(store=durable.url(schema)))

    assert [(finding.check, finding.verdict) for finding in findings] == [("database", FindingVerdict.OK)]
    assert findings[0].text.endswith(f"has no store yet, which is made at the first start, in schema {schema}")


def test_database_that_forgets_in_a_power_cut_is_a_problem() -> None:
    server = shared_server()

    findings = found(Config(store=server.url(new_schema(server))))

    assert findings["database disk"].verdict is FindingVerdict.PROBLEM
    assert "fsync or full_page_writes is off" in findings["database disk"].text


def test_database_with_too_few_connections_is_a_warning(durable: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "CONNECTIONS", 1000)

    findings = found(Config(store=durable.url(new_schema(durable))))

    assert findings["connections"].verdict is FindingVerdict.WARNING
    assert findings["connections"].text.endswith(" more connections, and a mailserver uses 1000")


def test_connections_of_a_gateway_and_communities_are_counted_where_there_may_be_any(
    durable: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = durable.url(new_schema(durable))
    free = asyncio.run(inspection.inspect(url)).free_connections
    monkeypatch.setattr(connections, "CONNECTIONS", free - 3)

    alone, beside = found(Config(store=url)), found(Config(store=url, feed_socket=True))

    assert "connections" not in alone
    assert beside["connections"].verdict is FindingVerdict.WARNING
    assert beside["connections"].text.endswith(f"a mailserver uses {free - 3}, and a gateway and communities 2 each")


def test_connections_of_all_workers_are_counted(durable: Server) -> None:
    url = durable.url(new_schema(durable))
    free = asyncio.run(inspection.inspect(url)).free_connections
    workers = free // connections.CONNECTIONS

    enough, too_few = found(Config(store=url, workers=workers)), found(Config(store=url, workers=workers + 1))

    assert "connections" not in enough
    uses = (workers + 1) * connections.CONNECTIONS
    assert too_few["connections"].text.endswith(f" more connections, and {workers + 1} workers use {uses}")


async def test_connections_of_other_users_are_counted_by_one_who_may_not_look_at_them(durable: Server) -> None:
    own = new_schema(durable)
    durable.sql(f"CREATE ROLE plain LOGIN; GRANT ALL ON SCHEMA {own} TO plain")
    plain = durable.url(own).replace("postgres@", "plain@")
    before = (await inspection.inspect(plain)).free_connections

    async with open_store(durable.url(new_schema(durable))) as store:
        await store.others.begin()
        await store.put(new_envelopes(3))

        assert (await inspection.inspect(plain)).free_connections <= before - 2


async def test_mailserver_uses_as_many_connections_as_is_said(durable: Server) -> None:
    schema = new_schema(durable)
    count = "SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()"
    async with open_store(durable.url(schema)) as store:
        await store.others.begin()
        await store.put(new_envelopes(3))
        await store.touch()
        for _ in range(2):
            await asyncio.gather(*(store.find(EVERYTHING, 10) for _ in range(30)))
        comparisons = [store.message_ids.comparison(ComparedScope(*EVER, FULL)) for _ in range(connections.SNAPSHOTS)]
        await asyncio.gather(*(each.begin() for each in comparisons))

        assert int(await asyncio.to_thread(durable.sql, count)) == connections.CONNECTIONS


def test_database_that_is_not_there_is_a_problem(durable: Server) -> None:
    findings = found(Config(store=durable.url().replace("pg-", "pg-missing-")))

    assert findings["database"].verdict is FindingVerdict.PROBLEM
    assert findings["database"].text.startswith("the database cannot be reached")


def test_schema_that_is_not_there_is_a_problem(durable: Server) -> None:
    findings = found(Config(store=durable.url("missing")))

    assert findings["database"].verdict is FindingVerdict.PROBLEM
    assert "has no schema of that name" in findings["database"].text


async def test_database_that_lacks_what_was_seen_in_it_is_a_problem_until_numbers_were_moved_on(
    durable: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    schema = new_schema(durable)
    config = Config(store=durable.url(schema), data_dir=tmp_path)
    async with open_own_store(tmp_path, DEFAULT_NETWORK_TOPIC, config.store) as store:
        await store.put(new_envelopes(3))
    assert "database rows" not in await asyncio.to_thread(found, config)
    record = tmp_path / RECORD_FILE
    record.write_text(record.read_text().replace('"seq": 3', '"seq": 8'))  # 5 more were seen

    before = await asyncio.to_thread(found, config)
    async with open_own_store(tmp_path, DEFAULT_NETWORK_TOPIC, config.store):
        pass
    after = await asyncio.to_thread(found, config)
    monkeypatch.setattr(database, "WENT_BACK_SHOWN_S", -10)
    later = await asyncio.to_thread(found, config)

    assert before["database rows"].verdict is FindingVerdict.PROBLEM
    assert before["database rows"].text == "it went back in time: row 8 was seen in it, and its last is 3"
    assert after["database rows"].verdict is FindingVerdict.WARNING
    assert after["database rows"].text.startswith("it went back in time, as was noticed at 20")
    assert "database rows" not in later


async def test_damaged_record_of_the_store_says_nothing_of_the_database(durable: Server, tmp_path: Path) -> None:
    config = Config(store=durable.url(new_schema(durable)), data_dir=tmp_path)
    async with open_store(config.store):
        pass
    (tmp_path / RECORD_FILE).write_text("{")

    assert (await asyncio.to_thread(found, config)).keys() == {"database"}


async def test_standby_is_a_problem_and_no_store_is_made_there() -> None:
    server = Server({"wal_level": "replica"})
    server.start()
    server.stop()
    server.stand_by()
    server.start()
    try:
        findings = await asyncio.to_thread(found, Config(store=server.url()))
        with pytest.raises(StoreError, match="is a standby, which takes no writes"):
            async with open_store(server.url()):
                pass
    finally:
        server.remove()

    assert findings["database"].verdict is FindingVerdict.PROBLEM
    assert findings["database"].text.endswith("is a standby, which takes no writes")


def test_database_of_an_early_version_is_a_problem(durable: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inspection, "_FACTS", inspection._FACTS.replace(f"{MIN_SERVER_VERSION}", "990000"))  # noqa: SLF001

    findings = found(Config(store=durable.url()))

    assert findings["database"].verdict is FindingVerdict.PROBLEM
    assert findings["database"].advice == "install PostgreSQL 15 or newer"


def test_missing_driver_is_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database, "find_spec", lambda name: None)

    findings = found(Config(store="postgresql:///mail"))

    assert findings["database"] == Finding(
        "database", FindingVerdict.PROBLEM, "asyncpg is not installed", "pip install -r requirements-postgres.lock"
    )


@pytest.mark.parametrize("what", ["no driver", "no database", "no store"])
def test_archive_of_a_database_that_cannot_be_asked_is_no_second_problem(
    durable: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    url = durable.url(new_schema(durable))
    if what == "no driver":
        monkeypatch.setattr(archive, "find_spec", lambda name: None)
    if what == "no database":
        url = url.replace("pg-", "pg-missing-")

    findings = check_archive(Config(store=url, archive=str(tmp_path / "archive")), 0.0)

    # Without an answer, `check_database` says why.
    expected = ["no run of the compaction has filled"] if what == "no store" else []
    assert [finding.text[:35] for finding in findings[:1]] == [text[:35] for text in expected]
