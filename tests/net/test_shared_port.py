"""One port for several processes: whose connections come to which socket."""

import errno
import ipaddress
import select
import socket
import struct
import sys
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from mailserver.limits.admission import groups_of
from mailserver.net.shared_port import index_of, open_shared_port, port_of, program
from tests.waiting import DEADLINE_S

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(sys.platform != "linux", reason="only Linux chooses sockets by a program"),
]


@pytest.fixture
def opened() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def shared(opened: ExitStack, count: int, host: str = "127.0.0.1", port: int = 0) -> list[tuple[socket.socket, ...]]:
    places = open_shared_port(host, port, count, backlog=64)
    for sockets in places:
        for each in sockets:
            opened.enter_context(each)
    return places


def connect(opened: ExitStack, port: int, source: str, family: int = socket.AF_INET) -> None:
    client = opened.enter_context(socket.socket(family, socket.SOCK_STREAM))
    client.bind((source, 0))
    client.connect(("::1" if family == socket.AF_INET6 else "127.0.0.1", port))


def accepted_from(listening: socket.socket) -> list[str]:
    """The addresses of all who wait to be accepted."""
    hosts = []
    while select.select([listening], [], [], 0)[0]:
        accepted, address = listening.accept()
        accepted.close()
        hosts.append(address[0])
    return hosts


def run(instructions: bytes, packet: bytes) -> int:
    """Run classic BPF on a packet that begins with its network header, as the kernel's documentation has it.

    Only what our programs consist of.
    """
    steps = list(struct.iter_unpack("HBBI", instructions))
    loads = {0x20: 4, 0x28: 2, 0x30: 1}
    a = x = at = 0
    while True:
        code, if_true, if_false, k = steps[at]
        at += 1
        match code:
            case 0x20 | 0x28 | 0x30:
                offset = k - 0xFFF00000
                a = int.from_bytes(packet[offset : offset + loads[code]])
            case 0x74:
                a >>= k
            case 0x24:
                a = a * k & 0xFFFF_FFFF
            case 0x94:
                a %= k
            case 0xAC:
                a ^= x
            case 0x07:
                x = a
            case 0x05:
                at += k
            case 0x15:
                at += if_true if a == k else if_false
            case 0x16:
                return a


def header(source: str) -> bytes:
    """The first bytes of a packet."""
    ip = ipaddress.ip_address(source)
    if ip.version == 4:
        return bytes([0x45]) + bytes(11) + ip.packed
    return bytes([0x60]) + bytes(7) + ip.packed


@pytest.mark.parametrize("count", [2, 3, 8, 64])
def test_program_says_what_the_function_says(count: int) -> None:
    sources = [f"198.{number}.{number * 7 % 256}.9" for number in range(256)]
    sources += [f"2001:{number * 251:x}:{number * 13:x}:5::9" for number in range(256)]

    found = [run(program(count), header(source)) for source in sources]

    assert found == [index_of(source, count) for source in sources]


@pytest.mark.parametrize("count", [2, 3, 8])
def test_connections_come_to_the_socket_of_their_subnet(opened: ExitStack, count: int) -> None:
    places = shared(opened, count)
    sources = [f"127.0.{subnet}.{host}" for subnet in range(20) for host in (2, 3)]

    for source in sources:
        connect(opened, port_of(places[0]), source)

    for index, (listening,) in enumerate(places):
        assert accepted_from(listening) == [source for source in sources if index_of(source, count) == index]


def test_connections_over_ipv6_come_to_the_socket_of_their_subnet(opened: ExitStack) -> None:
    places = shared(opened, 3, "::1")

    connect(opened, port_of(places[0]), "::1", socket.AF_INET6)

    assert [accepted_from(listening) for (listening,) in places] == [
        ["::1"] if index == index_of("::1", 3) else [] for index in range(3)
    ]


def test_each_index_has_its_share_of_subnets() -> None:
    for addresses in (
        [f"198.51.{subnet}.1" for subnet in range(256)],
        [f"2001:db8:{subnet:x}::1" for subnet in range(256)],
        [f"2001:{subnet:x}:1::1" for subnet in range(256)],
    ):
        for count in (2, 3, 8):
            shares = [sum(index_of(address, count) == index for address in addresses) for index in range(count)]
            assert min(shares) > 256 / count * 0.7, (addresses[0], shares)


def test_addresses_of_a_subnet_have_one_index() -> None:
    for one, other in (
        ("192.0.2.1", "192.0.2.254"),
        ("2001:db8:1::1", "2001:db8:1:ffff::2"),
        ("192.0.2.1", "::ffff:192.0.2.9"),
    ):
        assert groups_of(one).subnet == groups_of(other).subnet
        assert {index_of(one, count) == index_of(other, count) for count in range(2, 65)} == {True}


def test_connection_waits_for_a_process_that_is_not_there(opened: ExitStack) -> None:
    places = shared(opened, 2)
    source = next(f"127.0.{subnet}.2" for subnet in range(20) if index_of(f"127.0.{subnet}.2", 2) == 1)
    own = places[1][0].dup()  # as a process has it that was forked
    own.close()

    connect(opened, port_of(places[0]), source)

    assert select.select([places[1][0]], [], [], DEADLINE_S)[0]
    assert accepted_from(places[1][0]) == [source]


def test_port_that_another_group_listens_on_is_refused(opened: ExitStack) -> None:
    places = shared(opened, 2)

    with pytest.raises(OSError, match="in use") as refused:
        open_shared_port("127.0.0.1", port_of(places[0]), 2, backlog=64)

    assert refused.value.errno == errno.EADDRINUSE


def test_all_addresses_of_a_host_have_one_port(opened: ExitStack) -> None:
    places = shared(opened, 2, "")

    assert {each.getsockname()[1] for sockets in places for each in sockets} == {port_of(places[0])}
    assert len(places) == 2
    assert len(places[0]) == len({each.family for each in places[0]})
