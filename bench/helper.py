"""A process beside the benchmark that plays peers, so that these do not slow who holds the clock.

It is told what to do, and answers, in lines of JSON by stdin and stdout. Moments are of `perf_counter`, which is the
same clock for all processes of a machine.
"""

import asyncio
import contextlib
import json
import sys
import time
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import uvloop

from mailserver.errors import MailserverError

ANSWER_TIMEOUT_S = 300.0
"""How long a helper may take for anything: it has time limits of its own that are shorter."""

STOP_TIMEOUT_S = 10.0

_MAX_LINE_BYTES = 64 * 1024 * 1024

Read = Callable[[], Awaitable[Any]]
Write = Callable[[Any], None]


class HelperFailed(Exception):
    """A helper could not do what it was to do, or has ended otherwise than it should."""


class Helper:
    """The benchmark's end."""

    def __init__(self, module: str, process: Process) -> None:
        self._module = module
        self._process = process

    async def ask(self, command: Any) -> Any:
        """Send a command, wait for the answer.

        Raises:
            HelperFailed: it says that it failed, or it is gone.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(command).encode() + b"\n")
        try:
            async with asyncio.timeout(ANSWER_TIMEOUT_S):
                line = await self._process.stdout.readline()
        except TimeoutError as error:
            raise HelperFailed(f"{self._module} did not answer within {ANSWER_TIMEOUT_S:g} s") from error
        answer = json.loads(line or b'{"failed": "it has ended"}')
        if isinstance(answer, dict) and "failed" in answer:
            raise HelperFailed(f"{self._module}: {answer['failed']}")
        return answer


@contextlib.asynccontextmanager
async def helper(module: str) -> AsyncIterator[Helper]:
    """Run `python -m MODULE` as long as the context is entered. It ends when its stdin does."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", module, stdin=PIPE, stdout=PIPE, limit=_MAX_LINE_BYTES
    )
    try:
        yield Helper(module, process)
    finally:
        assert process.stdin is not None
        process.stdin.close()
        try:
            async with asyncio.timeout(STOP_TIMEOUT_S):
                await process.wait()
        except TimeoutError:
            process.kill()
            await process.wait()


def run_helper(work: Callable[[Read, Write], Awaitable[None]]) -> None:
    """Be the helper: `work` reads commands, which raises EOFError at their end, and writes answers."""
    uvloop.run(_run(work))


async def _run(work: Callable[[Read, Write], Awaitable[None]]) -> None:
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(limit=_MAX_LINE_BYTES)
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)

    async def read() -> Any:
        line = await reader.readline()
        if not line:
            raise EOFError
        return json.loads(line)

    def write(answer: Any) -> None:
        print(json.dumps(answer), flush=True)

    try:
        await work(read, write)
    except (MailserverError, HelperFailed, OSError) as error:
        write({"failed": str(error) or type(error).__name__})
    except EOFError:
        pass  # nobody wants anything more


def cpu_s() -> float:
    """Seconds of CPU that this process has used."""
    return time.process_time()
