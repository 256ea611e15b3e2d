"""`python -m bench.worker_clients`: peers from addresses of their own that post until all is confirmed."""

import asyncio
import contextlib
import random
import time

from bench.data import Distribution, Topics, live_envelopes, packets
from bench.helper import HelperFailed, Read, Write, cpu_s, run_helper
from bench.ingest import WINDOW_ENVELOPES, IngestFailed, Sender, check_responses
from bench.wire import connect
from mailserver.codec.keys import Enode


async def _work(read: Read, write: Write) -> None:
    """Connect from the addresses of the first command, and post at the second."""
    order = await read()
    enode, sources, per_packet = Enode.parse(order["enode"]), order["sources"], order["per_packet"]
    async with contextlib.AsyncExitStack() as stack:
        wires = [await stack.enter_async_context(connect(enode, source=source)) for source in sources]
        min_pow = max(settings.pow_requirement for _, settings in wires)
        raws = live_envelopes(
            order["envelopes"],
            Topics(order["topics"], Distribution.UNIFORM),
            int(time.time()),
            min_pow=min_pow,
            rng=random.Random(),
        )
        payloads = packets(raws, per_packet)
        window = max(1, WINDOW_ENVELOPES // per_packet)
        senders = [Sender(wire, payloads[at :: len(wires)], window) for at, (wire, _) in enumerate(wires)]
        write({"cpu_s": cpu_s()})
        await read()
        await asyncio.gather(*(sender.run() for sender in senders))
        write({"done_at": time.perf_counter(), "cpu_s": cpu_s()})
        try:
            for sender in senders:
                check_responses(sender.responses)
        except IngestFailed as error:
            raise HelperFailed(str(error)) from error


if __name__ == "__main__":
    run_helper(_work)
