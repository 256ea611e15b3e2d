"""The database that the store is in, if it is in one."""

import asyncio
from importlib.util import find_spec

from mailserver.app.config import Config
from mailserver.doctor.findings import Finding, ok, problem, warning
from mailserver.errors import StoreError

_CHECK = "database"


def check_database(config: Config) -> list[Finding]:
    """Check that the database can keep the store; nothing if the store is a file."""
    if not config.store:
        return []
    if find_spec("asyncpg") is None:
        return [problem(_CHECK, "asyncpg is not installed", "pip install 'waku-mailserver[postgres]'")]
    return _look(config.store)


def _look(url: str) -> list[Finding]:
    from mailserver.store.postgres.inspection import CONNECTIONS, inspect  # noqa: PLC0415 - asyncpg is in an extra

    try:
        facts = asyncio.run(inspect(url))
    except StoreError as error:
        return [problem(_CHECK, str(error), "start it, or correct --store, or the password in ~/.pgpass")]
    name = f"PostgreSQL {facts.version}"
    if not facts.is_new_enough:
        return [problem(_CHECK, name, "install PostgreSQL 15 or newer")]
    if facts.is_standby:
        return [problem(_CHECK, f"{name} is a standby, which takes no writes", "name its primary by --store")]
    if facts.schema is None:
        return [problem(_CHECK, f"{name} has no schema of that name", "create it, or leave search_path out of --store")]
    what = "has a store" if facts.has_store else "has no store yet, which is made at the first start"
    findings = [ok(_CHECK, f"{name} {what}, in schema {facts.schema}")]
    if not facts.is_durable:
        text = "it does not keep what it confirms through a power cut: fsync or full_page_writes is off"
        findings.append(problem("database disk", text, "switch both on"))
    if facts.free_connections < CONNECTIONS:
        text = f"it takes {facts.free_connections} more connections, and a mailserver uses {CONNECTIONS}"
        findings.append(warning("connections", text, "raise max_connections, unless the mailserver is running"))
    return findings
