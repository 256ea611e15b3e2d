"""`run --workers N`: a supervisor, which has the data directory's lock and the port, and N processes that serve peers.

The supervisor is forked into each of them. It has no event loop and no thread, and opens no store, so a fork of it is
as good as new. It starts again what dies, and hands signals on. The listening sockets stay open in it: connections that
come while a worker is away wait for its successor. Whoever connects comes to the worker of his subnet
(`net.shared_port`).

Worker 0 starts first, and stops last: it has what there is one of, and with SQLite it stores for all.
"""

import logging
import mmap
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, fields, replace

from mailserver.app.config import Config, parse_address
from mailserver.app.process import listening_refused
from mailserver.data_dir.folder import load_or_make_key, locked
from mailserver.errors import ConfigError
from mailserver.net.listener import BACKLOG
from mailserver.net.shared_port import open_shared_port

log = logging.getLogger(__name__)

FIRST_RESTART_S = 0.1
MAX_RESTART_S = 30.0
"""How long to wait before a worker is started again. The wait doubles each time, from the first after STABLE_S. A stop
that a service manager sends to all processes at once comes in this time, so nothing is started then."""

STABLE_S = 60.0
"""A worker that has run for so long has not died because of how it starts."""

_READY = signal.SIGUSR1
"""A worker tells the supervisor by this that `Board` says something new."""

_BY_SIGNAL = 128

_STOP = (signal.SIGTERM, signal.SIGINT)
_HEARD = (*_STOP, signal.SIGHUP, signal.SIGCHLD, _READY)

Serve = Callable[["Worker", Config], None]
"""Serves peers as a worker until SIGTERM."""


class Board:
    """Which workers serve peers at present: memory that the supervisor and all workers share."""

    def __init__(self, count: int) -> None:
        self._bytes = mmap.mmap(-1, count)
        self._count = count

    def __getitem__(self, number: int) -> bool:
        return bool(self._bytes[number])

    def __setitem__(self, number: int, is_running: bool) -> None:
        self._bytes[number] = is_running

    @property
    def running(self) -> int:
        """How many do."""
        return sum(self._bytes[: self._count])


