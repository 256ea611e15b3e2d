"""Debian's PgBouncer before a server, on a Unix socket in a folder of its own."""

import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path
from urllib.parse import quote

import pytest

from tests.store.postgres.server import START_LIMIT_S, USER, Server, as_user

PORT = 6432


class Pooler:
    """A PgBouncer before one schema of a server: a user of its own has that schema, since PgBouncer takes no
    `search_path` from clients."""

    def __init__(self, server: Server, schema: str, mode: str, *, connections: int = 30) -> None:
        """Make one, which does not run yet. `mode` is its `pool_mode`."""
        program = shutil.which("pgbouncer") or "/usr/sbin/pgbouncer"
        if not Path(program).exists():
            reason = "PgBouncer is not installed: on Debian, apt-get install pgbouncer"
            (pytest.fail if os.environ.get("CI") else pytest.skip)(reason)
        self._program = program
        self.folder = Path(tempfile.mkdtemp(prefix="bouncer-"))
        self._process: subprocess.Popen[bytes] | None = None
        user = f"pooled_{schema}"
        server.sql(
            f"CREATE ROLE {user} LOGIN; GRANT ALL ON SCHEMA {schema} TO {user}; "
            f"ALTER ROLE {user} SET search_path = {schema}"
        )
        self._settings = self.folder / "pgbouncer.ini"
        self._settings.write_text(
            f"[databases]\n"
            f"postgres = host={server.folder} user={user}\n"
            f"[pgbouncer]\n"
            f"unix_socket_dir = {self.folder}\n"
            f"listen_port = {PORT}\n"
            f"auth_type = any\n"
            f"pool_mode = {mode}\n"
            f"default_pool_size = {connections}\n"
        )
        if os.geteuid() == 0:
            for path in (self.folder, self._settings):
                shutil.chown(path, USER, USER)

    @property
    def url(self) -> str:
        return f"postgresql://{USER}@/postgres?host={quote(str(self.folder), safe='')}&port={PORT}"

    def start(self) -> None:
        """Start it, and wait until it can be connected to."""
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [self._program, self._settings], stdin=subprocess.DEVNULL, stdout=log, stderr=log, **as_user()
            )
        deadline = time.monotonic() + START_LIMIT_S
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > deadline:
                pytest.fail(f"PgBouncer does not start: {(self.folder / 'log').read_text()[-2000:]}")
            time.sleep(0.02)

    def kill(self) -> None:
        """Kill it: all connections through it are cut."""
        process, self._process = self._process, None
        if process is not None:
            process.send_signal(signal.SIGKILL)
            process.wait(START_LIMIT_S)

    def remove(self) -> None:
        """Kill it, and delete all that it has."""
        self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _answers(self) -> bool:
        with socket.socket(socket.AF_UNIX) as client:
            return client.connect_ex(str(self.folder / f".s.PGSQL.{PORT}")) == 0
