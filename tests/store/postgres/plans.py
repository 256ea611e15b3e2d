"""What PostgreSQL really does for a statement: which partitions it reads, and how many rows of them.

A statement is prepared and explained with EXPLAIN ANALYZE, in a session like a mailserver's: by the plan that it has
for all parameters, which is what is in use, and by one that is made for these.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mailserver.store.interface import OURSELVES, Payer
from mailserver.store.postgres.connections import DriverConnection, open_links
from mailserver.store.postgres.failures import StoreFailures
from mailserver.store.postgres.readers import ReaderPool, Removed

MODES = ("force_generic_plan", "force_custom_plan")

Statement = tuple[str, Sequence[object]]


class Recorded(ReaderPool):
    """Connections that read, and all that they have run."""

    run_so_far: list[Statement]

    @classmethod
    def on(cls, links: Sequence[Any], failures: StoreFailures) -> "Recorded":
        pool = cls(links, failures, Removed(-1, -1))
        pool.run_so_far = []
        return pool

    async def run(
        self,
        sql: str,
        parameters: Sequence[object] = (),
        work: int = 1,
        payer: Payer = OURSELVES,
        *,
        likely: int | None = None,
    ) -> tuple[Any, ...]:
        self.run_so_far.append((sql, parameters))
        return await super().run(sql, parameters, work, payer, likely=likely)


@dataclass(frozen=True, slots=True)
class Step:
    """One step of a plan that was carried out. `rows`: how many it looked at, in all of its loops; `kept`, how many of
    these it passed on."""

    kind: str
    table: str
    index: str
    kept: int
    rows: int
    conditions: str


@dataclass(frozen=True, slots=True)
class Plan:
    """What was done for a statement. `pages`: how many of the tables and indexes were read."""

    sql: str
    steps: tuple[Step, ...]
    pages: int

    @property
    def partitions(self) -> set[str]:
        """The partitions of envelopes, and of ids, of which anything was read."""
        return {step.table for step in self.steps if step.table.startswith(("envelopes", "ids"))}

    def of_partitions(self) -> list[Step]:
        return [step for step in self.steps if step.table in self.partitions]

    @property
    def rows(self) -> int:
        """How many rows of partitions it looked at."""
        return sum(step.rows for step in self.of_partitions())

    @property
    def sorted(self) -> int:
        """How many rows were sorted, or hashed."""
        return sum(
            step.rows for step in self.steps if step.kind in ("Sort", "Incremental Sort", "Hash", "HashAggregate")
        )


async def plans_of(url: str, statements: Sequence[Statement], mode: str) -> list[Plan]:
    """How each of these is carried out."""

    async def explain(connection: DriverConnection) -> list[Plan]:
        plans = []
        await connection.execute(f"SET plan_cache_mode = {mode}")
        for number, (sql, parameters) in enumerate(statements):
            given = ", ".join(map(_literal, parameters))
            await connection.execute(f"PREPARE p{number} AS {sql}")
            how = f"EXPLAIN (ANALYZE, BUFFERS, TIMING OFF, FORMAT JSON) EXECUTE p{number}"
            (found,) = json.loads(await connection.fetchval(f"{how} ({given})" if given else how))
            root = found["Plan"]
            pages = root["Shared Hit Blocks"] + root["Shared Read Blocks"]
            plans.append(Plan(sql, tuple(_steps(root)), pages))
        return plans

    async with open_links(url, 1, StoreFailures()) as (link,):
        return await link.run(explain)


def _steps(node: Mapping[str, Any]) -> Iterator[Step]:
    loops = node["Actual Loops"]
    if loops:  # else it was never carried out
        removed = sum(node.get(f"Rows Removed by {what}", 0) for what in ("Filter", "Join Filter", "Index Recheck"))
        kept = node["Actual Rows"] * loops
        conditions = " ".join(str(node.get(name, "")) for name in ("Index Cond", "Filter"))
        yield Step(
            node["Node Type"],
            node.get("Relation Name", ""),
            node.get("Index Name", ""),
            kept,
            kept + removed * loops,
            conditions,
        )
    for below in node.get("Plans", ()):
        yield from _steps(below)


def _literal(value: Any) -> str:
    if value is None:
        return "NULL"
    if isinstance(value, int):
        return str(value)
    return f"'{_text(value)}'"


def _text(value: Any) -> str:
    """As PostgreSQL reads a value of its type; in an array, with what escapes it."""
    if isinstance(value, bytes):
        return f"\\x{value.hex()}"
    if isinstance(value, int | str):
        return str(value)
    elements = (f'"\\\\x{each.hex()}"' if isinstance(each, bytes) else str(each) for each in value)
    return f"{{{','.join(elements)}}}"
