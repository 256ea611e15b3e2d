"""`python -m bench.workers`: how fast one, two or more workers take envelopes in, of peers from several subnets.

Each run starts a mailserver of its own, with an empty store in a file or in an empty schema of a database. The peers
are spread evenly over the workers, and live in processes of their own, half as many as there are processors. What a
machine with few of these shows is what several workers cost, and not what they gain.
"""

import argparse
import asyncio
import contextlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from statistics import median

import uvloop

from bench.addresses import address
from bench.daemon import Daemon, DaemonFailed, cpu_s
from bench.helper import HelperFailed, helper
from bench.tables import table
from mailserver.app.config import Config
from mailserver.codec.keys import Enode
from mailserver.errors import MailserverError
from mailserver.net.shared_port import index_of

TOPICS = 5000


@dataclass(frozen=True, slots=True)
class Run:
    """Envelopes confirmed in a second, and the CPU that each process has used per envelope, in us: of the mailserver's
    and of the clients'."""

    per_second: float
    daemon_us: float
    clients_us: float


def sources(connections: int, workers: int) -> list[str]:
    """So many addresses of loopback in subnets of their own, of which each worker gets its share."""
    numbers = count()

    def next_of(worker: int) -> str:
        return next(found for number in numbers if index_of(found := address(number), workers) == worker)

    return [next_of(number % workers) for number in range(connections)]


def daemon_cpu_s(supervisor: int) -> float:
    """Seconds of CPU of a mailserver and its workers."""
    children = Path(f"/proc/{supervisor}/task/{supervisor}/children").read_text(encoding="ascii").split()
    return sum(map(cpu_s, [supervisor, *map(int, children)]))


async def measure(enode: Enode, pid: int, places: Sequence[str], envelopes: int, per_packet: int) -> Run:
    """Post so many envelopes from these addresses.

    Raises:
        HelperFailed: not all were confirmed.
    """
    processes = min(len(places), max((os.cpu_count() or 1) // 2, 1))
    async with contextlib.AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(helper("bench.worker_clients")) for _ in range(processes)]
        orders = [
            {
                "enode": str(enode),
                "sources": places[at::processes],
                "envelopes": envelopes // processes,
                "per_packet": per_packet,
                "topics": TOPICS,
            }
            for at in range(processes)
        ]
        ready = await asyncio.gather(*(each.ask(order) for each, order in zip(clients, orders, strict=True)))
        used, began = daemon_cpu_s(pid), time.perf_counter()
        done = await asyncio.gather(*(each.ask({}) for each in clients))
        seconds, used = max(each["done_at"] for each in done) - began, daemon_cpu_s(pid) - used
    posted = envelopes // processes * processes
    clients_s = sum(each["cpu_s"] for each in done) - sum(each["cpu_s"] for each in ready)
    return Run(posted / seconds, used / posted * 1e6, clients_s / posted * 1e6)


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print, return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m bench.workers", description=__doc__)
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2], metavar="N")
    parser.add_argument("--packets", type=int, nargs="+", default=[1, 100], metavar="N", help="envelopes per packet")
    parser.add_argument("--envelopes", type=int, default=100_000, metavar="N")
    parser.add_argument("--connections", type=int, default=8, metavar="N")
    parser.add_argument("--runs", type=int, default=3, metavar="N", help="of which the median is shown")
    parser.add_argument("--database", metavar="URL", help="measure a store there, too; psql must be able to use it")
    arguments = parser.parse_args(argv)
    engines = ["file", *(["database"] if arguments.database else [])]
    rows = []
    try:
        for engine in engines:
            for per_packet in arguments.packets:
                for workers in arguments.workers:
                    runs = [_run(arguments, engine, workers, per_packet) for _ in range(arguments.runs)]
                    figures = (
                        median(getattr(run, name) for run in runs) for name in ("per_second", "daemon_us", "clients_us")
                    )
                    rows.append([engine, f"{per_packet}", f"{workers}", *(f"{figure:,.0f}" for figure in figures)])
    except (MailserverError, DaemonFailed, HelperFailed, subprocess.CalledProcessError, OSError) as error:
        print(f"bench: {error}", file=sys.stderr)
        return 1
    print(table(["store", "packets of", "workers", "envelopes/s", "its CPU us", "clients' CPU us"], rows))
    return 0


def _run(arguments: argparse.Namespace, engine: str, workers: int, per_packet: int) -> Run:
    flags = ["--workers", str(workers)]
    with tempfile.TemporaryDirectory(prefix="bench-") as folder, contextlib.ExitStack() as stack:
        if engine == "database":
            flags += ["--store", stack.enter_context(_schema(arguments.database))]
        daemon = stack.enter_context(Daemon(Path(folder), Config().password, flags))
        places = sources(arguments.connections, workers)
        return uvloop.run(measure(daemon.enode, daemon.pid, places, arguments.envelopes, per_packet))


@contextlib.contextmanager
def _schema(url: str) -> Iterator[str]:
    """A schema that is empty, and gone at the end; yield the URL of a store in it."""
    name = f"bench_{os.getpid()}_{time.time_ns()}"
    _psql(url, f"CREATE SCHEMA {name}")
    try:
        yield f"{url}{'&' if '?' in url else '?'}search_path={name}"
    finally:
        _psql(url, f"DROP SCHEMA {name} CASCADE")


def _psql(url: str, statement: str) -> None:
    quiet = ["-q", "-c", "SET client_min_messages = warning", "-c", statement]
    subprocess.run(["psql", url, *quiet], check=True, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)


if __name__ == "__main__":
    sys.exit(main())
