"""PostgreSQL servers for tests, from Debian's packages: each in a folder of its own, on a Unix socket only.

PostgreSQL refuses to run as root. A test run that is root's runs it as the user that Debian's packages make.
"""

import atexit
import contextlib
import functools
import itertools
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

USER = "postgres"
START_LIMIT_S = 30.0

QUICK = {"fsync": "off", "full_page_writes": "off"}
"""For tests that pull no plug: what the disk has is of no importance."""

_SETTINGS = {
    "listen_addresses": "",
    "max_connections": "100",
    "shared_buffers": "64MB",
    "log_min_messages": "warning",
    "wal_level": "minimal",
    "max_wal_senders": "0",
}


class Server:
    """A server with one database, `postgres`, which anybody on the machine may use by its socket."""

    def __init__(self, settings: Mapping[str, str]) -> None:
        """Make one, which does not run yet."""
        self._bin = binaries()
        # Not below a folder of pytest's, which nobody but root may enter; and the path of a socket must be short.
        self.folder = Path(tempfile.mkdtemp(prefix="pg-"))
        self._data = self.folder / "data"
        self._settings = {**_SETTINGS, "unix_socket_directories": str(self.folder), **settings}
        self._process: subprocess.Popen[bytes] | None = None
        if os.geteuid() == 0:
            shutil.chown(self.folder, USER, USER)
        made = ("initdb", "-D", self._data, "-U", USER, "-A", "trust", "--no-sync", "-E", "UTF8", "--locale=C")
        self._run(*made)

    def start(self) -> None:
        """Start it, and wait until it can be connected to."""
        options = [part for name, value in self._settings.items() for part in ("-c", f"{name}={value}")]
        log = (self.folder / "log").open("ab")
        with log:
            self._process = subprocess.Popen(
                [self._bin / "postgres", "-D", self._data, *options],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                **as_user(),
            )
        deadline = time.monotonic() + START_LIMIT_S
        while self._run("pg_isready", "-q", "-h", self.folder, check=False):
            if self._process.poll() is not None or time.monotonic() > deadline:
                pytest.fail(f"PostgreSQL does not start: {(self.folder / 'log').read_text()[-2000:]}")
            time.sleep(0.02)

    def stop(self) -> None:
        """Stop it in order: whoever is connected is cut off."""
        self._end(signal.SIGINT)

    def stand_by(self) -> None:
        """From the next start on, it is a standby: it may be read, and waits for a primary that never says anything."""
        signal_file = self._data / "standby.signal"
        signal_file.touch()
        if os.geteuid() == 0:
            shutil.chown(signal_file, USER, USER)

    def kill(self) -> None:
        """Kill all of its processes at once, as the end of the machine's power does."""
        self._end(signal.SIGKILL)

    @contextlib.contextmanager
    def hanging(self) -> Iterator[None]:
        """Have it do nothing meanwhile, though it keeps its connections, and takes new ones."""
        assert self._process is not None
        connected = self.sql("SELECT pid FROM pg_stat_activity WHERE pid <> pg_backend_pid()").split()
        pids = [self._process.pid, *map(int, connected)]
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        try:
            yield
        finally:
            for pid in reversed(pids):
                os.kill(pid, signal.SIGCONT)

    def remove(self) -> None:
        """Stop it, and delete all that it has."""
        self.stop()
        shutil.rmtree(self.folder, ignore_errors=True)

    def url(self, schema: str = "public") -> str:
        """Where a schema of the database is."""
        return f"postgresql://{USER}@/postgres?host={quote(str(self.folder), safe='')}&search_path={schema}"

    def sql(self, statement: str, schema: str = "public") -> str:
        """Run a statement; return what psql prints of it: a line for each row, columns with "|" between them."""
        options = ("-X", "-q", "-A", "-t", "-v", "ON_ERROR_STOP=1")
        done = subprocess.run(
            [self._bin / "psql", *options, "-c", statement, self.url().replace("&search_path=public", "")],
            env={**os.environ, "PGOPTIONS": f"-csearch_path={schema} -cclient_min_messages=warning"},
            check=False,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def dump(self, schema: str) -> bytes:
        """A backup of a schema, as pg_dump makes it."""
        return subprocess.run(
            [self._bin / "pg_dump", "-h", self.folder, "-U", USER, "-n", schema, "postgres"],
            check=True,
            capture_output=True,
        ).stdout

    def restore(self, schema: str, dump: bytes) -> None:
        """Have a schema as it was in a backup, at once. Whoever is connected is cut off, as if it was the server."""
        options = ("-X", "-q", "-1", "-v", "ON_ERROR_STOP=1", "-h", self.folder, "-U", USER, "postgres")
        script = f"DROP SCHEMA {schema} CASCADE;\n".encode() + dump
        subprocess.run([self._bin / "psql", *options], input=script, check=True, capture_output=True)
        self.sql(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()"
        )

    def _run(self, name: str, *arguments: str | Path, check: bool = True) -> int:
        done: subprocess.CompletedProcess[bytes] = subprocess.run(
            [self._bin / name, *arguments],
            cwd=self.folder,
            stdin=subprocess.DEVNULL,
            check=False,
            capture_output=True,
            **as_user(),
        )
        assert not check or done.returncode == 0, done.stderr.decode()
        return done.returncode

    def _end(self, number: signal.Signals) -> None:
        process, self._process = self._process, None
        if process is not None:
            if number is signal.SIGKILL:
                os.killpg(process.pid, number)
            else:
                process.send_signal(number)
            process.wait(START_LIMIT_S)


def as_user() -> dict[str, Any]:
    return {"user": USER, "group": USER, "extra_groups": []} if os.geteuid() == 0 else {}


def binaries() -> Path:
    """Where the programs of PostgreSQL are; skip the test if there are none, or fail it in CI."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: int(path.parts[-3]))
    on_path = shutil.which("initdb")
    if found:
        return found[-1].parent
    if on_path:
        return Path(on_path).parent
    reason = "PostgreSQL is not installed: on Debian, apt-get install postgresql"
    if os.environ.get("CI"):
        pytest.fail(reason)
    pytest.skip(reason)


@functools.cache
def shared_server() -> Server:
    """A server for all tests of this process that only store and read. It is stopped with the process."""
    server = Server(QUICK)
    server.start()
    atexit.register(server.remove)
    return server


_SCHEMAS_AT_ONCE = 50
_schemas: dict[Server, Iterator[str]] = {}


def new_schema(server: Server) -> str:
    """A schema with a name that no other test has."""
    return next(_schemas.setdefault(server, _made(server)))


def _made(server: Server) -> Iterator[str]:
    """Schemas, of which many are made at once: psql takes longer to start than to make one."""
    for first in itertools.count(0, _SCHEMAS_AT_ONCE):
        names = [f"test_{number}" for number in range(first, first + _SCHEMAS_AT_ONCE)]
        server.sql("; ".join(f"CREATE SCHEMA {name}" for name in names))
        yield from names
