"""`run --workers N`: a supervisor, which has the data directory's lock and the port, and N processes that serve peers.

The supervisor is forked into each of them. It has no event loop and no thread, and opens no store, so a fork of it is
as good as new. It starts again what dies, and hands signals on (`app.worker_places` decides). The listening sockets
stay open in it: connections that come while a worker is away wait for its successor. Whoever connects comes to the
worker of his subnet (`net.shared_port`).

Worker 0 has what there is one of. With SQLite it stores for all.
"""

import contextlib
import logging
import mmap
import os
import signal
import socket
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace

from mailserver.app.config import Config, parse_address
from mailserver.app.logs import LogFormat, set_up_logging
from mailserver.app.process import listening_refused
from mailserver.app.worker_places import WorkerPlaces
from mailserver.data_dir.folder import load_or_make_key, locked
from mailserver.errors import ConfigError
from mailserver.net.listener import BACKLOG
from mailserver.net.shared_port import open_shared_port

log = logging.getLogger(__name__)

_READY = signal.SIGUSR1
"""A worker tells the supervisor by this that `Board` says something new."""

_STOP = (signal.SIGTERM, signal.SIGINT)
_HEARD = (*_STOP, signal.SIGHUP, signal.SIGCHLD, _READY)

_SECONDS_BYTES = 8  # a float

Serve = Callable[["Worker", Config], None]
"""Serves peers as a worker until SIGTERM."""


class Board:
    """Which workers serve peers at present, and when they last had some: memory that the supervisor and all workers
    share."""

    def __init__(self, count: int) -> None:
        self._bytes = mmap.mmap(-1, count)
        self._peers_seen = memoryview(mmap.mmap(-1, count * _SECONDS_BYTES)).cast("d")
        self._count = count

    def __getitem__(self, number: int) -> bool:
        return bool(self._bytes[number])

    def __setitem__(self, number: int, is_running: bool) -> None:
        self._bytes[number] = is_running

    def share_seen(self, number: int, seen_at: float) -> float:
        """Say when a peer was last connected to a worker; return when one last was to any. Monotonic seconds, which
        are the same in all processes."""
        self._peers_seen[number] = seen_at
        return max(self._peers_seen)

    @property
    def running(self) -> int:
        """How many do."""
        return sum(self._bytes[: self._count])


@dataclass(frozen=True, slots=True)
class Worker:
    """This process, as one of several.

    `sockets`: what it accepts on, listening already. `lifeline`: a descriptor that ends when the supervisor has gone,
    whose process id is `supervisor`.
    """

    number: int
    sockets: tuple[socket.socket, ...]
    board: Board
    lifeline: int
    supervisor: int

    def ready(self) -> None:
        """Tell the supervisor that peers are served, and signals heard."""
        self.board[self.number] = True
        if os.getppid() == self.supervisor:
            os.kill(self.supervisor, _READY)


def running_of(worker: Worker | None, expected: int) -> tuple[int, int]:
    """How many workers serve peers, and how many should. None: this process is the only one."""
    return 1 if worker is None else worker.board.running, expected


def share_seen(worker: Worker | None, seen_at: float) -> float:
    """Say when a peer was last connected to this process; return when one last was to any: see `Board.share_seen`."""
    return seen_at if worker is None else worker.board.share_seen(worker.number, seen_at)


def supervise(config: Config, serve: Serve, reload: Callable[[], Config]) -> int:
    """Run the workers until SIGTERM or SIGINT; return the exit code. In each worker, this returns once it has stopped.

    Args:
        reload: reads the settings again; raises ConfigError.
    Raises:
        StartupError: the data directory, the key or the port cannot be used.
        MailserverError: in a worker, what `serve` has raised.
    """
    with locked(config.data_dir):
        load_or_make_key(config.data_dir)
        host, port = parse_address("listen", config.listen)
        with listening_refused(config.listen):
            sockets = open_shared_port(host, port, config.workers, BACKLOG)
        was_blocked = signal.pthread_sigmask(signal.SIG_BLOCK, _HEARD)
        supervisor = _Supervisor(config, sockets, reload)
        log.info("starting workers count=%d", config.workers)
        worker = supervisor.run()
        if worker is None:
            return supervisor.exit_code
        signal.pthread_sigmask(signal.SIG_SETMASK, was_blocked)
        serve(worker, supervisor.config)
        return 0


