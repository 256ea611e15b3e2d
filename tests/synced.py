"""Records which files this process syncs."""

import os
from pathlib import Path

import pytest


def watch_syncs(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Record the files and folders that Python code syncs from now on, in order, each after its sync."""
    paths: list[Path] = []
    fsync = os.fsync

    def noting(descriptor: int) -> None:
        fsync(descriptor)
        paths.append(Path(f"/proc/self/fd/{descriptor}").readlink())

    monkeypatch.setattr(os, "fsync", noting)
    return paths
