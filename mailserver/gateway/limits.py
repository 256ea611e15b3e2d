"""How much clients may do: the defaults of the gateway's settings, and their reasons."""

from dataclasses import dataclass, field
from ipaddress import IPv4Network, IPv6Network

from mailserver.gateway.send_memory import MAX_SEND_BYTES
from mailserver.limits.admission import AdmissionLimits


@dataclass(frozen=True, slots=True)
class HostLimits:
    """How many clients may connect.

    `max_clients`: 1000, as many as fit into 300 MB with what they have not read. `trusted_proxies`: whose
    `X-Forwarded-For` is believed. `max_send_bytes`: see `send_memory`.
    """

    max_clients: int = 1000
    admission: AdmissionLimits = field(default_factory=AdmissionLimits)
    trusted_proxies: tuple[IPv4Network | IPv6Network, ...] = ()
    max_send_bytes: int = MAX_SEND_BYTES
