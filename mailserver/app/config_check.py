"""Which values of settings are allowed: every bound in one place."""

import math
import re
import sys

from mailserver.api.dialects import Dialect
from mailserver.app.config import LOG_LEVELS, Config, parse_address
from mailserver.app.logs import LogFormat
from mailserver.catchup.ledger import MAX_SOURCES
from mailserver.errors import ConfigError, StoreError
from mailserver.ids.muid import MAX_NETWORK_TOPIC_BYTES
from mailserver.mail.completion import CompletionFormat
from mailserver.store.postgres.urls import check_url
from mailserver.units import number_text
from mailserver.waku.packets import MAX_TOPIC_INTEREST

MAX_LIMIT = 100_000
"""Highest `max_request_limit`. The keys of one page are held in memory, 200 bytes each."""

MIN_RETENTION_BYTES = 1024 * 1024
"""Lowest `retention_bytes`: 64 pages, where an empty store takes ten. Anything less is a slip of the unit, and
would delete everything."""

MAX_DAYS = 36_500.0
"""Highest `retention_days` and `sync_days`: a hundred years, so that times computed from them stay in range."""

MAX_ARCHIVE_READS = 64
"""Highest `archive_reads`: each is a thread, and may decode a row group of 18 MiB."""

MAX_RATE = 0xFFFF_FFFF
"""Highest rate limit: peers read it as 4 bytes (10/WAKU-USAGE "Rate limiting")."""

MAX_REQUEST_POW = 100.0
"""Highest `request_pow`: 5 s of work for each request. A mailserver that demands more gets no requests."""

MAX_WORKERS = 64
"""Highest `workers`: more cores than PostgreSQL or SQLite's one writer can keep busy from one machine."""

MAX_PORT = 65_535

_HOST = re.compile("[A-Za-z0-9._-]+|[0-9a-fA-F:.]+")  # what can stand in an enode URL

STORE_SCHEMES = ("postgresql://", "postgres://")

_LIMITS = ("packet_rate_limits", "byte_rate_limits", "peer_request_limits", "address_request_limits")
_FROM_ZERO = (
    "min_pow",
    "min_request_pow",
    "request_pow",
    "retention_days",
    "sync_days",
    "connections_per_second",
    "connections_per_second_per_address",
)
_COUNTS = (
    "retention_envelopes",
    "archive_cache_bytes",
    "max_peers_per_address",
    "max_peers_per_subnet",
    "max_handshake_failures",
)
_CHOICES = {
    "completion_format": tuple(form.value for form in CompletionFormat),
    "rpc_dialect": tuple(dialect.value for dialect in Dialect),
    "log_level": LOG_LEVELS,
    "log_format": tuple(form.value for form in LogFormat),
}


