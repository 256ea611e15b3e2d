"""A copy of the code, mostly with a fault in it, for tests that must find it."""

import shutil
from pathlib import Path

ROOT = Path(__file__).parent.parent
PACKAGES = ("mailserver", "spark_export", "tests", "bench", "docs")


def copy_code(folder: Path) -> Path:
    """Copy the code into a folder; return the copy. What is run there by `python -m`, and every process that it starts
    so, is the copy.
    """
    root = folder / "copy"
    for package in PACKAGES:
        shutil.copytree(ROOT / package, root / package, ignore=shutil.ignore_patterns("__pycache__", "corpus", "*.png"))
    return root


def plant(folder: Path, file: str, code: str, bug: str) -> Path:
    """Copy the code into a folder, and write `bug` in place of `code` in a file of `mailserver`; return the copy."""
    root = copy_code(folder)
    path = root / "mailserver" / file
    source = path.read_text()
    assert source.count(code) == 1, f"{file} has {code!r} {source.count(code)} times"
    path.write_text(source.replace(code, bug))
    return root
