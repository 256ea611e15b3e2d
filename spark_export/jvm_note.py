"""What Spark's JVM writes to stderr, passed on without the note that Java makes at every start of Spark.

Spark asks for a module that is in incubation, whatever is set, and Java has no option that keeps it from saying so
(https://openjdk.org/jeps/11): in cron's mail it would stand every night. Everything else is passed on as it comes.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Thread

_END_S = 5.0
"""How long to wait for the last words of a JVM that did not start."""

_NOTE = b"WARNING: Using incubator modules: "


def without_note(lines: Iterator[bytes]) -> Iterator[bytes]:
    """The lines that are no such note."""
    return (line for line in lines if not line.startswith(_NOTE))


@contextmanager
def stderr_without_note() -> Iterator[int]:
    """Yield a descriptor for a child's stderr: what it writes there comes to ours, but for the note.

    After an error in the context, all that was written has been passed on when it is left.
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
