"""mailserver.store.postgres.rights: what a user of the database lacks is said as the mailserver starts."""

from collections.abc import Iterator

import pytest

from mailserver.errors import StoreError
from mailserver.store.postgres.store import open_store
from tests.store.engines import found
from tests.store.postgres.conftest import Place
from tests.store.postgres.server import QUICK, USER, Server, new_schema, running_server
from tests.store.postgres.test_partitions import TODAY, of_day

pytestmark = pytest.mark.integration

GUEST = "guest"


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    """A server of our own, where rights are taken away."""
    with running_server(QUICK) as made:
        made.sql(f"CREATE ROLE {GUEST} LOGIN; REVOKE TEMPORARY ON DATABASE postgres FROM PUBLIC")
        yield made


@pytest.fixture
def place(server: Server) -> Place:
    """A schema that the guest may see."""
    schema = new_schema(server)
    server.sql(f"GRANT USAGE ON SCHEMA {schema} TO {GUEST}")
    return Place(server, schema)


def url_of_guest(place: Place) -> str:
    return place.url.replace(f"{USER}@", f"{GUEST}@")


async def refusal(place: Place) -> str:
    with pytest.raises(StoreError) as refused:
        async with open_store(url_of_guest(place)):
            pass
    return str(refused.value).partition(f"search_path={place.schema}: ")[2]


async def test_each_right_that_is_missing_is_named_with_what_grants_it(place: Place) -> None:
    async with open_store(place.url):
        pass
    place.rows(f"GRANT SELECT, UPDATE ON ALL TABLES IN SCHEMA {place.schema} TO {GUEST}")
    grants = []

    for what in ("create tables in the schema", "create temporary tables in the database"):
        said = await refusal(place)
        assert said.startswith(f"the user {GUEST} may not {what} ")
        grants.append(said.rpartition(": ")[2])
        place.rows(grants[-1])

    assert grants == [
        f"GRANT CREATE ON SCHEMA {place.schema} TO {GUEST}",
        f"GRANT TEMPORARY ON DATABASE postgres TO {GUEST}",
    ]
    assert (await refusal(place)).startswith(
        f"the user {GUEST} does not own counts: ALTER TABLE counts OWNER TO {GUEST}"
    )
    place.rows(f"REVOKE TEMPORARY ON DATABASE postgres FROM {GUEST}")


async def test_owner_of_an_empty_schema_lacks_nothing(place: Place) -> None:
    place.rows(f"GRANT CREATE ON SCHEMA {place.schema} TO {GUEST}; GRANT TEMPORARY ON DATABASE postgres TO {GUEST}")

    async with open_store(url_of_guest(place)) as store:
        await store.put([of_day(TODAY, 1)])
        await store.maintain()
        assert len(await found(store)) == 1


async def test_tables_of_other_programs_in_the_schema_are_none_of_its_business(place: Place) -> None:
    place.rows(f"GRANT CREATE ON SCHEMA {place.schema} TO {GUEST}; GRANT TEMPORARY ON DATABASE postgres TO {GUEST}")
    place.rows("CREATE TABLE accounts (id bigserial)")

    async with open_store(url_of_guest(place)) as store:
        await store.put([of_day(TODAY, 1)])
        assert len(await found(store)) == 1


async def test_each_table_of_a_store_has_to_be_its_own(place: Place) -> None:
    place.rows(f"GRANT CREATE ON SCHEMA {place.schema} TO {GUEST}; GRANT TEMPORARY ON DATABASE postgres TO {GUEST}")
    async with open_store(url_of_guest(place)) as store:
        await store.put([of_day(TODAY, 1)])

    for table in (f"envelopes_d{TODAY}", "envelopes_rest", "envelope_seq", "ids_rest", "mailserver_schema"):
        place.rows(f"ALTER TABLE {table} OWNER TO {USER}; GRANT ALL ON {table} TO {GUEST}")
        assert await refusal(place) == f"the user {GUEST} does not own {table}: ALTER TABLE {table} OWNER TO {GUEST}"
        place.rows(f"ALTER TABLE {table} OWNER TO {GUEST}")
