"""What may be on the disk after a power cut: a model of file systems that promises no more than POSIX does.

- On disk for sure is what a successful fsync or fdatasync covers: of a file, every write and change of length that came
  before the call began; of a folder, every name that was made or taken away in it. Syncing a file does not sync its
  name, syncing a folder does not sync its own name, and nothing is ever on disk by itself after some time.
- Everything else may be there or not, each by itself: no order between two writes, two files, or data and names is
  assumed (ext4's `data=ordered`, say). A write may also be torn: any of its 512-byte sectors, or its first bytes.
- Where a write that lengthens a file is missing or torn, the file may be as short as before, or long, with zeros or
  with garbage (`data=writeback`) where the data should be.
- A rename or exchange happens as a whole or not at all; it is on disk when the folders are synced in which it makes a
  name.
- A write changes no byte outside of its range, and what is synced does not decay: SQLite's "powersafe overwrite". Disks
  write sectors of 512 or 4,096 bytes whole, and what is read before a part of one is overwritten is what was there.
  That is why a sector may well be cut in two here, where only new bytes can suffer, and never an old byte beside them:
  frames of a WAL do not begin at sectors, and a frame that is cut in two is found by its checksum.
- The index of a WAL (`-shm`) is memory that happens to have a name: it may be gone, or hold anything.

`FileSystem` says where one promises more, for programs that ask for more.
"""

import random
import stat
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path, PurePosixPath

from tests.faults.powercut.recorder import Entry, Kind

SECTOR_BYTES = 512
INDEX_SUFFIX = "-shm"
INDEX_BYTES = 32768


class Loss(Enum):
    """What becomes of everything that is not synced."""

    EVERYTHING = "everything"
    NOTHING = "nothing"
    """As after a kill."""
    DATA = "data"
    NAMES = "names"
    TAIL = "tail"
    """What came after some moment, and the write at that moment is torn."""
    RANDOM = "random"
    """Each is there, missing or torn by itself."""


@dataclass(frozen=True, slots=True)
class FileSystem:
    """What a file system promises beyond that.

    Args:
        whole_sectors: each sector is as before a write, or as after it.
        names_with_files: a sync of a file puts the name on disk, too, under which it was made.
        no_garbage: where data is missing in the middle of a file, there are zeros.
    """

    whole_sectors: bool = False
    names_with_files: bool = False
    no_garbage: bool = False


POSIX = FileSystem()


@dataclass(eq=False, slots=True)
class File:
    """A file; `data` is what is synced of it."""

    data: bytearray
    mode: int
    is_index: bool = False
    changes: list["Change"] = field(default_factory=list)


@dataclass(eq=False, slots=True)
class Folder:
    """A folder: what its names are now, and which of them are synced."""

    mode: int
    now: dict[str, "Node"] = field(default_factory=dict)
    synced: dict[str, "Node"] = field(default_factory=dict)


Node = File | Folder


@dataclass(frozen=True, slots=True)
class Change:
    """A write (`data`, from `start`), or a new length (`start`; ALLOCATE does not shorten)."""

    at: int
    kind: Kind
    start: int
    data: bytes = b""


@dataclass(eq=False, slots=True)
class Naming:
    """Names that change together: None takes one away. `waits_for`: the folders that are to be synced. `is_new`: the
    first name of something."""

    at: int
    names: dict[tuple[Folder, str], Node | None]
    waits_for: set[Folder]
    is_new: bool = False


class UnknownCallError(Exception):
    """Something was done that this model does not know."""


