"""The mailserver, with a beat on its event loop: `python -m tests.faults.peers.watched FILE run ..`.

The real program on its own loop; all that is added is a timer. When it ends, FILE has a line of JSON for each beat that
came late, see `stalls`: a callback that takes 80 ms gives nobody else a turn meanwhile, and the timer neither.
"""

import asyncio
import json
import sys
import time
from collections.abc import Callable, Coroutine
from dataclasses import asdict
from pathlib import Path
from typing import Any

from mailserver.commands import cli, run
from tests.faults.peers.stalls import BEAT_S, NOTED_S, Beat
from tests.usage import ThreadWaits

Run = Callable[..., Coroutine[Any, Any, None]]


async def _beat(late: list[Beat]) -> None:
    """Sleep again and again, and note where that took much longer."""
    with ThreadWaits() as waited_s:
        while True:
            due, waited = time.perf_counter() + BEAT_S, waited_s()
            await asyncio.sleep(BEAT_S)
            now = time.perf_counter()
            if now - due >= NOTED_S:
                late.append(Beat(at=now, late_s=now - due, waited_s=waited_s() - waited))


def _watched(run_daemon: Run, file: Path) -> Run:
    async def watched(*arguments: Any) -> None:
        late: list[Beat] = []
        beat = asyncio.create_task(_beat(late))
        try:
            await run_daemon(*arguments)
        finally:
            beat.cancel()
            _write(file, late)

    return watched


def _write(file: Path, late: list[Beat]) -> None:
    file.write_text("".join(json.dumps(asdict(one)) + "\n" for one in late))


if __name__ == "__main__":
    path = Path(sys.argv.pop(1))
    vars(run)["run_daemon"] = _watched(vars(run)["run_daemon"], path)
    sys.exit(cli.main())
