"""What a supervisor knows of its workers, and what is to be done next: a machine without processes. Times are monotonic
seconds.

Worker 0 is started first, and the others once it serves peers. It is stopped last. A worker that ends before all have
served peers ends everything: what is wrong with the settings or the store would not go away. Later it is started again.
"""

import signal
from dataclasses import dataclass, field

FIRST_RESTART_S = 0.1
MAX_RESTART_S = 30.0
"""How long to wait before a worker is started again. The wait doubles each time, from the first after STABLE_S. A stop
that a service manager sends to all processes at once comes in this time, so nothing is started then."""

STABLE_S = 60.0
"""A worker that has run for so long has not died because of how it starts."""

_BY_SIGNAL = 128


@dataclass(slots=True)
class _Place:
    """The place of one worker. `pid`: of its process; None while there is none."""

    pid: int | None = None
    started_at: float = 0.0
    start_at: float = 0.0
    wait_s: float = FIRST_RESTART_S
    is_ready: bool = False
    is_to_reload: bool = False
    is_stopping: bool = False


@dataclass(frozen=True, slots=True)
class WorkerEnded:
    """A worker has ended, and is started again after `restart_s`; None: it is not, and all others are stopped."""

    number: int
    cause: str
    restart_s: float | None


@dataclass(slots=True)
class WorkerPlaces:
    """The places of so many workers.

    `exit_code`: of the program, once all have stopped. `has_begun`: whether all of them have served peers.
    """

    count: int
    exit_code: int = 0
    has_begun: bool = False
    is_stopping: bool = False
    _places: list[_Place] = field(init=False)

    def __post_init__(self) -> None:
        self._places = [_Place() for _ in range(self.count)]

    @property
    def running(self) -> dict[int, int]:
        """The workers that have a process, and its id."""
        return {number: place.pid for number, place in enumerate(self._places) if place.pid is not None}

    def due(self, now: float) -> list[int]:
        """Which workers to start now."""
        return [number for number in self._waiting() if now >= self._places[number].start_at]

    def next_start(self) -> float | None:
        """When the next worker is to be started; None if something else has to happen before."""
        return min((self._places[number].start_at for number in self._waiting()), default=None)

    def started(self, number: int, pid: int, now: float) -> None:
        """A worker was started."""
        place = self._places[number]
        place.pid, place.started_at = pid, now
        place.is_ready = place.is_to_reload = False

    def ready(self, number: int) -> bool:
        """A worker serves peers; return whether now all do, for the first time. It may say so again and again."""
        self._places[number].is_ready = True
        before = self.has_begun
        self.has_begun = before or all(place.is_ready for place in self._places)
        return self.has_begun and not before

    def ended(self, number: int, code: int, now: float) -> WorkerEnded | None:
        """The process of a worker has ended; return what is to be said of that, if anything.

        Args:
            code: its exit code, or below 0 the signal that has ended it.
        """
        place = self._places[number]
        place.pid, place.is_ready = None, False
        if self.is_stopping:
            if code != -signal.SIGTERM:  # it had nothing to stop yet, or nothing any more
                self.exit_code = self.exit_code or _exit_code(code)
            return None
        cause = signal.Signals(-code).name if code < 0 else f"exit code {code}"
        if not self.has_begun:
            self.stop()
            self.exit_code = _exit_code(code) or 1
            return WorkerEnded(number, cause, None)
        if now - place.started_at >= STABLE_S:
            place.wait_s = FIRST_RESTART_S
        wait_s = place.wait_s
        place.start_at, place.wait_s = now + wait_s, min(2 * wait_s, MAX_RESTART_S)
        return WorkerEnded(number, cause, wait_s)

    def reload(self) -> None:
        """The settings were changed: all that run are to hear of it."""
        for number in self.running:
            self._places[number].is_to_reload = True

    def to_reload(self) -> list[int]:
        """Whom to tell now that the settings were changed, each once: a worker that is starting would not hear it."""
        told = []
        for number, place in enumerate(self._places):
            if place.pid is not None and place.is_ready and place.is_to_reload:
                place.is_to_reload = False
                told.append(number)
        return told

    def stop(self) -> None:
        """All are to stop."""
        self.is_stopping = True

    def to_stop(self) -> list[int]:
        """Whom to tell now to stop, each once: worker 0 when the others have gone, as it stores what they take."""
        if not self.is_stopping:
            return []
        running = self.running
        told = [number for number in running if number] or list(running)
        told = [number for number in told if not self._places[number].is_stopping]
        for number in told:
            self._places[number].is_stopping = True
        return told

    @property
    def has_stopped(self) -> bool:
        """Whether there is nothing more to do."""
        return self.is_stopping and not self.running

    def _waiting(self) -> list[int]:
        """Which workers have no process and are to have one, now or later."""
        if self.is_stopping:
            return []
        places = self._places if self.has_begun or self._places[0].is_ready else self._places[:1]
        return [number for number, place in enumerate(places) if place.pid is None]


def _exit_code(code: int) -> int:
    """As shells have it: beyond 128 if a signal has ended it."""
    return _BY_SIGNAL - code if code < 0 else code
