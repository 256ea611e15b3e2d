"""mailserver.app.communities_config: each setting from each source, and what is refused by name."""

import math
from dataclasses import fields
from pathlib import Path

import pytest

from mailserver.app.communities_config import COMMUNITIES, CommunitiesConfig
from mailserver.errors import ConfigError
from mailserver.torrents.settings import TorrentSettings

NOTHING: dict[str, str] = {}

# Of each setting: the text in the environment, the TOML, and the value that both mean; none is the default.
SETTINGS: dict[str, tuple[str, str, object]] = {
    "data_dir": ("/srv/waku", '"/srv/waku"', Path("/srv/waku")),
    "network_topic": ("/waku/2/rs/16/32", '"/waku/2/rs/16/32"', "/waku/2/rs/16/32"),
    "password": ("secret", '"secret"', "secret"),
    "store": ("postgresql://mail@db/mail", '"postgresql://mail@db/mail"', "postgresql://mail@db/mail"),
    "torrent_listen": ("[::1]:7000", '"[::1]:7000"', "[::1]:7000"),
    "torrent_upload": ("1000", "1000", 1000),
    "torrent_download": ("2000", "2000", 2000),
    "torrent_connections": ("7", "7", 7),
    "trackers": (
        "udp://192.0.2.1:1337,https://tracker.example.org/announce",
        '["udp://192.0.2.1:1337", "https://tracker.example.org/announce"]',
        ("udp://192.0.2.1:1337", "https://tracker.example.org/announce"),
    ),
    "link_trackers": ("false", "false", False),
    "torrent_peers": ("192.0.2.1:6881", '["192.0.2.1:6881"]', ("192.0.2.1:6881",)),
    "dht": ("true", "true", True),
    "local_discovery": ("true", "true", True),
    "port_mapping": ("true", "true", True),
    "utp": ("true", "true", True),
    "metadata_timeout_s": ("1.5", "1.5", 1.5),
    "stall_timeout_s": ("2.5", "2.5", 2.5),
    "announce_hours": ("2.5", "2.5", 2.5),
    "advertise": (
        "192.0.2.1:6881,[2001:db8::1]:7",
        '["192.0.2.1:6881", "[2001:db8::1]:7"]',
        ("192.0.2.1:6881", "[2001:db8::1]:7"),
    ),
    "rpc": ("127.0.0.1:8546", '"127.0.0.1:8546"', "127.0.0.1:8546"),
    "rpc_token_file": ("/etc/waku/token", '"/etc/waku/token"', "/etc/waku/token"),
    "metrics": ("127.0.0.1:9307", '"127.0.0.1:9307"', "127.0.0.1:9307"),
    "log_level": ("debug", '"debug"', "debug"),
    "log_format": ("json", '"json"', "json"),
}


def test_there_is_an_example_and_a_help_for_each_setting() -> None:
    assert SETTINGS.keys() == {setting.name for setting in fields(CommunitiesConfig)}
    assert all(setting.metadata["help"] for setting in fields(CommunitiesConfig))


def test_defaults_are_allowed_and_those_of_the_torrent_process() -> None:
    assert COMMUNITIES.load({}, NOTHING, None) == CommunitiesConfig()
    assert CommunitiesConfig().torrents == TorrentSettings()


@pytest.mark.parametrize("name", SETTINGS)
def test_setting_is_read_from_the_environment_and_from_a_file(name: str, tmp_path: Path) -> None:
    text, toml, value = SETTINGS[name]
    (tmp_path / "communities.toml").write_text(f"{name} = {toml}\n")
    variable = "MAILSERVER_STORE" if name == "store" else f"COMMUNITIES_{name.upper()}"

    for config in (
        COMMUNITIES.load({}, {variable: text}, None),
        COMMUNITIES.load({}, NOTHING, tmp_path / "communities.toml"),
    ):
        assert getattr(config, name) == value != getattr(CommunitiesConfig(), name)


def test_torrent_process_gets_its_settings() -> None:
    settings = {name: value for name, (_, _, value) in SETTINGS.items()}

    assert COMMUNITIES.load(settings, NOTHING, None).torrents == TorrentSettings(
        listen=("::1", 7000),
        upload_bytes_s=1000,
        download_bytes_s=2000,
        max_connections=7,
        trackers=("udp://192.0.2.1:1337", "https://tracker.example.org/announce"),
        link_trackers=False,
        dht=True,
        local_discovery=True,
        port_mapping=True,
        utp=True,
        peers=(("192.0.2.1", 6881),),
        metadata_timeout_s=1.5,
        stall_timeout_s=2.5,
    )
    assert COMMUNITIES.load(settings, NOTHING, None).advertised == (("192.0.2.1", 6881), ("2001:db8::1", 7))
    assert CommunitiesConfig(torrent_listen="127.0.0.1:0").torrents.listen == ("127.0.0.1", 0)


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("data_dir", Path("a\0b"), "is not a path"),
        ("rpc_token_file", "a\0b", "is not a path"),
        ("rpc", "8546", ""),
        ("network_topic", "", "it is empty"),
        ("password", "", "it is empty"),
        ("torrent_listen", "localhost:6881", "no IP address with a port"),
        ("torrent_listen", "127.0.0.1", "no IP address with a port"),
        ("torrent_listen", ":0", "no IP address with a port"),
        ("torrent_upload", 0, "is below 1"),
        ("torrent_download", -1, "is below 0"),
        ("torrent_connections", 0, "is not between"),
        ("torrent_connections", 10_001, "is not between"),
        ("trackers", ("ftp://192.0.2.1",), "no URL of a tracker"),
        ("torrent_peers", ("192.0.2.1:0",), "no IP address with a port"),
        ("metadata_timeout_s", 0.0, "is not above 0"),
        ("stall_timeout_s", math.inf, "is not above 0"),
        ("stall_timeout_s", math.nan, "is not above 0"),
        ("announce_hours", 0.0, "is not above 0"),
        ("announce_hours", 721.0, "is not above 0, and at most 720"),
        ("advertise", ("example.org:6881",), "no IP address with a port"),
        ("advertise", ("192.0.2.1:6881",) * 9, "9 addresses are more than 8"),
        ("metrics", "127.0.0.1", "is not HOST:PORT"),
        ("log_level", "loud", "is not one of"),
        ("log_format", "xml", "is not one of"),
    ],
)
def test_wrong_value_is_refused_by_name(name: str, value: object, said: str) -> None:
    with pytest.raises(ConfigError, match=f"^{name}: .*{said}"):
        COMMUNITIES.load({name: value}, NOTHING, None)
