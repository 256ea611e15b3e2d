"""What a run leaves on disk that is killed: a copy of its folder before each of its changes, each state once."""

import os
import shutil
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

Step = tuple[Any, str]
"""An object or class, and the name of a function of it."""


def copy_folder(folder: Path, to: Path) -> Path:
    """Copy a folder. Names of one file stay names of one file."""
    copies: dict[int, str] = {}

    def copy(source: str, target: str) -> None:
        inode = Path(source).stat().st_ino
        if inode in copies:
            os.link(copies[inode], target)
        else:
            copies[inode] = target
            shutil.copy2(source, target)

    shutil.copytree(folder, to, copy_function=copy)
    return to


class Moments:
    """Copies of a folder, each in a folder of its own. Two that have the same names, contents and times of change are
    one state."""

    def __init__(self, folder: Path, to: Path) -> None:
        self.folders: list[Path] = []
        self.steps = 0
        """How many there were, of which some change nothing."""
        self._folder = folder
        self._to = to
        self._known: set[object] = set()

    def watch(self, patch: pytest.MonkeyPatch, steps: Sequence[Step]) -> None:
        """Note the state before each of these steps."""
        for owner, name in steps:
            patch.setattr(owner, name, self._noted(getattr(owner, name)))

    def note(self) -> None:
        """Note the state as it is."""
        state = _state(self._folder)
        if state not in self._known:
            self._known.add(state)
            self.folders.append(copy_folder(self._folder, self._to / str(len(self.folders))))

    def _noted(self, real: Callable[..., Any]) -> Callable[..., Any]:
        def step(*args: Any, **options: Any) -> Any:
            self.steps += 1
            self.note()
            return real(*args, **options)

        return step


def _state(folder: Path) -> object:
    directories, contents = set[str](), dict[int, tuple[int, bytes]]()
    names: dict[int, set[str]] = defaultdict(set)
    for path in folder.rglob("*"):
        name = str(path.relative_to(folder))
        if path.is_dir():
            directories.add(name)
        else:
            found = path.stat()
            names[found.st_ino].add(name)
            contents[found.st_ino] = found.st_mtime_ns, path.read_bytes()
    return frozenset(directories), frozenset((frozenset(names[inode]), contents[inode]) for inode in names)
