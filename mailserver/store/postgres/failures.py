"""What goes wrong with a store in PostgreSQL, in words."""

import asyncio
import logging

import asyncpg

from mailserver.errors import StoreError
from mailserver.store.engine.failures import Failures

log = logging.getLogger(__name__)

_DAMAGE_CLASS = "XX"
"""SQLSTATE class of what PostgreSQL finds damaged, such as a page whose checksum is wrong."""


class Unreachable(StoreError):
    """The database does not answer, or not in time: nothing is known of what was asked of it last."""


class Refusing(Unreachable):
    """It can be reached, and does not do this: it is read-only, or has too many connections, or somebody holds a lock
    for too long."""


REFUSALS = (asyncpg.QueryCanceledError, asyncpg.ReadOnlySQLTransactionError, asyncpg.TooManyConnectionsError)
"""What the database says then. A new connection is made all the same: whether a session may write was set when it
began."""

LOST = (asyncpg.InterfaceError, asyncpg.InternalClientError, OSError, asyncio.TimeoutError)
"""What the driver raises if a connection cannot be used any more. InternalClientError: the database has said something
out of turn, such as that it shuts down."""

ERRORS = (asyncpg.PostgresError, *LOST)
"""What the driver raises for what a database or a network does."""


def explain(error: BaseException) -> str:
    """One of ERRORS as one line for the operator, without the password."""
    if isinstance(error, TimeoutError):
        return "the database does not answer in time"
    if isinstance(error, OSError):
        return f"the database cannot be reached: {error.strerror or error}"
    if isinstance(error, asyncpg.InterfaceError) and isinstance(error.__context__, ERRORS):
        return explain(error.__context__)  # a transaction is left, whose connection was lost before
    text = str(error).partition("\n")[0] or type(error).__name__
    if isinstance(error, asyncpg.PostgresError) and not isinstance(error, asyncpg.PostgresConnectionError):
        return f"the database says: {text}"
    return f"the connection to the database was lost: {text}"


def unreachable(error: BaseException) -> Unreachable:
    """One of ERRORS as what is raised for it."""
    return (Refusing if isinstance(error, REFUSALS) else Unreachable)(explain(error))


class StoreFailures(Failures):
    """The state of one store, and whether its database can be reached."""

    read_errors = (asyncpg.PostgresError,)

    def __init__(self) -> None:
        super().__init__()
        self._unreachable = ""

    @property
    def writing(self) -> str:
        """Why envelopes are not being stored; "" if they are."""
        return self._lost or self._unreachable or super().writing

    @property
    def is_unreachable(self) -> bool:
        """Whether the database could not be reached the last time."""
        return bool(self._unreachable)

    def reached(self, cause: str = "") -> None:
        """The database was reached, or, for this cause, could not be."""
        before, self._unreachable = self._unreachable, cause
        if bool(before) != bool(cause):
            if cause:
                log.error("database unreachable, nothing is stored meanwhile error=%r", cause)
            else:
                log.info("database can be reached again")
            self.changed()

    def not_read(self, error: BaseException) -> str:
        """Something could not be read; return why."""
        cause = explain(error)
        if isinstance(error, asyncpg.PostgresError) and (error.sqlstate or "").startswith(_DAMAGE_CLASS):
            self.failed_to_read(cause)
        return cause


class FollowerFailures(StoreFailures):
    """The same for whoever only follows a store: what it cannot do then, it says itself."""

    def reached(self, cause: str = "") -> None:
        """The database was reached, or, for this cause, could not be."""
