"""mailserver.store.postgres.urls: what a URL may be, and that nobody reads a password."""

import asyncio
import logging

import pytest

from mailserver.errors import StoreError
from mailserver.store.postgres.inspection import inspect
from mailserver.store.postgres.job import StoreDatabase
from mailserver.store.postgres.store import open_store
from mailserver.store.postgres.urls import check_url, shown_url

SECRET = "5ecret"

PARTED = [f"12{character}{SECRET}" for character in "@/?#[]"]
"""Passwords with a character that parts a URL."""

AMBIGUOUS = [
    *(f"postgresql://mail:{password}@127.0.0.1:1/mail" for password in PARTED),
    *(f"postgresql://mail:{password}@127.0.0.1:1/mail" for password in (f"a/{SECRET}", f"1?a={SECRET}")),
    f"postgresql://mail:{SECRET}/mail",
    f"postgresql://127.0.0.1:1/mail?password=a@{SECRET}",
    f"postgresql://127.0.0.1:1/mail?password=a&{SECRET}",
    f"postgresql://127.0.0.1:1/mail#{SECRET}",
]


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("postgresql://mail:secret@db/mail", "postgresql://mail@db/mail"),
        ("postgresql://mail:se%40cret@db:5433/mail", "postgresql://mail@db:5433/mail"),
        ("postgresql:///mail?host=/run/pg&password=secret", "postgresql:///mail?host=/run/pg"),
        ("postgresql://db/mail?sslpassword=secret&sslmode=verify-full", "postgresql://db/mail?sslmode=verify-full"),
    ],
)
def test_url_is_shown_without_its_password(url: str, shown: str) -> None:
    assert shown_url(url) == shown


@pytest.mark.parametrize(
    "url",
    [
        "postgres://db",
        "postgresql:///mail",
        "postgresql://mail:a%40b:c;d@db:5432/mail",
        "postgresql://mail@[fe80::1]:5432/mail",
        "postgresql://mail@one:5432,two/mail?target_session_attrs=read-write",
        "postgresql://%2Frun%2Fpostgresql/mail",
        "postgresql://mail@/mail?host=/run/postgresql&options=-c%20jit=off&password=",
    ],
)
def test_url_of_libpq_is_one(url: str) -> None:
    check_url(url)


@pytest.mark.parametrize("url", AMBIGUOUS)
async def test_url_that_can_be_read_in_another_way_is_refused_and_not_shown(
    url: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    database = StoreDatabase(url)
    said = [str(database), shown_url(url)]

    with pytest.raises(StoreError, match="such as @ as %40") as opening:
        async with open_store(url):
            pass
    with pytest.raises(StoreError, match="such as @ as %40") as inspecting:
        await inspect(url)
    with pytest.raises(StoreError, match="such as @ as %40") as asking:
        await asyncio.to_thread(database.exists)

    assert SECRET not in "".join([*said, *(str(error.value) for error in (opening, inspecting, asking)), caplog.text])
