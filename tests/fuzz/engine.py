"""`python -m tests.fuzz.engine TARGET [options of libFuzzer] [folders]`: one target under atheris, in this process.

What it finds goes into the first folder; the others are read. Its seeds go into a folder beside them.
Instruments the code under test and the target itself as they are imported, so this module imports neither.
"""

import shlex
import sys
from collections.abc import Sequence

import atheris

INSTRUMENTED = ["mailserver", "spark_export", "tests", "rlp", "tomllib"]
"""Packages whose coverage guides the fuzzer; the targets themselves among them: what they decide is a path, too."""


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


if __name__ == "__main__":
    main(sys.argv[1:])
