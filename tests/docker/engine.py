"""The Docker engine, by its command line, as operators use it; and waiting for what it does."""

import json
import os
import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

QUICK_S = 60.0
"""How long a command may take that changes little."""

BUILD_S = 900.0
"""How long an image may take to build where nothing of it is there: 600 MB are downloaded."""

POLL_S = 0.2


def docker(
    *arguments: str,
    stdin: str = "",
    folder: Path | None = None,
    environment: Mapping[str, str] | None = None,
    check: bool = True,
    within_s: float = QUICK_S,
) -> subprocess.CompletedProcess[str]:
    """Run a command of docker to its end.

    Args:
        environment: more variables than ours; of ours, those of Compose are left out.
        check: fail, and show what it said, if its exit code is not 0.
    """
    ours = {name: value for name, value in os.environ.items() if not name.startswith("COMPOSE_")}
    done = subprocess.run(
        ["docker", *arguments],
        input=stdin,
        capture_output=True,
        text=True,
        timeout=within_s,
        cwd=folder,
        env={**ours, **(environment or {})},
        check=False,
    )
    if check:
        assert done.returncode == 0, f"docker {' '.join(arguments)}\n{done.stdout}\n{done.stderr}"
    return done


def engine_fault() -> str:
    """Why no engine can be used; "" if one answers, and Compose is there."""
    try:
        engine = docker("info", "--format", "{{.ServerVersion}}", check=False)
        compose = docker("compose", "version", check=False)
    except FileNotFoundError:
        return "docker is not installed"
    if engine.returncode != 0:
        return f"no Docker engine answers: {engine.stderr.strip()}"
    return "" if compose.returncode == 0 else "docker has no Compose"


def inspect(container: str) -> Any:
    """What the engine says of a container."""
    return json.loads(docker("inspect", container).stdout)[0]


def wait_for(condition: Callable[[], bool], what: Callable[[], str], within_s: float) -> None:
    """Wait until something holds; `what` says how things are if it does not."""
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline, f"not within {within_s:g} s: {what()}"
        time.sleep(POLL_S)
