"""Passes on what Spark's JVM writes to stderr, except for the note that Java writes whenever Spark starts.

Spark asks for an incubating module, whatever its settings, and Java has no option to keep it from saying so
(https://openjdk.org/jeps/11). Without this, the note would be in cron's mail every night.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Thread

_END_S = 5.0
"""How long to wait for the last words of a JVM that did not start."""

_NOTE = b"WARNING: Using incubator modules: "


def without_note(lines: Iterator[bytes]) -> Iterator[bytes]:
    """The lines without those of the note."""
    return (line for line in lines if not line.startswith(_NOTE))


@contextmanager
def stderr_without_note() -> Iterator[int]:
    """Yield a descriptor for a child's stderr. What the child writes there goes to our stderr, without the note.

    If the context ends with an error, all that was written by then has been passed on.
    """
    source, target = os.pipe()
    thread = Thread(target=_pass_on, args=(source,), name="stderr of the JVM", daemon=True)
    thread.start()
    try:
        yield target
    except BaseException:
        os.close(target)
        thread.join(_END_S)
        raise
    os.close(target)


def _pass_on(source: int) -> None:
    with os.fdopen(source, "rb") as lines:
        for line in without_note(iter(lines)):
            os.write(2, line)
