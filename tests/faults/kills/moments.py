"""When to kill: moments by what a process has come to, not by time alone. Each is looked for every fraction of a
millisecond, so most kills hit what they are for; what they did hit, the files say afterwards (`wreck`)."""

import contextlib
import os
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from tests.faults.kills.promises import Promises

POLL_S = 0.0001

LIMIT_S = 3.0
"""A moment that does not come by then is given up: the process is killed all the same."""

Moment = Callable[[], bool]
"""Whether it has come."""


def after(seconds: float) -> Moment:
    """So long from now."""
    at = time.monotonic() + seconds
    return lambda: time.monotonic() >= at


def at_packets(promises: Promises, count: int) -> Moment:
    """When so many packets have been confirmed, ever."""
    return lambda: promises.packets >= count


def grown(path: Path, size: int) -> Moment:
    """When a file has so many bytes."""
    return lambda: size_of(path) >= size


def written(path: Path, times: int) -> Moment:
    """When a file has been seen changed so often, from now on."""
    seen, left = changed_at(path), times

    def has_come() -> bool:
        nonlocal seen, left
        now = changed_at(path)
        if now != seen:
            seen, left = now, left - 1
        return left <= 0

    return has_come


def then(first: Moment, make_second: Callable[[], Moment]) -> Moment:
    """One moment after another; the second is made when the first has come."""
    second: Moment | None = None

    def has_come() -> bool:
        nonlocal second
        if second is None and first():
            second = make_second()
        return second is not None and second()

    return has_come


def size_of(path: Path) -> int:
    """The bytes of a file; 0 if there is none."""
    with contextlib.suppress(FileNotFoundError):
        return path.stat().st_size
    return 0


def changed_at(path: Path) -> int:
    """When a file was changed, in nanoseconds; 0 if there is none."""
    with contextlib.suppress(FileNotFoundError):
        return path.stat().st_mtime_ns
    return 0


def wait_for(moment: Moment, limit_s: float = LIMIT_S) -> bool:
    """Wait until a moment comes, or the limit; return whether it has come."""
    give_up = time.monotonic() + limit_s
    while not moment():
        if time.monotonic() > give_up:
            return False
        time.sleep(POLL_S)
    return True


@contextlib.contextmanager
def acting(act: Callable[[], None], moment: Moment, *, limit_s: float = LIMIT_S) -> Iterator[None]:
    """Do something when a moment comes, or at the limit; it is done at the end."""

    def watch() -> None:
        wait_for(moment, limit_s)
        act()

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield
    finally:
        watcher.join()


@contextlib.contextmanager
def killing(pid: int, moment: Moment, *, limit_s: float = LIMIT_S, is_group: bool = False) -> Iterator[None]:
    """SIGKILL a process of ours, or the group that it leads, when a moment comes, or at the limit; over at the end."""

    def kill() -> None:
        with contextlib.suppress(ProcessLookupError):
            (os.killpg if is_group else os.kill)(pid, signal.SIGKILL)

    with acting(kill, moment, limit_s=limit_s):
        yield


def drawn(rng: random.Random, store: Path, promises: Promises, *, most: int) -> tuple[str, Moment]:
    """One of the moments of a flood, and its name; at most so many confirmed packets are waited for."""
    log = store.with_name(f"{store.name}-wal")
    before = promises.packets
    one_more = at_packets(promises, before + 1)
    name = rng.choice(("packets", "log", "file", "seconds"))
    match name:
        case "packets":
            return name, at_packets(promises, before + rng.randint(0, most))
        case "log":
            return name, then(one_more, lambda: written(log, rng.randint(1, 40)))
        case "file":
            return name, then(one_more, lambda: written(store, rng.randint(1, 6)))
        case _:
            return name, after(rng.uniform(0, 0.8))
