"""Settings -> the limits that the services apply.

If all limits of one kind (connections, rates, history requests) have their defaults, loopback is exempt from them: a
proxy, a monitor, a second mailserver on this machine. If the operator has set any of them, all limits of that kind
apply to everybody, except to peers and addresses that the settings name.
"""

import contextlib
import math
from dataclasses import replace
from ipaddress import IPv4Network, IPv6Network, ip_network
from typing import NamedTuple

from mailserver.app.config import Config, parse_address
from mailserver.codec.keys import NodeId
from mailserver.limits.admission import AdmissionLimits, Allowlist
from mailserver.limits.packet_rates import RateLimitSettings
from mailserver.limits.request_quotas import RequestLimits
from mailserver.store.retention import CapacityRetention, Retention, SizeRetention, TimeRetention
from mailserver.upkeep.pruning import PruningSettings
from mailserver.waku.packets import RateLimits

LOOPBACK = (ip_network("127.0.0.0/8"), ip_network("::1/128"))

_ADMISSION = (
    "max_peers_per_address",
    "max_peers_per_subnet",
    "connections_per_second",
    "connections_per_second_per_address",
    "max_handshake_failures",
)
_RATES = ("packet_rate_limits", "byte_rate_limits")
_REQUESTS = ("peer_request_limits", "address_request_limits")


class RequestPolicy(NamedTuple):
    """Limits on history requests: of one peer, and of one address."""

    peer: RequestLimits
    address: RequestLimits
    allowed: Allowlist


def admission(config: Config) -> tuple[AdmissionLimits, Allowlist]:
    """Who may connect."""
    limits = AdmissionLimits(
        max_per_address=config.max_peers_per_address,
        max_per_subnet=config.max_peers_per_subnet,
        per_second=config.connections_per_second / config.workers,
        per_second_per_address=config.connections_per_second_per_address,
        max_failures=config.max_handshake_failures,
    )
    allowed = _allowed(config, _ADMISSION)
    return limits, replace(allowed, networks=allowed.networks + _addresses_relied_on(config))


def rate_limits(config: Config) -> RateLimitSettings:
    """How much a peer may send."""
    return RateLimitSettings(
        packets=_of_worker(RateLimits(*config.packet_rate_limits), config.workers),
        bytes=_of_worker(RateLimits(*config.byte_rate_limits), config.workers),
        tolerance_s=config.rate_limit_tolerance_s,
        allowed=_allowed(config, _RATES),
    )


def max_peers(config: Config) -> int:
    """How many peers may be connected to this process."""
    return math.ceil(config.max_peers / config.workers)


def of_worker(config: Config, number: int) -> Config:
    """The settings of one of several workers. What there is one of is worker 0's; each has metrics on its own port."""
    if config.workers > 1 and config.metrics:
        host, port = parse_address("metrics", config.metrics)
        shown = f"[{host}]" if ":" in host else host
        config = replace(config, metrics=f"{shown}:{port and port + number}")
    return replace(config, rpc="", feed_socket=False) if number else config


def pruning(config: Config) -> PruningSettings:
    """What to keep in the store, and when something may be deleted."""
    limits: list[Retention] = []
    if config.retention_days:
        limits.append(TimeRetention(config.retention_days))
    if config.retention_envelopes:
        limits.append(CapacityRetention(config.retention_envelopes))
    if config.retention_bytes:
        limits.append(SizeRetention(config.retention_bytes))
    return PruningSettings(
        tuple(limits),
        archive_before_prune=config.archive_before_prune,
        archive=config.archive,
        archive_max_age_s=config.archive_max_age_hours * 3600,
    )


def request_limits(config: Config) -> RequestPolicy:
    """How much a peer may ask for."""
    return RequestPolicy(
        RequestLimits(*config.peer_request_limits),
        RequestLimits(*config.address_request_limits),
        _allowed(config, _REQUESTS),
    )


def _of_worker(limits: RateLimits, workers: int) -> RateLimits:
    """A topic's envelopes come to any worker, so its limit is divided; an address and its peers have one worker."""
    return limits._replace(topic=math.ceil(limits.topic / workers))


def _addresses_relied_on(config: Config) -> tuple[IPv4Network | IPv6Network, ...]:
    """The addresses of static and trusted peers, where their enode URLs give addresses and not names.

    Whether it is really that peer is known only after the handshake.
    """
    networks = []
    for enode in (*config.static_enodes, *config.trusted_enodes):
        with contextlib.suppress(ValueError):
            networks.append(ip_network(enode.host))
    return tuple(networks)


def _allowed(config: Config, names: tuple[str, ...]) -> Allowlist:
    """Who is exempt from these limits. Static and trusted peers are always among them."""
    networks = config.allowed_networks
    if config.is_default(*names):
        networks += LOOPBACK
    named = {enode.node_id for enode in (*config.static_enodes, *config.trusted_enodes)}
    return Allowlist(networks, config.allowed_node_ids | named)


def without_ourselves(config: Config, own: NodeId) -> Config:
    """The settings without our own enode among the peers, so that one settings file can serve a whole fleet."""
    static, trusted = (
        tuple(text for text, enode in zip(texts, enodes, strict=True) if enode.node_id != own)
        for texts, enodes in (
            (config.static_peers, config.static_enodes),
            (config.trusted_peers, config.trusted_enodes),
        )
    )
    return replace(config, static_peers=static, trusted_peers=trusted)
