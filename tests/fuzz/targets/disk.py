"""What is read from files: the records beside a store, the history, the settings; and rows of a store."""

import json
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from mailserver.app.config import Config
from mailserver.app.config_sources import MAILSERVER
from mailserver.catchup.ledger import MAX_ACCOUNTS, PROGRESS_FILE, CatchupError, open_ledger
from mailserver.catchup.ranges import MAX_ASIDE, MAX_RANGES
from mailserver.errors import ConfigError, DecodeError
from mailserver.handoff.archived import Archived, ArchivedError
from mailserver.handoff.last_run import MAX_ERROR_CHARS, ArchivedDay, Compaction, CompactionRecordError
from mailserver.monitoring.last_day import MAX_MINUTES, NAMES, Minutes, decode_file, encode_file
from mailserver.store.engine.row_check import decode_and_compare
from mailserver.store.sqlite.handoff import (
    archived_file,
    compaction_file,
    read_archived,
    read_compaction,
    write_archived,
    write_compaction,
)
from mailserver.store.sqlite.schema import HASH_PREFIX_BYTES
from mailserver.waku.envelope import MAX_U32, decode_envelope, encode_envelope
from tests.fuzz.choices import Choices
from tests.fuzz.target import Target
from tests.pairs import digest, private_key

READ_AHEAD_BYTES = 9 * 1024 * 1024
"""The longest file of ours, of which a reader takes memory for all that it may be long, and twice for a moment."""

MAX_PROBLEM_CHARS = 1000
"""An error is one line for the operator, whatever the file holds."""

VALUES: tuple[Any, ...] = (
    None,
    True,
    0,
    -1,
    1,
    2**32,
    2**63,
    10**400,
    0.5,
    -0.0,
    1e308,
    float("inf"),
    float("nan"),
    "",
    "0x",
    "2026-11-21",
    "20261121",
    "é\ud800\0\n",
    "ab" * 64,
    [],
    [[]],
    [0, 0, 0],
    {},
    {"": None},
    {"version": 1},
)
"""What a field may hold instead of what it should."""


MAX_REPEATED = 64
"""A few edits of one place would make a hundred thousand fields of one."""


def edited(choices: Choices, value: Any) -> Any:
    """A copy of a JSON value in which one place holds something else, or is gone."""
    if isinstance(value, dict) and value and choices.below(4):
        name = choices.pick(sorted(value))
        return {**value, name: edited(choices, value[name])}
    if isinstance(value, list) and value and choices.below(4):
        at = choices.below(len(value))
        return [*value[:at], edited(choices, value[at]), *value[at + 1 :]]
    match choices.below(5):
        case 0:
            return choices.take(80).decode("utf-8", "replace")
        case 1 if isinstance(value, dict) and value:
            gone = choices.pick(sorted(value))
            return {name: inner for name, inner in value.items() if name != gone}
        case 2 if isinstance(value, dict):
            return {**value, choices.take(40).decode("utf-8", "replace"): choices.pick(VALUES)}
        case 3 if isinstance(value, list):
            return ([*value, *value, choices.pick(VALUES)] * choices.below(8))[:MAX_REPEATED]
    return choices.pick(VALUES)


def text_of(data: bytes, sound: Any) -> bytes:
    """The bytes as they are, or a sound record with some edits."""
    choices = Choices(data)
    if choices.flag():
        return choices.rest()
    for _ in range(1 + choices.below(4)):
        sound = edited(choices, sound)
    return json.dumps(sound).encode()


def one_line(error: Exception) -> None:
    """Check that an error is one line of a bearable length."""
    text = str(error)
    assert text.isprintable()
    assert len(text) <= MAX_PROBLEM_CHARS, f"{len(text)} characters"


# Catching up

RANGE = {"lower": 1_796_000_000, "upper": 1_796_086_399, "cursor": "00" * 36}
LEDGER = {
    "version": 1,
    "missed": [{"lower": 0, "upper": 9}, {"lower": 10, "upper": MAX_U32}],
    "sources": {private_key("source").public_key.hex(): {"asked": [{"lower": 0, "upper": 9}], "pending": [RANGE]}},
}


