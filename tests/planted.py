"""Copies the code, usually with a fault in it that a test must find."""

import shutil
from pathlib import Path

ROOT = Path(__file__).parent.parent
PACKAGES = ("mailserver", "spark_export", "tests", "bench", "docs")


LEFT_OUT = ("__pycache__", "corpus", "*.png", "node_modules")


def copy_code(folder: Path) -> Path:
    """Copy the code into a folder; return the copy. `python -m` runs the copy when it is started there, and so does
    every process that it starts in the same way.
    """
    root = folder / "copy"
    for package in PACKAGES:
        shutil.copytree(ROOT / package, root / package, ignore=shutil.ignore_patterns(*LEFT_OUT))
    return root


def plant(folder: Path, file: str, code: str, bug: str) -> Path:
    """Copy the code into a folder, and write `bug` in place of `code` in a file of `mailserver`; return the copy."""
    root = copy_code(folder)
    path = root / "mailserver" / file
    source = path.read_text()
    assert source.count(code) == 1, f"{file} has {code!r} {source.count(code)} times"
    path.write_text(source.replace(code, bug))
    return root
