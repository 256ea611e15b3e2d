"""Addresses of loopback to connect from: whoever counts by address or subnet takes each for another host."""

from ipaddress import IPv4Address

from mailserver.codec.keys import Enode

MANY = 50_000
"""So many numbers have a subnet (/24) of their own each."""

AS_STRANGERS = ("--connections-per-second", "0")
"""For our daemon: who comes from loopback is looked up, counted and limited by address and subnet as strangers are
(`mailserver.app.policy`). The limit of all together, which many addresses do not get around, is none."""

LIMITED = (
    *("--max-peers-per-address", "199"),
    *("--packet-rate-limits", "2499,500,0"),
    *("--peer-request-limits", "599,200000,16"),
)
"""For our daemon: the default limits less one, of each kind. So they hold for whoever comes from loopback, too, which
those that nobody has set leave out (`mailserver.app.policy`)."""


def address(number: int, *, subnet: int | None = None) -> str:
    """An address of loopback to come from; different numbers (below MANY) are different subnets (/24).

    Args:
        subnet: be the neighbours of this number instead, up to 250 of them.
    """
    high, low = divmod(number if subnet is None else subnet, 250)
    return f"127.{10 + high}.{low}.{1 if subnet is None else 2 + number}"


def source_to(enode: Enode, number: int) -> str | None:
    """Where to dial a node from, as one of MANY hosts; None if it is not at an IPv4 address of this machine's loopback:
    then it sees the one address that we have."""
    try:
        is_here = IPv4Address(enode.host).is_loopback
    except ValueError:  # a name, or IPv6, whose loopback is a single address
        is_here = False
    return address(number % MANY) if is_here else None
