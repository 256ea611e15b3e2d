"""Copy what an image needs of the Debian that this runs in: libraries, names of users, Python, and what is named.

    python3 root.py TARGET [PATH..]

Nothing else gets into the image: no package manager, no shell, no program but Python and those named. A PATH is
absolute and may be a pattern; links stay links.
"""

import subprocess
import sys
import sysconfig
from glob import glob
from pathlib import Path

DEBIAN = (
    "/bin",  # links into /usr
    "/sbin",
    "/lib",
    "/lib64",
    "/usr/lib64",
    "/usr/lib/*-linux-gnu",
    "/usr/lib/os-release",
    "/usr/local/lib/*.so*",
    "/etc/os-release",
    "/etc/passwd",
    "/etc/group",
    "/etc/nsswitch.conf",
    "/etc/ld.so.conf",
    "/etc/ld.so.conf.d",
    "/etc/ld.so.cache",
    "/var/lib/dpkg/status",  # by which scanners know the versions of libraries; it names what is not there, too
)
UNUSED = ("perl-base", "gconv", "pkgconfig")
"""Folders of libraries that only programs use that are not there."""

UNUSED_PYTHON = ("site-packages", "dist-packages", "ensurepip", "idlelib", "lib2to3", "test", "tkinter", "turtledemo")

ANYBODYS = 0o1777


def copy(patterns: list[str], target: Path, excluded: tuple[str, ...]) -> None:
    """Copy all paths that a pattern fits, with owners and modes."""
    paths = [path.lstrip("/") for pattern in patterns for path in sorted(glob(pattern))]
    options = [f"--exclude={name}" for name in excluded]
    with subprocess.Popen(["tar", "--create", "--directory=/", *options, *paths], stdout=subprocess.PIPE) as reading:
        subprocess.run(["tar", "--extract", f"--directory={target}"], stdin=reading.stdout, check=True)
    if reading.returncode:
        raise SystemExit("tar could not read all")


def python() -> list[str]:
    """The interpreter by all its names, and its standard library."""
    folder = Path(sys.executable).parent
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    return [str(folder / "python3"), str(folder / version), sysconfig.get_path("stdlib")]


def main(target: Path, patterns: list[str]) -> None:
    """Fill the folder; it may be there. Each path that is named must be there."""
    for name, mode in (("usr/bin", 0o755), ("usr/sbin", 0o755), ("tmp", ANYBODYS), ("var/tmp", ANYBODYS)):
        (target / name).mkdir(parents=True, exist_ok=True)
        (target / name).chmod(mode)
    missing = [pattern for pattern in patterns if not glob(pattern)]
    if missing:
        raise SystemExit(f"not there: {' '.join(missing)}")
    copy([*DEBIAN, *patterns], target, UNUSED)
    copy(python(), target, UNUSED_PYTHON)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