@dataclass(slots=True)
class _Supervisor:
    config: Config
    sockets: list[tuple[socket.socket, ...]]
    reload: Callable[[], Config]
    _board: Board = field(init=False)
    _places: WorkerPlaces = field(init=False)
    _lifeline: tuple[int, int] = field(init=False)

    def __post_init__(self) -> None:
        self._board = Board(self.config.workers)
        self._places = WorkerPlaces(self.config.workers)
        self._lifeline = os.pipe()

    @property
    def exit_code(self) -> int:
        return self._places.exit_code

    def run(self) -> Worker | None:
        """Start workers, and start them again, until all have stopped; then return None. In a worker, return which."""
        places = self._places
        while True:
            self._look()
            for number in places.to_reload():
                os.kill(places.running[number], signal.SIGHUP)
            for number in places.to_stop():
                os.kill(places.running[number], signal.SIGTERM)
            if places.has_stopped:
                return None
            for number in places.due(time.monotonic()):
                worker = self._start(number)
                if worker is not None:
                    return worker
            self._hear()

    def _look(self) -> None:
        """See who has ended, and who serves peers."""
        for number, pid in self._places.running.items():
            found, status = os.waitpid(pid, os.WNOHANG)
            if found:
                self._board[number] = False
                self._on_end(number, os.waitstatus_to_exitcode(status))
            elif self._board[number] and self._places.ready(number):
                log.info("workers are ready count=%d", self.config.workers)

    def _on_end(self, number: int, code: int) -> None:
        ended = self._places.ended(number, code, time.monotonic())
        if ended is not None and ended.restart_s is not None:
            log.error("worker ended number=%d cause=%r restart_s=%.1f", number, ended.cause, ended.restart_s)
        elif ended is not None and code <= 0:  # else it has said why
            log.critical("worker ended while it started number=%d cause=%r", number, ended.cause)

    def _start(self, number: int) -> Worker | None:
        supervisor = os.getpid()
        sys.stderr.flush()
        pid = os.fork()
        if pid:
            self._places.started(number, pid, time.monotonic())
            log.info("worker started number=%d pid=%d", number, pid)
            return None
        os.setpgid(0, 0)  # what a terminal sends goes to the supervisor alone, which ends its workers in order
        os.close(self._lifeline[1])
        for other, sockets in enumerate(self.sockets):
            for each in sockets if other != number else ():
                each.close()
        return Worker(number, self.sockets[number], self._board, self._lifeline[0], supervisor)

    def _hear(self) -> None:
        """Wait for a signal, or until a worker is to be started."""
        at = self._places.next_start()
        wait_s = None if at is None else max(at - time.monotonic(), 0)
        heard = signal.sigwaitinfo(_HEARD) if wait_s is None else signal.sigtimedwait(_HEARD, wait_s)
        if heard is not None and heard.si_signo in _STOP and not self._places.is_stopping:
            log.info("stopping workers count=%d", len(self._places.running))
            self._places.stop()
        elif heard is not None and heard.si_signo == signal.SIGHUP:
            self._reload()

    def _reload(self) -> None:
        """Have the workers reload, and start later ones with the same settings. What is wrong with them, they say."""
        with contextlib.suppress(ConfigError):
            self.config = with_reloaded(self.config, self.reload())
            set_up_logging(self.config.log_level, LogFormat(self.config.log_format))
        self._places.reload()


def with_reloaded(config: Config, read: Config) -> Config:
    """The settings in force, with those of the ones just read that may change without a restart."""
    names = (each.name for each in fields(Config) if each.metadata["reloadable"])
    return replace(config, **{name: getattr(read, name) for name in names})
