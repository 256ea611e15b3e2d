"""`python -m tests.faults.peers.attacker_process`: runs the attack that stdin names, says what came of it."""

import importlib
import os
import resource
from typing import Any

from bench.helper import Read, Write, run_helper
from tests.faults.peers.attacker import Attack, Target

NICENESS = 10


async def _work(read: Read, write: Write) -> None:
    order: dict[str, Any] = await read()
    attack: Attack = getattr(importlib.import_module(order["module"]), order["name"])
    write(dict(await attack(Target(**order["target"]))))


if __name__ == "__main__":
    os.nice(NICENESS)
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    run_helper(_work)
