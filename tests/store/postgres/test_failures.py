"""mailserver.store.postgres.failures: what goes wrong, in words."""

import asyncpg
import pytest

from mailserver.store.postgres.failures import StoreFailures, explain


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (TimeoutError(), "the database does not answer in time"),
        (ConnectionRefusedError(111, "Connection refused"), "the database cannot be reached: Connection refused"),
        (asyncpg.DiskFullError("no space left\non the device"), "the database says: no space left"),
        (
            asyncpg.InterfaceError("connection is closed"),
            "the connection to the database was lost: connection is closed",
        ),
        (
            asyncpg.InternalClientError("cannot switch to state 15"),
            "the connection to the database was lost: cannot switch to state 15",
        ),
        (
            asyncpg.ConnectionDoesNotExistError("closed in the middle of operation"),
            "the connection to the database was lost: closed in the middle of operation",
        ),
    ],
    ids=["silent", "refused", "full", "closed", "out of turn", "cut"],
)
def test_what_the_driver_raises_is_one_line_about_the_database(error: Exception, text: str) -> None:
    assert explain(error) == text


def test_transaction_that_is_left_after_its_connection_was_lost_says_how_that_was() -> None:
    error = asyncpg.InterfaceError("cannot call Transaction.__aexit__(): the underlying connection is closed")
    error.__context__ = ConnectionResetError(104, "Connection reset by peer")

    assert explain(error) == "the database cannot be reached: Connection reset by peer"


def test_what_is_damaged_is_remembered_and_what_is_refused_is_not() -> None:
    failures = StoreFailures()

    failures.not_read(asyncpg.InsufficientPrivilegeError("permission denied"))
    assert failures.damage == ""

    failures.not_read(asyncpg.DataCorruptedError("invalid page in block 3"))
    assert failures.damage == "some of it cannot be read: the database says: invalid page in block 3"
