"""`python -m tests.fuzz.engine TARGET [options of libFuzzer] [folders]`: one target under atheris, in this process.

What it finds goes into the first folder; the others are read. Its seeds go into a folder beside them.
Instruments the code under test and the target itself as they are imported, so this module imports neither.

`python -m tests.fuzz.engine --forks TARGET...` instruments the code of some targets, which takes a second or two for
each, and then fuzzes one after another, each in a fork. A line on its standard input has the arguments for one, and the
file for what libFuzzer says, as JSON; it answers with a line with the exit code.
"""

import json
import os
import shlex
import sys
from collections.abc import Sequence

import atheris

INSTRUMENTED = ["mailserver", "spark_export", "tests", "rlp", "tomllib"]
"""Packages whose coverage guides the fuzzer; the targets themselves among them: what they decide is a path, too."""

NOT_ENDED = 70
"""The exit code of a fork that libFuzzer has not ended."""


def main(argv: Sequence[str]) -> None:
    """Fuzz until libFuzzer ends the process."""
    name, *options = argv
    with atheris.instrument_imports(include=INSTRUMENTED):
        from tests.fuzz.target import load, run_bounded  # noqa: PLC0415 (instrumented)

        target = load(name)

    def one_input(data: bytes) -> None:
        run_bounded(target, data)

    # Merging starts processes of its own, by the shell and the first of these.
    itself = f"{shlex.quote(sys.executable)} -m tests.fuzz.engine {name}"
    atheris.Setup([itself, f"-max_len={target.max_bytes}", *options], one_input)
    atheris.Fuzz()


def fork_for_each(targets: Sequence[str]) -> None:
    """Load targets, and fuzz what is asked for, until standard input ends."""
    with atheris.instrument_imports(include=INSTRUMENTED):
        from tests.fuzz.target import load  # noqa: PLC0415 (instrumented)

        for name in targets:
            load(name)
    for line in sys.stdin:
        asked = json.loads(line)
        child = os.fork()
        if not child:
            output = os.open(asked["output"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            os.dup2(output, sys.stdout.fileno())
            os.dup2(output, sys.stderr.fileno())
            main(asked["arguments"])  # libFuzzer ends the process
            os._exit(NOT_ENDED)
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)  # noqa: T201 - that is the answer


if __name__ == "__main__":
    if sys.argv[1] == "--forks":
        fork_for_each(sys.argv[2:])
    else:
        main(sys.argv[1:])
