"""Ports of loopback that are free, for whoever must be told of them before anybody listens there."""

import contextlib
import random
import socket

PORTS = range(20_000, 30_000)
"""Below those that the system gives away: a port of those that was closed again may be somebody else's by now, be it as
the near end of a connection."""


def free_ports(count: int) -> list[int]:
    """Ports behind one another that nothing listens on, and that the system gives to nobody who asks for any."""
    while True:
        first = random.choice(PORTS[:-count])
        ports = [first + number for number in range(count)]
        with contextlib.ExitStack() as bound, contextlib.suppress(OSError):
            for port in ports:
                bound.enter_context(socket.create_server(("127.0.0.1", port)))
            return ports
