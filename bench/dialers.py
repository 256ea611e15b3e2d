"""`python -m bench.dialers`: peers that connect and leave, a new one and from another address each time."""

import asyncio
import time
from collections.abc import Iterator

from bench.addresses import source_to
from bench.helper import Read, Write, cpu_s, run_helper
from bench.wire import connect
from mailserver.codec.keys import Enode


async def _dial(enode: Enode, numbers: Iterator[int]) -> None:
    """Be one peer after the other, as long as there are numbers, which others take from, too."""
    for number in numbers:
        async with connect(enode, source=source_to(enode, number)):
            pass


async def _work(read: Read, write: Write) -> None:
    """Be told by the first command who dials whom, and do it at the second."""
    order = await read()
    enode, numbers = Enode.parse(order["enode"]), iter(range(*order["numbers"]))
    write({"cpu_s": cpu_s()})
    await read()
    await asyncio.gather(*(_dial(enode, numbers) for _ in range(order["dialers"])))
    write({"done_at": time.perf_counter(), "cpu_s": cpu_s()})


if __name__ == "__main__":
    run_helper(_work)
