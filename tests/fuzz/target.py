"""What a target is, and what every target has to keep: bounds on CPU time and on memory."""

import importlib
import time
import tracemalloc
import zlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass

MODULES = (
    "codec",
    "rlpx",
    "muxers",
    "libp2p",
    "waku",
    "mail",
    "ids",
    "reconcile",
    "waku2",
    "communities",
    "feed_socket",
    "wakuid",
    "torrents",
    "rpc",
    "disk",
    "leveldb",
    "export",
    "machine",
)
"""The modules of `targets/`. A target is named after its module: `codec-rlp`."""

MAX_CPU_S = 2.0
"""How much CPU one input may take, instrumented. Most take less than a millisecond."""

MEMORY_BYTES = 1024 * 1024
MEMORY_FACTOR = 100
"""At most so much memory may be taken at a time, and so many times the input's length."""

MEASURED_ONE_IN = 64
"""Memory is measured at one input of so many while fuzzing: to measure makes an input three times as slow."""


class BoundBroken(Exception):
    """An input took too much time or memory."""


@dataclass(frozen=True, slots=True)
class Target:
    """Something that takes bytes of others, with what it promises.

    Args:
        run: takes an input; raises where a promise does not hold.
        seeds: inputs to begin with, made from the test vectors.
        max_bytes: longest input.
        memory_bytes: how much memory it may take whatever the input, where it is not MEMORY_BYTES.
    """

    run: Callable[[bytes], None]
    seeds: Callable[[], Iterable[bytes]]
    max_bytes: int = 4096
    memory_bytes: int = MEMORY_BYTES


def load(name: str) -> Target:
    """A target by its name.

    Raises:
        KeyError: there is none.
    """
    module, _, short = name.partition("-")
    if module not in MODULES:
        raise KeyError(name)
    targets: dict[str, Target] = importlib.import_module(f"tests.fuzz.targets.{module}").TARGETS
    return targets[short]


def names() -> list[str]:
    """All targets."""
    modules = {module: importlib.import_module(f"tests.fuzz.targets.{module}") for module in MODULES}
    return [f"{module}-{short}" for module, loaded in modules.items() for short in loaded.TARGETS]


def run_bounded(target: Target, data: bytes, *, measure_memory: bool | None = None) -> None:
    """Run a target on an input.

    Args:
        measure_memory: None: for one input in MEASURED_ONE_IN, always the same ones.
    Raises:
        BoundBroken: it took more than it may.
        Exception: whatever the target found.
    """
    if measure_memory is None:
        measure_memory = zlib.crc32(data) % MEASURED_ONE_IN == 0
    if measure_memory:
        tracemalloc.start()
    try:
        began = time.process_time()
        target.run(data)
        took = time.process_time() - began
        peak = tracemalloc.get_traced_memory()[1] if measure_memory else 0
    finally:
        if measure_memory:
            tracemalloc.stop()
    if took > MAX_CPU_S:
        raise BoundBroken(f"{took:.1f} s of CPU for {len(data)} bytes, more than {MAX_CPU_S}")
    if peak > target.memory_bytes + MEMORY_FACTOR * len(data):
        raise BoundBroken(f"{peak} bytes of memory for {len(data)} bytes of input")