@dataclass(frozen=True, slots=True)
class Worker:
    """This process, as one of several.

    `sockets`: what it accepts on, listening already. `lifeline`: a descriptor that ends when the supervisor has gone.
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


@dataclass(slots=True)
class _Place:
    """A worker as the supervisor knows it: its process, None while there is none, and when it may be started."""

    number: int
    pid: int | None = None
    started_at: float = 0.0
    start_at: float = 0.0
    wait_s: float = FIRST_RESTART_S
    is_to_reload: bool = False
    is_stopping: bool = False


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
    exit_code: int = 0
    _board: Board = field(init=False)
    _places: list[_Place] = field(init=False)
    _lifeline: tuple[int, int] = field(init=False)
    _has_begun: bool = False
    _is_stopping: bool = False

    def __post_init__(self) -> None:
        self._board = Board(self.config.workers)
        self._places = [_Place(number) for number in range(self.config.workers)]
        self._lifeline = os.pipe()

    def run(self) -> Worker | None:
        """Start workers, and start them again, until all have stopped; then return None. In a worker, return which."""
        while True:
            self._reap()
            self._stop_next()
            if self._is_stopping and not self._running():
                return None
            for place in self._due():
                worker = self._start(place)
                if worker is not None:
                    return worker
            self._hear()

    def _due(self) -> Iterable[_Place]:
        """Those that are to be started now. Nobody is before worker 0 serves peers for the first time."""
        if self._is_stopping:
            return []
        if not self._has_begun and not self._board[0]:
            return [place for place in self._places[:1] if place.pid is None]
        now = time.monotonic()
        return [place for place in self._places if place.pid is None and now >= place.start_at]

    def _start(self, place: _Place) -> Worker | None:
        supervisor = os.getpid()
        sys.stderr.flush()
        pid = os.fork()
        if pid:
            place.pid, place.started_at, place.is_to_reload = pid, time.monotonic(), False
            log.info("worker started number=%d pid=%d", place.number, pid)
            return None
        os.setpgid(0, 0)  # what a terminal sends goes to the supervisor alone, which ends its workers in order
        os.close(self._lifeline[1])
        for other in self._places:
            if other is not place:
                for each in self.sockets[other.number]:
                    each.close()
        return Worker(place.number, self.sockets[place.number], self._board, self._lifeline[0], supervisor)

    def _hear(self) -> None:
        """Wait for a signal, or until a worker is to be started again; act on the signal."""
        waiting = [place.start_at for place in self._places if place.pid is None]
        if waiting and not self._is_stopping and (self._has_begun or self._board[0]):
            heard = signal.sigtimedwait(_HEARD, max(min(waiting) - time.monotonic(), 0))
        else:
            heard = signal.sigwaitinfo(_HEARD)
        number = None if heard is None else heard.si_signo
        if number in _STOP and not self._is_stopping:
            log.info("stopping workers count=%d", len(self._running()))
            self._is_stopping = True
        elif number == signal.SIGHUP:
            self._reload()
        elif number == _READY:
            self._on_ready()

    def _on_ready(self) -> None:
        for place in self._running():
            if place.is_to_reload and self._board[place.number]:
                place.is_to_reload = False
                _send(place, signal.SIGHUP)
        if not self._has_begun and self._board.running == len(self._places):
            self._has_begun = True
            log.info("workers are ready count=%d", len(self._places))

    def _reload(self) -> None:
        """Have the workers reload, and start later ones with the same settings. What is wrong with them, they say."""
        try:
            read = self.reload()
        except ConfigError:
            pass
        else:
            self.config = with_reloaded(self.config, read)
        for place in self._running():
            place.is_to_reload = True
        self._on_ready()

    def _reap(self) -> None:
        """Take note of the workers that have ended."""
        for place in self._running():
            assert place.pid is not None
            pid, status = os.waitpid(place.pid, os.WNOHANG)
            if pid:
                place.pid = None
                self._board[place.number] = False
                self._on_end(place, os.waitstatus_to_exitcode(status))

    def _on_end(self, place: _Place, code: int) -> None:
        """Decide what follows: the end of all, or another start."""
        if self._is_stopping:
            if code != -signal.SIGTERM:  # it had nothing to stop yet, or nothing any more
                self.exit_code = self.exit_code or _exit_code(code)
            return
        if not self._has_begun:  # it has said why
            self._is_stopping, self.exit_code = True, _exit_code(code) or 1
            if code < 0:
                log.critical("worker killed while it started number=%d signal=%s", place.number, _cause(code))
            return
        now = time.monotonic()
        if now - place.started_at >= STABLE_S:
            place.wait_s = FIRST_RESTART_S
        log.error("worker ended number=%d cause=%r restart_s=%.1f", place.number, _cause(code), place.wait_s)
        place.start_at = now + place.wait_s
        place.wait_s = min(2 * place.wait_s, MAX_RESTART_S)

    def _stop_next(self) -> None:
        """While stopping: have the workers stop, and worker 0 when the others have. It stores what these have taken."""
        if self._is_stopping:
            running = self._running()
            for place in [place for place in running if place.number] or running:
                if not place.is_stopping:
                    place.is_stopping = True
                    _send(place, signal.SIGTERM)

    def _running(self) -> list[_Place]:
        return [place for place in self._places if place.pid is not None]


def with_reloaded(config: Config, read: Config) -> Config:
    """The settings in force, with those of the ones just read that may change without a restart."""
    names = (each.name for each in fields(Config) if each.metadata["reloadable"])
    return replace(config, **{name: getattr(read, name) for name in names})


def _send(place: _Place, number: signal.Signals) -> None:
    assert place.pid is not None
    os.kill(place.pid, number)  # it is not reaped, so there is such a process


def _exit_code(code: int) -> int:
    """As shells have it: beyond 128 if a signal has ended it."""
    return _BY_SIGNAL - code if code < 0 else code


def _cause(code: int) -> str:
    """How a process has ended."""
    return signal.Signals(-code).name if code < 0 else f"exit code {code}"
