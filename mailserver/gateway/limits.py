"""How much clients may do: the defaults of the gateway's settings, and their reasons."""

from dataclasses import dataclass, field
from ipaddress import IPv4Network, IPv6Network

from mailserver.limits.admission import AdmissionLimits


@dataclass(frozen=True, slots=True)
class HostLimits:
    """How many clients may connect.

    `max_clients`: 1000, as many as fit into 300 MB with what they have not read. `trusted_proxies`: whose
    `X-Forwarded-For` is believed.
    """

    max_clients: int = 1000
    admission: AdmissionLimits = field(default_factory=AdmissionLimits)
    trusted_proxies: tuple[IPv4Network | IPv6Network, ...] = ()