def fuzz_ledger(data: bytes) -> None:
    """`sync.json` is read within its bounds, or refused."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, PROGRESS_FILE).write_bytes(text_of(data, LEDGER))
        try:
            ledger = open_ledger(Path(folder))
        except CatchupError as error:
            one_line(error)
            return
    for part in ledger.missed:
        assert 0 <= part.lower <= part.upper <= MAX_U32
    for number in range(MAX_ACCOUNTS):
        account = ledger.account(private_key("source" if number == 0 else str(number)).public_key)
        assert len(account.asked) <= MAX_RANGES
        assert len(account.pending) <= MAX_RANGES + MAX_ASIDE + 1
        while (window := account.window()) is not None:
            assert 0 <= window.lower <= window.upper <= MAX_U32
            account.finish()
            if number or window.lower < MAX_U32 // 2:
                break


# The compaction

COMPACTION = {
    "version": 1,
    "started_at": 1_796_000_000.5,
    "finished_at": 1_796_000_100,
    "exit_code": 0,
    "error": "",
    "rows": 5,
    "bytes": 6,
    "days": 1,
    "seconds": 99.5,
    "succeeded_at": 1_796_000_100,
    "archived": {"2026-11-20": [5, 6], "1969-12-31": [1, 2]},
    "report": {"days": ["2026-11-20"]},
}
HANDOVER = {
    "version": 1,
    "store_id": "ab" * 16,
    "archive": "/srv/archive",
    "verified_at": 1_796_000_100,
    "days": {"2026-11-20": 70},
}


def fuzz_compaction(data: bytes) -> None:
    """The record of the compaction's runs is read, and reads the same when it is written again, or is refused."""
    with tempfile.TemporaryDirectory() as folder:
        store = Path(folder, "store.db")
        compaction_file(store).write_bytes(text_of(data, COMPACTION))
        try:
            compaction = read_compaction(store)
        except CompactionRecordError as error:
            one_line(error)
            return
        assert isinstance(compaction, Compaction)
        assert all(isinstance(day, ArchivedDay) for day in compaction.archived.values())
        if len(compaction.error) <= MAX_ERROR_CHARS:  # else it is cut
            _same_again(compaction, write_compaction, read_compaction, store)


def fuzz_handover(data: bytes) -> None:
    """What the compaction hands over is read, and reads the same when it is written again, or is refused."""
    with tempfile.TemporaryDirectory() as folder:
        store = Path(folder, "store.db")
        archived_file(store).write_bytes(text_of(data, HANDOVER))
        try:
            handover = read_archived(store)
        except ArchivedError as error:
            one_line(error)
            return
        assert isinstance(handover, Archived)
        _same_again(handover, write_archived, read_archived, store)


def _same_again(value: Any, write: Callable[[Path, Any], None], read: Callable[[Path], Any], store: Path) -> None:
    write(store, value)
    assert _plain(read(store)) == _plain(value)


def _plain(record: Any) -> dict[str, str]:
    """A record's fields, so that they can be compared: not-a-number does not equal itself, and days are sorted."""
    fields = ((name, getattr(record, name)) for name in record.__slots__)
    return {name: repr(sorted(value.items()) if isinstance(value, Mapping) else value) for name, value in fields}


# The history

MINUTES = Minutes(1_796_000_000.0, {name: [float("nan"), 0.0, 5.0, 0.125] for name in NAMES})


def fuzz_history(data: bytes) -> None:
    """The history is read, and reads the same when it is written again, or is refused."""
    text = text_of(data, json.loads(encode_file(MINUTES)))
    try:
        minutes = decode_file(text)
    except (ValueError, RecursionError):
        return
    assert len(minutes) <= MAX_MINUTES
    written = encode_file(minutes)
    assert encode_file(decode_file(written.encode())) == written
    minutes.totals()
    minutes.worst_lag()
    minutes.answer_times()


# Settings

CONFIG = """
listen = "[::]:30303"
min_pow = 0.002
archive_topics = ["0x9acb0442", "status"]
max_peers = 7
light_node = true
packet_rate_limits = [1, 2, 3]
allowed_addresses = ["192.0.2.0/24", "::ffff:1.2.3.4"]
retention_days = 1
log_format = "json"
"""


