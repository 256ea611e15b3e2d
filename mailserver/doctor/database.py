"""The database that the store is in, if it is in one."""

import asyncio
import time
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from mailserver.app.config import Config
from mailserver.data_dir.own_store import read_note
from mailserver.doctor.findings import FETCH_AGAIN, Finding, ok, problem, warning
from mailserver.errors import StartupError, StoreError
from mailserver.store.engine.arrivals import READERS
from mailserver.units import SECONDS_PER_DAY

if TYPE_CHECKING:  # asyncpg is in an extra
    from mailserver.store.postgres.inspection import DatabaseFacts
    from mailserver.store.postgres.presence import DatabaseState

_CHECK = "database"

FOLLOWERS = 2
"""How many processes beside a mailserver read its database, if it has a feed socket: a gateway, and `community serve`.
More than one gateway beside one mailserver is rare."""

WENT_BACK_SHOWN_S = 7 * SECONDS_PER_DAY
"""How long it is shown that a database went back, after a mailserver has noticed: whoever looks has a week."""


def check_database(config: Config) -> list[Finding]:
    """Check that the database can keep the store; nothing if the store is a file."""
    if not config.store:
        return []
    if find_spec("asyncpg") is None:
        return [problem(_CHECK, "asyncpg is not installed", "pip install -r requirements-postgres.lock")]
    return _look(config)


def _look(config: Config) -> list[Finding]:
    from mailserver.store.postgres.inspection import inspect  # noqa: PLC0415 - asyncpg is in an extra

    try:
        facts = asyncio.run(inspect(config.store))
    except StoreError as error:
        return [problem(_CHECK, str(error), "start it, or correct --store, or the password in ~/.pgpass")]
    return _judged(facts, config)


def _judged(facts: "DatabaseFacts", config: Config) -> list[Finding]:
    from mailserver.store.postgres.connections import CONNECTIONS  # noqa: PLC0415 - asyncpg is in an extra

    name = f"PostgreSQL {facts.version}"
    if not facts.is_new_enough:
        return [problem(_CHECK, name, "install PostgreSQL 15 or newer")]
    if facts.is_standby:
        return [problem(_CHECK, f"{name} is a standby, which takes no writes", "name its primary by --store")]
    if facts.schema is None:
        return [problem(_CHECK, f"{name} has no schema of that name", "create it, or leave search_path out of --store")]
    what = "has a store" if facts.has_store else "has no store yet, which is made at the first start"
    findings = [ok(_CHECK, f"{name} {what}, in schema {facts.schema}")]
    findings += _gone_back(facts.state, config.data_dir)
    if not facts.is_durable:
        text = "it does not keep what it confirms through a power cut: fsync or full_page_writes is off"
        findings.append(problem("database disk", text, "switch both on"))
    of_workers = CONNECTIONS * config.workers
    needed = of_workers + (FOLLOWERS * READERS if config.feed_socket else 0)
    if facts.free_connections < needed:
        who = "a mailserver uses" if config.workers == 1 else f"{config.workers} workers use"
        text = f"it takes {facts.free_connections} more connections, and {who} {of_workers}"
        if config.feed_socket:
            text += f", and a gateway and communities {READERS} each"
        findings.append(warning("connections", text, "raise max_connections, unless all of them are running"))
    return findings


def _gone_back(state: "DatabaseState", data_dir: Path) -> list[Finding]:
    """Whether the database was put back to an earlier moment, as far as a mailserver has noticed or has noted."""
    try:
        noted = read_note(data_dir)
    except StartupError:  # the mailserver says so when it starts
        noted = None
    if noted is not None and noted.identity == state.identity and noted.seq > state.newest:
        text = f"it went back in time: row {noted.seq} was seen in it, and its last is {state.newest}"
        return [problem("database rows", text, f"start the mailserver, which goes on beyond; then {FETCH_AGAIN}")]
    if state.moved_at > time.time() - WENT_BACK_SHOWN_S:
        at = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(state.moved_at))
        text = f"it went back in time, as was noticed at {at}"
        return [warning("database rows", text, FETCH_AGAIN)]
    return []
