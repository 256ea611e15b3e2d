"""What every process of ours does: listen where the settings say, run tasks beside each other, raise its limits."""

import asyncio
import contextlib
import logging
import resource
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from typing import Any

from mailserver.app.config import parse_address
from mailserver.errors import StartupError

log = logging.getLogger(__name__)


async def listen(start: Callable[[str, int], Awaitable[int]], name: str, address: str) -> int:
    """Call `start` with the address of a setting; return the port.

    Raises:
        StartupError: the address cannot be used.
    """
    host, port = parse_address(name, address)
    with listening_refused(address):
        return await start(host, port)


@contextlib.contextmanager
def listening_refused(address: str) -> Iterator[None]:
    """Say why an address cannot be listened on.

    Raises:
        StartupError: in the place of the error of whoever tries.
    """
    try:
        yield
    except OSError as error:
        raise StartupError(f"cannot listen on {address}: {error.strerror or error}") from error
    except UnicodeError as error:  # a label of the host name is empty or longer than 63 characters
        raise StartupError(f"cannot listen on {address}: not a host name") from error


@contextlib.asynccontextmanager
async def background(
    work: Coroutine[Any, Any, None], *, stop: Callable[[], None] | None = None, failed: Callable[[], None]
) -> AsyncIterator[None]:
    """Run a task as long as the context is entered.

    Args:
        stop: asks the task to end. Without it, the task is cancelled.
        failed: called if the task raises, which is a fault of ours: the process must not go on without the task. The
            error is raised again when the context ends.
    """
    task = asyncio.create_task(work)

    def on_done(task: asyncio.Task[None]) -> None:
        if not task.cancelled() and task.exception() is not None:
            log.critical("internal error task=%r", task.get_coro(), exc_info=task.exception())
            failed()

    task.add_done_callback(on_done)
    try:
        yield
    finally:
        (stop or task.cancel)()
        await asyncio.wait([task])
    if not task.cancelled():
        task.result()


def raise_file_limit() -> None:
    """Raise the limit of open files as far as the system allows.

    Each connection takes one, and 1,024 is a common default.
    """
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