class Disk:
    """A folder while a log is played: what is in it now, and what is synced."""

    def __init__(self, folder: Path, promises: FileSystem = POSIX) -> None:
        """Begin with a folder as it is: all synced."""
        self._promises = promises
        self._inodes: dict[int, Node] = {}
        self._root = self._scan(folder)
        self._namings: list[Naming] = []
        self._syncs: dict[int, tuple[Node, int]] = {}
        self.played = 0

    def play(self, entry: Entry) -> None:
        """Take the next entry of the log."""
        match entry.kind:
            case Kind.CREATE:
                self._make(entry, File(bytearray(), entry.b, is_index=entry.path.endswith(INDEX_SUFFIX)))
            case Kind.MKDIR:
                self._make(entry, Folder(entry.b))
            case Kind.WRITE | Kind.TRUNCATE | Kind.ALLOCATE:
                file = self._inodes[entry.a]
                assert isinstance(file, File)
                if not file.is_index:
                    file.changes.append(Change(self.played, entry.kind, entry.b, entry.data))
            case Kind.CHMOD:
                self._inodes[entry.a].mode = entry.b
            case Kind.SYNC_BEGIN:
                self._syncs[entry.a] = (self._inodes[entry.b], self.played)
            case Kind.SYNC_END:
                self._sync(*self._syncs.pop(entry.a))
            case Kind.LINK | Kind.RENAME | Kind.EXCHANGE:
                self._move(entry)
            case Kind.UNLINK:
                folder, name = self._place(entry.path)
                del folder.now[name]
                self._namings.append(Naming(self.played, {(folder, name): None}, {folder}))
            case Kind.UNKNOWN:
                if not entry.path.endswith(INDEX_SUFFIX):
                    raise UnknownCallError(f"{entry.other} of {entry.path}")
            case Kind.SEND | Kind.OUT:
                pass
        self.played += 1

    def cut(self, loss: Loss, choice: random.Random) -> "Remains":
        """What a power cut leaves now."""
        return Remains(self._root, self._namings, loss, choice, self.played, self._promises)

    def _scan(self, path: Path) -> Folder:
        status = path.stat()
        folder = Folder(stat.S_IMODE(status.st_mode))
        self._inodes[status.st_ino] = folder
        for child in path.iterdir():
            if child.is_dir():
                folder.now[child.name] = self._scan(child)
            elif child.is_file():
                status = child.stat()
                node = self._inodes.get(status.st_ino)
                if node is None:
                    is_index = child.name.endswith(INDEX_SUFFIX)
                    node = File(bytearray(child.read_bytes()), stat.S_IMODE(status.st_mode), is_index=is_index)
                    self._inodes[status.st_ino] = node
                folder.now[child.name] = node
        folder.synced = dict(folder.now)
        return folder

    def _make(self, entry: Entry, node: Node) -> None:
        self._inodes[entry.a] = node
        folder, name = self._place(entry.path)
        folder.now[name] = node
        self._namings.append(Naming(self.played, {(folder, name): node}, {folder}, is_new=True))

    def _move(self, entry: Entry) -> None:
        source, target = self._place(entry.path), self._place(entry.other)
        node = source[0].now[source[1]]
        names: dict[tuple[Folder, str], Node | None] = {target: node}
        if entry.kind is Kind.RENAME:
            names = {source: None, target: node}
        elif entry.kind is Kind.EXCHANGE:
            names[source] = target[0].now[target[1]]
        for (folder, name), value in names.items():
            if value is None:
                del folder.now[name]
            else:
                folder.now[name] = value
        waits_for = {folder for (folder, _), value in names.items() if value is not None}
        self._namings.append(Naming(self.played, names, waits_for))

    def _place(self, path: str) -> tuple[Folder, str]:
        folder: Node = self._root
        *parents, name = PurePosixPath(path).parts
        for parent in parents:
            assert isinstance(folder, Folder)
            folder = folder.now[parent]
        assert isinstance(folder, Folder)
        return folder, name

    def _sync(self, node: Node, before: int) -> None:
        if isinstance(node, File):
            for change in node.changes:
                if change.at < before:
                    _apply(node.data, change)
            node.changes = [change for change in node.changes if change.at >= before]
            if not self._promises.names_with_files:
                return
        for naming in self._namings:
            if naming.at < before and isinstance(node, Folder):
                naming.waits_for.discard(node)
            elif naming.at < before and naming.is_new and node in naming.names.values():
                naming.waits_for.clear()
        for naming in [naming for naming in self._namings if not naming.waits_for]:
            self._settle(naming)
        self._namings = [naming for naming in self._namings if naming.waits_for and naming.names]

    def _settle(self, settled: Naming) -> None:
        """A change of names is on disk: what earlier ones made of the same names cannot come back."""
        for (folder, name), node in settled.names.items():
            if node is None:
                folder.synced.pop(name, None)
            else:
                folder.synced[name] = node
            for naming in self._namings:
                if naming.at < settled.at:
                    naming.names.pop((folder, name), None)


