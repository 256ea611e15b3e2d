"""Makes a Git repository for a test."""

import subprocess
from pathlib import Path


def git(root: Path, *arguments: str) -> str:
    """Run a Git command; return its output."""
    identity = ["-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "commit.gpgsign=false"]
    return subprocess.run(
        ["git", *identity, *arguments], cwd=root, check=True, capture_output=True, text=True
    ).stdout.strip()


def make_repository(root: Path) -> Path:
    """Turn a folder into a repository with one commit of all its files; return the folder."""
    git(root, "init", "-q")
    git(root, "add", ".")
    git(root, "commit", "-qm", "one", "--allow-empty")
    return root
