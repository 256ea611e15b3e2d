"""How commands print envelopes: as a table for people, or as JSON lines or raw RLP for programs."""

import json
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from types import TracebackType

from mailserver.client.sealing import open_envelope
from mailserver.codec.keys import PrivateKey
from mailserver.commands.output import counted, printable
from mailserver.errors import DecodeError
from mailserver.waku.envelope import Envelope
from mailserver.waku.payload import OpenedPayload

FORMATS = ("table", "json", "raw")

_TABLE_ROW = "{created:<20} {topic:<10} {size:>7} {hash:<18} {payload}"
_CLEAR_LINE = "\r\x1b[K"


class Printer:
    """Prints envelopes as they arrive. If stderr is a terminal, it shows meanwhile how many there are."""

    def __init__(self, form: str, opening_key: bytes | PrivateKey | None) -> None:
        """Take the format, and the key that opens payloads: a symmetric one, a private one, or None."""
        self._form = form
        self._key = opening_key
        self._count = 0
        self._begun = False
        # If the rows themselves go to the terminal, they show the progress.
        self._progress = sys.stderr.isatty() and not sys.stdout.isatty()

    def __enter__(self) -> "Printer":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._progress:
            sys.stderr.write(_CLEAR_LINE)
        sys.stdout.flush()

    def show(self, envelopes: Sequence[Envelope]) -> None:
        """Print some envelopes."""
        self._begin()
        for envelope in envelopes:
            print(self._line(envelope))
        self._count += len(envelopes)
        if self._progress:
            sys.stderr.write(f"{_CLEAR_LINE}{self._counted}")
            sys.stderr.flush()

    def finish(self, rest: str) -> None:
        """Say on stderr how many envelopes there were, and after that, how to ask for the rest."""
        self._begin()
        if self._progress:
            sys.stderr.write(_CLEAR_LINE)
        print(f"{self._counted}{rest}", file=sys.stderr)

    @property
    def _counted(self) -> str:
        return counted(self._count, "envelope")

    def _begin(self) -> None:
        """Print the heading before the first row."""
        if self._form == "table" and not self._begun:
            print(
                _TABLE_ROW.format(created="CREATED (UTC)", topic="TOPIC", size="BYTES", hash="HASH", payload="PAYLOAD")
            )
        self._begun = True

    def _line(self, envelope: Envelope) -> str:
        if self._form == "raw":
            return envelope.raw.hex()
        opened = self._open(envelope)
        if self._form == "json":
            return json.dumps(_as_json(envelope, opened))
        return _TABLE_ROW.format(
            created=_utc(envelope.created),
            topic="0x" + envelope.topic.hex(),
            size=len(envelope.raw),
            hash=envelope.hash().hex()[:16] + "..",
            payload="-" if opened is None else printable(opened.payload.decode("utf-8", "backslashreplace")),
        ).rstrip()

    def _open(self, envelope: Envelope) -> OpenedPayload | None:
        if self._key is None:
            return None
        try:
            return open_envelope(envelope, self._key)
        except DecodeError:  # sealed with another key
            return None


def _as_json(envelope: Envelope, opened: OpenedPayload | None) -> dict[str, object]:
    return {
        "hash": envelope.hash().hex(),
        "topic": "0x" + envelope.topic.hex(),
        "created": envelope.created,
        "expiry": envelope.expiry,
        "ttl": envelope.ttl,
        "pow": envelope.pow(),
        "size": len(envelope.raw),
        "raw": envelope.raw.hex(),
        "payload": None if opened is None else opened.payload.decode("utf-8", "backslashreplace"),
        "payload_hex": None if opened is None else opened.payload.hex(),
        "signer": None if opened is None or opened.signer is None else opened.signer.hex(),
    }


def _utc(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S")