def fuzz_config(data: bytes) -> None:
    """A settings file is read, and whatever it sets can be used, or is refused in one line."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "settings.toml")
        file.write_bytes(data)
        _settings({}, file)


def fuzz_environment(data: bytes) -> None:
    """So are variables of the environment."""
    choices = Choices(data)
    variables: dict[str, str] = {}
    for _ in range(4):
        name = choices.pick((*sorted(Config.__slots__), "nothing", ""))
        text = choices.pick(TEXTS) if choices.flag() else choices.take(60).decode("utf-8", "surrogateescape")
        variables[MAILSERVER.prefix + name.upper()] = text
    variables.pop(MAILSERVER.config_variable, None)
    _settings(variables, None)


TEXTS = (
    "0",
    "1",
    "-1",
    "nan",
    "inf",
    "1e999",
    "1,2,3",
    "9" * 5000,
    "0.0.0.0:1",
    "[::]:0",
    "0x9acb0442",
    "true",
    "::1/128",
)


def _settings(environment: Mapping[str, str], file: Path | None) -> None:
    try:
        config = MAILSERVER.load({}, environment, file)
    except ConfigError as error:
        assert str(error).isprintable()  # however long: it says what was written
        return
    host, port = config.listen_address
    assert isinstance(host, str)
    assert 0 <= port <= 65535
    assert config.advertised_host
    assert 0 <= config.min_pow < float("inf")
    assert config.interest.topics is None or len(config.interest.topics) <= len(config.archive_topics)
    assert len(config.trusted_enodes) == len(config.trusted_peers)
    assert len(config.allowed_networks) == len(config.allowed_addresses)


# Rows

ROW = encode_envelope(1_796_097_472, 50, b"\x9a\xcb\x04\x42", b"data", 7)


def fuzz_row(data: bytes) -> None:
    """A row is the envelope that its columns say, or is found to be none."""
    choices = Choices(data)
    raw = bytearray(ROW.raw)
    for _ in range(choices.below(3)):
        raw[choices.below(len(raw))] ^= 1 << choices.below(8)
    columns: list[Any] = [
        ROW.created,
        ROW.topic,
        ROW.hash()[:HASH_PREFIX_BYTES],
        choices.take(100) if choices.flag() else bytes(raw),
    ]
    for _ in range(choices.below(3)):
        columns[choices.below(3)] = choices.pick((0, ROW.ttl, -5, b"", b"abcd", digest("hash")[:16]))
    created, topic, key_hash, stored = columns
    try:
        envelope, full_hash = decode_and_compare(created, topic, key_hash, stored)
    except DecodeError as error:
        one_line(error)
        assert columns != [ROW.created, ROW.topic, ROW.hash()[:HASH_PREFIX_BYTES], ROW.raw]
        return
    assert envelope == decode_envelope(stored)
    assert (envelope.created, envelope.topic, full_hash[:HASH_PREFIX_BYTES]) == (created, topic, key_hash)


def record_seeds(sound: object) -> Callable[[], Iterator[bytes]]:
    """The record as it is, without its end, nested deeply, and edited."""

    def seeds() -> Iterator[bytes]:
        text = json.dumps(sound).encode()
        yield b"\1" + text
        yield b"\1" + text[:-1]
        yield b"\1" + b"[" * 2000
        yield b"\1" + b'{"version":1,"days":' + b"[" * 1500
        yield from (bytes([0, edits, *range(edits, edits + 20)]) for edits in range(8))

    return seeds


TARGETS = {
    "ledger": Target(fuzz_ledger, record_seeds(LEDGER), memory_bytes=READ_AHEAD_BYTES),
    "compaction": Target(fuzz_compaction, record_seeds(COMPACTION), memory_bytes=READ_AHEAD_BYTES),
    "handover": Target(fuzz_handover, record_seeds(HANDOVER), memory_bytes=READ_AHEAD_BYTES),
    "history": Target(fuzz_history, record_seeds(json.loads(encode_file(MINUTES)))),
    "config": Target(
        fuzz_config, lambda: [CONFIG.encode(), b"static_peers = []\nmin_pow = 1e400", b'advertise = "\\u0000"']
    ),
    "environment": Target(fuzz_environment, lambda: [bytes([n, 1, m]) for n in range(44) for m in (0, 3, 6)]),
    "row": Target(fuzz_row, lambda: [bytes(3), b"\1\5\3\0\0", b"\0\1\0\1\1\2"], 256),
}
