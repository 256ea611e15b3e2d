"""spark_export.jvm_note: what Java says at every start is left out, and nothing else."""

import subprocess
import sys

import pytest

from spark_export.jvm_note import without_note

NOTE = "WARNING: Using incubator modules: jdk.incubator.vector\n"

WORDS = """\
OpenJDK 64-Bit Server VM warning: INFO: os::commit_memory(0x1, 2, 0) failed; error='Not enough space' (errno=12)
Error: Could not create the Java Virtual Machine.
WARNING: the disk is slow
2026-11-22T03:17:00.000Z ERROR   it broke logger=org.example.Thing
 WARNING: Using incubator modules: jdk.incubator.vector
"""

PARENT = """
import subprocess, sys
from spark_export.jvm_note import stderr_without_note
child = [sys.executable, "-c", "import sys; sys.stderr.write(sys.argv[1] + 'cut off'); sys.exit(3)", sys.argv[1]]
try:
    with stderr_without_note() as stderr:
        subprocess.run(child, stderr=stderr, check=True)
except subprocess.CalledProcessError as error:
    print(error.returncode, file=sys.stderr)
"""


def test_note_is_left_out() -> None:
    assert list(without_note(iter([NOTE.encode()]))) == []


@pytest.mark.parametrize("words", WORDS.splitlines())
def test_whatever_else_is_said_is_passed_on(words: str) -> None:
    assert list(without_note(iter([words.encode()]))) == [words.encode()]


def test_last_words_of_a_child_that_fails_are_passed_on_before_the_error() -> None:
    done = subprocess.run([sys.executable, "-c", PARENT, NOTE + WORDS], capture_output=True, text=True, check=True)

    assert done.stderr == f"{WORDS}cut off3\n"