def check_config(config: Config) -> None:
    """Check every setting.

    Raises:
        ConfigError: one has a value that is not allowed. It names the setting.
    """
    for name in ("data_dir", "rpc_token_file"):
        if "\0" in str(getattr(config, name)):
            raise ConfigError(f"{name}: {str(getattr(config, name))!r} is not a path")
    check_store(config.store)
    if not 1 <= len(config.network_topic.encode("utf-8", "surrogateescape")) <= MAX_NETWORK_TOPIC_BYTES:
        raise ConfigError(f"network_topic: {config.network_topic!r} is not a pubsub topic")
    if _HOST.fullmatch(config.advertised_host) is None:
        name = "advertise" if config.advertise else "listen"
        raise ConfigError(f"{name}: {config.advertised_host!r} is neither a host name nor an address")
    for name in _FROM_ZERO:
        value = getattr(config, name)
        if not (math.isfinite(value) and value >= 0):
            raise ConfigError(f"{name}: {number_text(value)} is not a finite number of at least 0")
    for name in ("retention_days", "sync_days"):
        if getattr(config, name) > MAX_DAYS:
            raise ConfigError(f"{name}: {getattr(config, name)} is more than {MAX_DAYS:.0f}")
    if config.request_pow > MAX_REQUEST_POW:
        raise ConfigError(f"request_pow: {number_text(config.request_pow)} is more than {MAX_REQUEST_POW:.0f}")
    if not 0 < config.archive_max_age_hours <= MAX_DAYS * 24:
        raise ConfigError(
            f"archive_max_age_hours: {config.archive_max_age_hours} is not a number of hours above 0 "
            f"and up to {MAX_DAYS * 24:.0f}"
        )
    if not config.rate_limit_tolerance_s >= 0:  # infinity means forever
        raise ConfigError(
            f"rate_limit_tolerance_s: {number_text(config.rate_limit_tolerance_s)} is not a number of at least 0"
        )
    for name in _COUNTS:
        if getattr(config, name) < 0:
            raise ConfigError(f"{name}: {getattr(config, name)} is less than 0")
    if config.retention_bytes and config.retention_bytes < MIN_RETENTION_BYTES:
        raise ConfigError(f"retention_bytes: {config.retention_bytes} is neither 0 nor at least {MIN_RETENTION_BYTES}")
    if config.max_peers < 1:
        raise ConfigError(f"max_peers: {config.max_peers} is less than 1")
    _check_workers(config)
    if not 0 <= config.archive_reads <= MAX_ARCHIVE_READS:
        raise ConfigError(f"archive_reads: {config.archive_reads} is not between 0 and {MAX_ARCHIVE_READS}")
    if not 1 <= config.max_request_limit <= MAX_LIMIT:
        raise ConfigError(f"max_request_limit: {config.max_request_limit} is not between 1 and {MAX_LIMIT}")
    for name in _LIMITS:
        limits = getattr(config, name)
        if len(limits) != 3 or not all(0 <= limit <= MAX_RATE for limit in limits):
            shown = ", ".join(map(str, limits)) or "nothing"
            raise ConfigError(f"{name}: {shown} is not three numbers between 0 and {MAX_RATE}")
    if len(config.archive_topics) > MAX_TOPIC_INTEREST:
        raise ConfigError(
            f"archive_topics: {len(config.archive_topics)} topics are more than the {MAX_TOPIC_INTEREST} allowed"
        )
    if len(config.trusted_peers) > MAX_SOURCES:
        raise ConfigError(
            f"trusted_peers: {len(config.trusted_peers)} mailservers are more than the {MAX_SOURCES} allowed"
        )
    for name, choices in _CHOICES.items():
        if getattr(config, name) not in choices:
            raise ConfigError(f"{name}: {getattr(config, name)!r} is not one of {', '.join(choices)}")
    for name in ("rpc", "metrics"):
        if getattr(config, name):
            parse_address(name, getattr(config, name))
    for name in ("interest", "static_enodes", "trusted_enodes", "allowed_networks", "allowed_node_ids"):
        getattr(config, name)  # raises ConfigError if an entry is wrong


def _check_workers(config: Config) -> None:
    if not 1 <= config.workers <= MAX_WORKERS:
        raise ConfigError(f"workers: {config.workers} is not between 1 and {MAX_WORKERS}")
    if config.workers == 1:
        return
    if sys.platform != "linux":
        raise ConfigError(f"workers: {config.workers} processes can share a port on Linux only")
    if config.metrics and parse_address("metrics", config.metrics)[1] + config.workers - 1 > MAX_PORT:
        raise ConfigError(
            f"metrics: {config.metrics!r} and the ports behind it, one for each of {config.workers} workers, "
            f"go beyond {MAX_PORT}"
        )


def check_store(url: str) -> None:
    """Check the URL of a store, if there is one.

    Raises:
        ConfigError: it is not allowed. It is not shown: there may be a password in it.
    """
    if url and (not url.startswith(STORE_SCHEMES) or "\0" in url):
        raise ConfigError("store: it is not a URL that begins with postgresql://")
    if url:
        try:
            check_url(url)
        except StoreError as error:
            raise ConfigError(f"store: {error}") from None
