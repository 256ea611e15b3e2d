"""Packages of Node.js that some tests need: `make node` installs them, by the hashes in their lock files."""

import os
import shutil
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def require_packages(folder: Path) -> None:
    """Skip the test where the packages of a folder are not installed; in CI that fails it."""
    if shutil.which("node") is None:
        missing = "no node: on Debian, apt-get install nodejs npm"
    elif not (folder / "node_modules" / ".package-lock.json").exists():
        missing = f"no packages of Node.js in {folder.relative_to(ROOT)}: make node"
    else:
        return
    if os.environ.get("CI"):
        pytest.fail(missing)
    pytest.skip(missing)
