"""A value for each setting, and what `MAILSERVER.load` says of settings that it refuses."""

import math
from pathlib import Path
from typing import Any

import pytest

from mailserver.app.config_sources import MAILSERVER
from mailserver.codec.keys import Enode
from mailserver.errors import ConfigError
from tests.pairs import private_key

NOTHING: dict[str, str] = {}

ENODES = tuple(
    str(Enode(private_key(name).public_key, host, 30303))
    for name, host in (("one", "192.0.2.1"), ("two", "mail.example.org"), ("three", "2001:db8::1"))
)
NODE_ID = private_key("four").public_key.hex()

# Of each setting: the text in the environment, the TOML, and the value that both mean; none is the default.
SETTINGS: dict[str, tuple[str, str, object]] = {
    "data_dir": ("/srv/waku", '"/srv/waku"', Path("/srv/waku")),
    "store": ("postgresql://mail@db/mail", '"postgresql://mail@db/mail"', "postgresql://mail@db/mail"),
    "listen": ("127.0.0.1:0", '"127.0.0.1:0"', "127.0.0.1:0"),
    "workers": ("4", "4", 4),
    "advertise": ("mail.example.org", '"mail.example.org"', "mail.example.org"),
    "password": ("secret", '"secret"', "secret"),
    "min_pow": ("0.25", "0.25", 0.25),
    "archive_topics": ("news,0x01020304", '["news", "0x01020304"]', ("news", "0x01020304")),
    "network_topic": ("/waku/2/rs/16/32", '"/waku/2/rs/16/32"', "/waku/2/rs/16/32"),
    "light_node": ("true", "true", True),
    "static_peers": (f"{ENODES[0]},{ENODES[1]}", f'["{ENODES[0]}", "{ENODES[1]}"]', ENODES[:2]),
    "trusted_peers": (ENODES[2], f'["{ENODES[2]}"]', ENODES[2:]),
    "sync_days": ("1.5", "1.5", 1.5),
    "min_request_pow": ("1e-3", "1e-3", 0.001),
    "request_pow": ("0.25", "0.25", 0.25),
    "max_peers": ("7", "7", 7),
    "max_peers_per_address": ("8", "8", 8),
    "max_peers_per_subnet": ("9", "9", 9),
    "connections_per_second": ("2.5", "2.5", 2.5),
    "connections_per_second_per_address": ("0.5", "0.5", 0.5),
    "max_handshake_failures": ("3", "3", 3),
    "packet_rate_limits": ("1,2,3", "[1, 2, 3]", (1, 2, 3)),
    "byte_rate_limits": ("4 5 6", "[4, 5, 6]", (4, 5, 6)),
    "rate_limit_tolerance_s": ("inf", "inf", math.inf),
    "peer_request_limits": ("7,8,9", "[7, 8, 9]", (7, 8, 9)),
    "address_request_limits": ("10,11,12", "[10, 11, 12]", (10, 11, 12)),
    "allowed_addresses": (
        "192.0.2.0/24,2001:db8::/32,192.0.2.7",
        '["192.0.2.0/24", "2001:db8::/32", "192.0.2.7"]',
        ("192.0.2.0/24", "2001:db8::/32", "192.0.2.7"),
    ),
    "allowed_peers": (f"{ENODES[0]},{NODE_ID}", f'["{ENODES[0]}", "{NODE_ID}"]', (ENODES[0], NODE_ID)),
    "max_request_limit": ("50", "50", 50),
    "allow_clear_requests": ("false", "false", False),
    "completion_format": ("list", '"list"', "list"),
    "retention_days": ("7.5", "7.5", 7.5),
    "retention_envelopes": ("1000000", "1000000", 1_000_000),
    "retention_bytes": ("2000000", "2000000", 2_000_000),
    "archive": ("s3://bucket/archive", '"s3://bucket/archive"', "s3://bucket/archive"),
    "archive_max_age_hours": ("12.5", "12.5", 12.5),
    "archive_before_prune": ("false", "false", False),
    "answer_from_archive": ("false", "false", False),
    "archive_reads": ("3", "3", 3),
    "archive_cache_bytes": ("1000", "1000", 1000),
    "rpc": ("127.0.0.1:8545", '"127.0.0.1:8545"', "127.0.0.1:8545"),
    "rpc_token_file": ("/etc/waku/token", '"/etc/waku/token"', "/etc/waku/token"),
    "rpc_dialect": ("deployed", '"deployed"', "deployed"),
    "feed_socket": ("true", "true", True),
    "metrics": ("[::1]:9090", '"[::1]:9090"', "[::1]:9090"),
    "log_level": ("debug", '"debug"', "debug"),
    "log_format": ("json", '"json"', "json"),
}


def refusal(flags: dict[str, Any], environment: dict[str, str] = NOTHING, file: Path | None = None) -> str:
    """What `MAILSERVER.load` says about settings that it must not take; always one line."""
    with pytest.raises(ConfigError) as refused:
        MAILSERVER.load(flags, environment, file)
    text = str(refused.value)
    assert "\n" not in text
    return text
