"""One port for several processes: a listening socket for each, and which of them a connection comes to (Linux only).

The kernel has a program choose by the subnet of whoever connects, as `limits.admission` defines subnets. So all
connections of an address, and of its subnet, come to one process, which can count them alone.

The program is classic BPF (Linux, Documentation/networking/filter.rst; socket(7) "SO_ATTACH_REUSEPORT_CBPF"). It needs
no rights. It sees the packet that opens the connection: IPv4's header (RFC 791, 3.1) or IPv6's (RFC 8200, 3).
"""

import array
import contextlib
import socket
import struct
from collections.abc import Sequence

from mailserver.limits.admission import groups_of

_ATTACH_PROGRAM = 51  # SO_ATTACH_REUSEPORT_CBPF in asm-generic/socket.h; Python has no name for it
_HEADER = 0xFFF00000  # SKF_NET_OFF: where the network header begins
_MULTIPLIER = 0x9E3779B1  # Fibonacci hashing (Knuth, TAOCP 6.4): neighbours are not all sent to one place
_HASH_SHIFT = 16
_MASK = 0xFFFF_FFFF

_IPV4_SUBNET_BYTES = 3

_LOAD_BYTE, _LOAD_HALF, _LOAD_WORD = 0x30, 0x28, 0x20  # from an absolute place, big-endian
_SHIFT_RIGHT, _MULTIPLY, _REMAINDER, _XOR_X = 0x74, 0x24, 0x94, 0xAC
_TO_X, _JUMP, _JUMP_IF_EQUAL, _RETURN_A = 0x07, 0x05, 0x15, 0x16
_INSTRUCTION = struct.Struct("HBBI")  # struct sock_filter
_PROGRAM = struct.Struct("HP")  # struct sock_fprog, by native alignment


def index_of(address: str, count: int) -> int:
    """Which of so many sockets the connections of an address come to."""
    subnet = groups_of(address).subnet
    number = int.from_bytes(subnet[:4])
    if len(subnet) > _IPV4_SUBNET_BYTES:
        number = (number * _MULTIPLIER & _MASK) ^ int.from_bytes(subnet[4:])
    return ((number * _MULTIPLIER & _MASK) >> _HASH_SHIFT) % count


def program(count: int) -> bytes:
    """The program that computes `index_of` from a packet: a `struct sock_filter` for each instruction."""
    instructions = (
        (_LOAD_BYTE, 0, 0, _HEADER),
        (_SHIFT_RIGHT, 0, 0, 4),
        (_JUMP_IF_EQUAL, 0, 3, 4),  # the version
        (_LOAD_WORD, 0, 0, _HEADER + 12),  # IPv4: the source
        (_SHIFT_RIGHT, 0, 0, 8),  # its /24
        (_JUMP, 0, 0, 5),
        (_LOAD_WORD, 0, 0, _HEADER + 8),  # IPv6: the source's first 32 bits
        (_MULTIPLY, 0, 0, _MULTIPLIER),
        (_TO_X, 0, 0, 0),
        (_LOAD_HALF, 0, 0, _HEADER + 12),  # and the next 16: its /48
        (_XOR_X, 0, 0, 0),
        (_MULTIPLY, 0, 0, _MULTIPLIER),
        (_SHIFT_RIGHT, 0, 0, _HASH_SHIFT),
        (_REMAINDER, 0, 0, count),
        (_RETURN_A, 0, 0, 0),
    )
    return b"".join(_INSTRUCTION.pack(*each) for each in instructions)


def open_shared_port(host: str, port: int, count: int, backlog: int) -> list[tuple[socket.socket, ...]]:
    """Listen on a port, so many times; return what each process is to accept on: a socket for each address of the host.

    The order of the sockets is what the program chooses by. As long as the caller keeps them open, no connection is
    refused: those for a process that has gone wait for its successor.

    Args:
        host: as for `asyncio.loop.create_server`. port: 0: the system chooses one, the same for all addresses.
        backlog: how many connections may wait for each process.
    Raises:
        OSError: it cannot be listened on, or another program does.
    """
    found = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    groups: list[list[socket.socket]] = []
    with contextlib.ExitStack() as unless_done:
        for family, _, _, _, place in dict.fromkeys(found):
            bound = groups[0][0].getsockname()[1] if groups else port
            group = _bind_group(family, (place[0], bound, *place[2:]), count, unless_done)
            _choose_by_subnet(group[0], count)  # before anybody can connect
            groups.append(group)
        for group in groups:
            for each in group:
                each.listen(backlog)
        unless_done.pop_all()
    return list(zip(*groups, strict=True))


def _bind_group(
    family: int, place: tuple[str | int, ...], count: int, closed_by: contextlib.ExitStack
) -> list[socket.socket]:
    # Any process of ours could join the group of another. So the first is alone until it is bound.
    alone = _socket(family, closed_by, shares=False)
    alone.bind(place)
    bound = alone.getsockname()
    alone.close()
    group = [_socket(family, closed_by, shares=True) for _ in range(count)]
    for each in group:
        each.bind(bound)
    return group


def _socket(family: int, closed_by: contextlib.ExitStack, *, shares: bool) -> socket.socket:
    made = closed_by.enter_context(socket.socket(family, socket.SOCK_STREAM))
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if shares:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    if family == socket.AF_INET6:
        made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
    made.setblocking(False)
    return made


def _choose_by_subnet(first: socket.socket, count: int) -> None:
    """Give a group its program."""
    instructions = array.array("B", program(count))  # whose address is known
    address, size = instructions.buffer_info()
    first.setsockopt(socket.SOL_SOCKET, _ATTACH_PROGRAM, _PROGRAM.pack(size // _INSTRUCTION.size, address))


def port_of(sockets: Sequence[socket.socket]) -> int:
    """The port that they listen on."""
    return int(sockets[0].getsockname()[1])
