"""What commands say: errors on one line, and streams to say it on. Every command loads this, so it loads little."""

import os
import sys

from mailserver.app.logs import log_failure

_STDERR = 2


def printable(text: str) -> str:
    """Text of strangers as one line without control characters, which could command the terminal."""
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


def counted(count: int, thing: str) -> str:
    """A number of things, such as "2 envelopes"."""
    return f"{count} {thing}" if count == 1 else f"{count} {thing}s"


def open_standard_streams() -> None:
    """Open those of stdin, stdout and stderr that whoever started us has closed (`>&-`).

    Otherwise the next file to be opened, such as the store, would take the number of the stream, and get what is
    printed.
    """
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:
            # The lowest number is taken. To write to stdout then fails, as it does without us; complaints go nowhere.
            os.open(os.devnull, os.O_WRONLY if number == _STDERR else os.O_RDONLY)
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(number, "r" if number == 0 else "w", closefd=False))  # noqa: SIM115 - until the end


def complain(text: str) -> None:
    """Say on stderr, in one line, what went wrong."""
    if not log_failure(text):
        print(f"waku-mailserver: {printable(text)}", file=sys.stderr)  # the text may quote a node
