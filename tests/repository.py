"""A Git repository of a test's own."""

import subprocess
from pathlib import Path


def git(root: Path, *arguments: str) -> str:
    """Run a command of Git; return what it says."""
    identity = ["-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "commit.gpgsign=false"]
    return subprocess.run(
        ["git", *identity, *arguments], cwd=root, check=True, capture_output=True, text=True
    ).stdout.strip()


def make_repository(root: Path) -> Path:
    """Make one of a folder, with one commit of all that is there; return the folder."""
    git(root, "init", "-q")
    git(root, "add", ".")
    git(root, "commit", "-qm", "one", "--allow-empty")
    return root
