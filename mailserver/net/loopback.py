"""Whether a server listens on loopback only, and which names it then answers to in a Host header.

A browser sends requests to any address for any page. By DNS rebinding, a page can make its own host name resolve to
127.0.0.1, and read the answers. So a server on loopback answers only to names that no DNS server controls.
"""

import re
import socket
from collections.abc import Iterable
from ipaddress import ip_address

_LOOPBACK = re.compile(r"(localhost|127\.0\.0\.1|\[::1\])(:[0-9]+)?", re.IGNORECASE)


def is_loopback_only(sockets: Iterable[socket.socket]) -> bool:
    """Whether none of the sockets can be reached from another machine."""
    return all(ip_address(listening.getsockname()[0]).is_loopback for listening in sockets)


def names_loopback(host: str) -> bool:
    """Whether a Host header has a name of loopback that no DNS server controls."""
    return _LOOPBACK.fullmatch(host) is not None