class Remains:
    """What one power cut leaves."""

    def __init__(
        self,
        root: Folder,
        namings: list[Naming],
        loss: Loss,
        choice: random.Random,
        played: int,
        promises: FileSystem,
    ) -> None:
        self._root = root
        self._promises = promises
        self._loss = loss
        self._choice = choice
        self._end = choice.randrange(played + 1) if loss is Loss.TAIL else played
        if loss is Loss.TAIL:  # a moment that matters
            moments = [naming.at for naming in namings] + [
                change.at for file in _files(root) for change in file.changes
            ]
            self._end = choice.choice(moments) if moments else played
        self._names: dict[Folder, dict[str, Node]] = {}
        for naming in namings:
            if self._keeps_name(naming):
                for (folder, name), node in naming.names.items():
                    names = self._names.setdefault(folder, dict(folder.synced))
                    names.pop(name, None)
                    if node is not None:
                        names[name] = node

    def write_to(self, target: Path) -> None:
        """Make a folder of it, which is not there yet."""
        self._write(self._root, target, {})

    def _write(self, folder: Folder, target: Path, written: dict[File, Path]) -> None:
        target.mkdir()
        for name, node in sorted(self._names.get(folder, folder.synced).items()):
            path = target / name
            if isinstance(node, Folder):
                self._write(node, path, written)
            elif node in written:
                path.hardlink_to(written[node])
            elif (content := self._content(node)) is not None:
                path.write_bytes(content)
                path.chmod(node.mode)
                written[node] = path
        target.chmod(folder.mode)

    def _content(self, file: File) -> bytes | bytearray | None:
        if file.is_index:
            return self._choice.choice((None, b"", bytes(INDEX_BYTES), self._choice.randbytes(INDEX_BYTES)))
        if not file.changes:
            return file.data
        data = bytearray(file.data)
        for change in file.changes:
            self._survive(data, change)
        return data

    def _keeps_name(self, naming: Naming) -> bool:
        match self._loss:
            case Loss.EVERYTHING | Loss.NAMES:
                return False
            case Loss.NOTHING | Loss.DATA:
                return True
            case Loss.TAIL:
                return naming.at < self._end
            case Loss.RANDOM:
                return self._choice.random() < 0.5

    def _survive(self, data: bytearray, change: Change) -> None:
        match self._loss:
            case Loss.EVERYTHING:
                return
            case Loss.NOTHING | Loss.NAMES:
                _apply(data, change)
            case Loss.DATA:
                self._lose(data, change)
            case Loss.TAIL if change.at < self._end:
                _apply(data, change)
            case Loss.TAIL if change.at == self._end:
                self._tear(data, change)
            case Loss.TAIL:
                return
            case Loss.RANDOM:
                self._choice.choice((_apply, self._lose, self._tear))(data, change)

    def _lose(self, data: bytearray, change: Change) -> None:
        """None of a write is there, but the file may be as long as with it."""
        missing = change.start + len(change.data) - len(data)
        if change.kind is Kind.WRITE and missing > 0:
            data += self._filling(missing)

    def _tear(self, data: bytearray, change: Change) -> None:
        """Some of a write is there."""
        if change.kind is not Kind.WRITE:
            if self._choice.random() < 0.5:
                _apply(data, change)
            return
        kept = change.data
        if self._choice.random() < 0.5:
            size = self._choice.randrange(len(kept) + 1)
            if self._promises.whole_sectors:
                size = max(0, size - (change.start + size) % SECTOR_BYTES)
            kept = kept[:size]
            if len(kept) < len(change.data):
                self._lose(data, change)
            _apply(data, Change(change.at, Kind.WRITE, change.start, kept))
            return
        self._lose(data, change)
        for start, end in _sectors(change.start, change.start + len(kept)):
            if self._choice.random() < 0.5:
                part = kept[start - change.start : end - change.start]
                _apply(data, Change(change.at, Kind.WRITE, start, part))

    def _filling(self, size: int) -> bytes:
        fillings = (b"", bytes(size), self._choice.randbytes(size))
        return self._choice.choice(fillings[: 2 if self._promises.no_garbage else 3])


def _apply(data: bytearray, change: Change) -> None:
    if change.kind is Kind.WRITE:
        end = change.start + len(change.data)
        if not change.data:
            return
        if len(data) < change.start:
            data += bytes(change.start - len(data))
        data[change.start : end] = change.data
    elif len(data) < change.start:
        data += bytes(change.start - len(data))
    elif change.kind is Kind.TRUNCATE:
        del data[change.start :]


def _sectors(start: int, end: int) -> Iterator[tuple[int, int]]:
    while start < end:
        stop = min(end, (start // SECTOR_BYTES + 1) * SECTOR_BYTES)
        yield start, stop
        start = stop


def _files(folder: Folder) -> Iterator[File]:
    for node in folder.now.values():
        if isinstance(node, File):
            yield node
        else:
            yield from _files(node)
