"""Runs a program with what systemd would forbid it: `python -m tests.confined UNIT COMMAND..`.

These are the seccomp filters of a unit in docker/systemd (SystemCallFilter, RestrictAddressFamilies and
MemoryDenyWriteExecute), made with libseccomp, as systemd makes them, of the groups that `systemd-analyze` knows.
They take no rights and no systemd that runs.
"""

import ctypes
import errno
import mmap
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

UNITS = Path(__file__).parents[1] / "docker" / "systemd"

_ALLOW, _ERROR = 0x7FFF0000, 0x00050000
_EQUAL, _AT_LEAST, _MASKED_EQUAL = 4, 5, 7
_UNKNOWN = -1
"""Of libseccomp's `seccomp.h`."""

_MAX_FAMILY = 64
"""No address family has a higher number: AF_MAX in Linux is below it."""


class _Comparison(ctypes.Structure):
    """`struct scmp_arg_cmp`."""

    _fields_ = (("arg", ctypes.c_uint), ("op", ctypes.c_int), ("a", ctypes.c_uint64), ("b", ctypes.c_uint64))


def settings(unit: str) -> dict[str, list[str]]:
    """What a unit sets: `Section.Name` -> values."""
    found: dict[str, list[str]] = {}
    section = ""
    for line in (UNITS / unit).read_text(encoding="ascii").splitlines():
        if line.startswith("["):
            section = line.strip("[]")
        elif "=" in line and not line.startswith("#"):
            name, _, value = line.partition("=")
            found.setdefault(f"{section}.{name}", []).append(value)
    return found


def analyze(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """Run `systemd-analyze`; skip the test where there is none."""
    if shutil.which("systemd-analyze") is None:
        if os.environ.get("CI") == "true":
            pytest.fail("there is no systemd-analyze: install Debian's package systemd")
        pytest.skip("there is no systemd-analyze")
    command = ["systemd-analyze", "--no-pager", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)


def program(unit: str, *command: str) -> tuple[str, ...]:
    """The command, confined as the unit says."""
    return (sys.executable, "-m", "tests.confined", unit, *command)


class _Filter:
    """A filter of system calls; what no rule is about has the default action."""

    def __init__(self, library: ctypes.CDLL, default: int) -> None:
        self._library = library
        self._context = ctypes.c_void_p(library.seccomp_init(ctypes.c_uint32(default)))

    def add(self, action: int, call: str, *comparisons: _Comparison) -> None:
        """Add a rule for a system call; one that libseccomp does not know is left out, as systemd does."""
        number = self._library.seccomp_syscall_resolve_name(call.encode())
        if number == _UNKNOWN:
            return
        array = (_Comparison * len(comparisons))(*comparisons)
        done = self._library.seccomp_rule_add_array(
            self._context, ctypes.c_uint32(action), number, len(comparisons), array
        )
        assert done == 0, (call, done)

    def load(self) -> None:
        """Have it hold for this process, and for what it starts."""
        assert self._library.seccomp_load(self._context) == 0


def _calls(names: Iterable[str]) -> set[str]:
    """The system calls of names and of `@groups`."""
    found = set()
    for name in names:
        if name.startswith("@"):
            listed = analyze("syscall-filter", name).stdout.splitlines()[1:]
            found |= _calls(line.strip() for line in listed if line.strip() and not line.strip().startswith("#"))
        else:
            found.add(name)
    return found


def _filter_calls(new: Callable[[int], _Filter], values: list[str], error: int) -> _Filter:
    """SystemCallFilter: first what is allowed, then, after `~`, what of it is not."""
    allowed = _calls(["@default"])  # systemd always allows it
    for value in values:
        calls = _calls(value.removeprefix("~").split())
        allowed = allowed - calls if value.startswith("~") else allowed | calls
    made = new(_ERROR | error)
    for call in sorted(allowed):
        made.add(_ALLOW, call)
    return made


def _filter_families(new: Callable[[int], _Filter], allowed: set[int]) -> _Filter:
    """RestrictAddressFamilies."""
    made = new(_ALLOW)
    refused = _ERROR | errno.EAFNOSUPPORT
    for family in set(range(_MAX_FAMILY)) - allowed:
        made.add(refused, "socket", _Comparison(0, _EQUAL, family, 0))
    made.add(refused, "socket", _Comparison(0, _AT_LEAST, _MAX_FAMILY, 0))
    return made


def _filter_memory(new: Callable[[int], _Filter]) -> _Filter:
    """MemoryDenyWriteExecute."""
    made = new(_ALLOW)
    both = mmap.PROT_EXEC | mmap.PROT_WRITE
    made.add(_ERROR | errno.EPERM, "mmap", _Comparison(2, _MASKED_EQUAL, both, both))
    for call in ("mprotect", "pkey_mprotect"):
        made.add(_ERROR | errno.EPERM, call, _Comparison(2, _MASKED_EQUAL, mmap.PROT_EXEC, mmap.PROT_EXEC))
    return made


def confine(unit: str) -> None:
    """Have this process, and what it starts, do only what the unit lets its service do."""
    library = ctypes.CDLL("libseccomp.so.2")
    library.seccomp_init.restype = ctypes.c_void_p
    service = {name.removeprefix("Service."): values for name, values in settings(unit).items()}

    def new(default: int) -> _Filter:
        return _Filter(library, default)

    families = {getattr(socket, name) for value in service["RestrictAddressFamilies"] for name in value.split()}
    filters = [_filter_families(new, families)]
    if service.get("MemoryDenyWriteExecute") == ["yes"]:
        filters.append(_filter_memory(new))
    (error,) = service["SystemCallErrorNumber"]
    filters.append(_filter_calls(new, service["SystemCallFilter"], getattr(errno, error)))
    for each in filters:  # the last one refuses to load others
        each.load()


if __name__ == "__main__":
    confine(sys.argv[1])
    os.execvp(sys.argv[2], sys.argv[2:])
