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

_MEMORY_LINE = 6
"""Of postmaster.pid: a key, and the id of a piece of shared memory."""

_NO_DEADLOCK = "-clock_timeout=10s"
"""A test waits for its statement, and what holds a lock may wait for the test: this says so rather than hang."""

_CUT_OFF = (
    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
    "WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()"
)

QUICK = {"fsync": "off", "full_page_writes": "off"}
"""For tests that pull no plug: what the disk has is of no importance."""

FORGETFUL = {"synchronous_commit": "off", "wal_writer_delay": "10s"}
"""Settings of a server that keeps nothing that it is not asked to keep: it waits for 10 s before what it confirms is on
disk."""

_SETTINGS = {
    "listen_addresses": "",
    "max_connections": "100",
    "shared_buffers": "64MB",
    "dynamic_shared_memory_type": "mmap",  # what is killed leaves nothing behind outside of its folder
    "log_min_messages": "warning",
    "wal_level": "minimal",
    "max_wal_senders": "0",
}


class Server:
    """A server with one database, `postgres`, which anybody on the machine may use by its socket."""

    def __init__(self, settings: Mapping[str, str], *, data: Path | None = None, wal_segment_mb: int = 16) -> None:
        """Make one, which does not run yet.

        Args:
            data: where its files are to be, if not in a folder of its own, or are already.
            wal_segment_mb: how long the files of its log are.
        """
        self._bin = binaries()
        # Not below a folder of pytest's, which nobody but root may enter; and the path of a socket must be short.
        self.folder = Path(tempfile.mkdtemp(prefix="pg-"))
        self.data = data or self.folder / "data"
        self._settings = {**_SETTINGS, "unix_socket_directories": str(self.folder), **settings}
        self._process: subprocess.Popen[bytes] | None = None
        give_to_server(self.folder)
        made = ("initdb", "-D", self.data, "-U", USER, "-A", "trust", "--no-sync", "-E", "UTF8", "--locale=C")
        if not (self.data / "PG_VERSION").exists():
            self._run(*made, f"--wal-segsize={wal_segment_mb}")

    @property
    def pid(self) -> int:
        """Its main process, which the others are children of."""
        assert self._process is not None
        return self._process.pid

    @property
    def socket(self) -> Path:
        """The Unix socket that it listens on."""
        return self.folder / ".s.PGSQL.5432"

    def start(self, environment: Mapping[str, str] | None = None) -> None:
        """Start it, and wait until it can be connected to.

        Args:
            environment: more variables.
        """
        options = [part for name, value in self._settings.items() for part in ("-c", f"{name}={value}")]
        log = (self.folder / "log").open("ab")
        with log:
            self._process = subprocess.Popen(
                [self._bin / "postgres", "-D", self.data, *options],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                env={**os.environ, **(environment or {})},
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
        signal_file = self.data / "standby.signal"
        signal_file.touch()
        give_to_server(signal_file)

    def kill(self) -> None:
        """Kill all of its processes at once, as the end of the machine's power does."""
        self._end(signal.SIGKILL)

    @contextlib.contextmanager
    def hanging(self) -> Iterator[None]:
        """Have it do nothing meanwhile, though it keeps its connections, and takes new ones."""
        self.hang()
        try:
            yield
        finally:
            self.go_on()

    @property
    def is_running(self) -> bool:
        """Whether it was started, and has not ended by itself."""
        return self._process is not None and self._process.poll() is None

    def hang(self) -> None:
        """Stop all of its processes where they are: whoever is connected stays connected, and hears nothing."""
        self._signal(signal.SIGSTOP)

    def go_on(self) -> None:
        """Let a server go on that hangs."""
        self._signal(signal.SIGCONT)

    def remove(self) -> None:
        """Stop it, and delete all that it has."""
        self.stop()
        lock = self.data / "postmaster.pid"
        if lock.exists():  # it was killed, and has left a piece of shared memory behind, which this file names
            for key_and_id in lock.read_text().splitlines()[_MEMORY_LINE : _MEMORY_LINE + 1]:
                subprocess.run(["ipcrm", "-m", *key_and_id.split()[1:]], check=False, capture_output=True)
        shutil.rmtree(self.folder, ignore_errors=True)

    def url(self, schema: str = "public") -> str:
        """Where a schema of the database is."""
        return f"postgresql://{USER}@/postgres?host={quote(str(self.folder), safe='')}&search_path={schema}"

    def sql(self, statement: str, schema: str = "public") -> str:
        """Run a statement; return what psql prints of it: a line for each row, columns with "|" between them."""
        options = ("-X", "-q", "-A", "-t", "-v", "ON_ERROR_STOP=1")
        done = subprocess.run(
            [self._bin / "psql", *options, "-c", statement, self.url().replace("&search_path=public", "")],
            env={**os.environ, "PGOPTIONS": f"-csearch_path={schema} -cclient_min_messages=warning {_NO_DEADLOCK}"},
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
        script = f"{_CUT_OFF};\nDROP SCHEMA {schema} CASCADE;\n".encode() + dump  # else one of them may hold a lock
        subprocess.run([self._bin / "psql", *options], input=script, check=True, capture_output=True)
        self.sql(_CUT_OFF)

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
        if process is not None and process.poll() is None:
            if number is signal.SIGKILL:
                _signal_all(process.pid, number)
            else:
                process.send_signal(number)
            process.wait(START_LIMIT_S)

    def _signal(self, number: signal.Signals) -> None:
        assert self._process is not None
        _signal_all(self._process.pid, number)


@contextlib.contextmanager
def running_server(settings: Mapping[str, str]) -> Iterator[Server]:
    """A server of one's own, which may be stopped and started, for the length of a `with`."""
    server = Server(settings)
    try:
        server.start()
        yield server
    finally:
        server.remove()


def _signal_all(postmaster: int, number: signal.Signals) -> None:
    """Send a signal to a server's processes, each of which leads a session of its own. None is made meanwhile."""
    os.kill(postmaster, signal.SIGSTOP)
    others = [int(pid) for pid in Path(f"/proc/{postmaster}/task/{postmaster}/children").read_text().split()]
    for pid in (*others, postmaster):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
    deadline = time.monotonic() + START_LIMIT_S
    while number is signal.SIGKILL and any(map(_lives, others)):  # its memory is in use as long as any does
        assert time.monotonic() < deadline, "a process of PostgreSQL does not end"
        time.sleep(0.005)


def _lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def give_to_server(path: Path) -> None:
    """Have a file, or a folder, belong to the user that servers run as."""
    if os.geteuid() == 0:
        shutil.chown(path, USER, USER)


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
