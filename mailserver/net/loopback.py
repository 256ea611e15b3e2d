"""Who listens on loopback only, and what others may call it in a Host header.

A browser sends requests to any address for any page, and DNS rebinding can make a name of the page's own mean
127.0.0.1: then the page may read the answers. So who listens on loopback answers to names that nobody can lend.
"""

import re
import socket
from collections.abc import Iterable
from ipaddress import ip_address

_LOOPBACK = re.compile(r"(localhost|127\.0\.0\.1|\[::1\])(:[0-9]+)?", re.IGNORECASE)


def is_loopback_only(sockets: Iterable[socket.socket]) -> bool:
    """Whether none of the sockets can be reached from elsewhere."""
    return all(ip_address(listening.getsockname()[0]).is_loopback for listening in sockets)


def names_loopback(host: str) -> bool:
    """Whether a Host header names this machine by what no name server can lend to others."""
    return _LOOPBACK.fullmatch(host) is not None
