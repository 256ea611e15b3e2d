"""A bucket on S3, to write. S3 has no directories: names only begin alike.

pyarrow keeps up the appearance of directories all the same: it puts an empty object in the place of one that it has
taken a file from. Nobody takes that for data.
"""

import contextlib
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor

import pyarrow.fs as pafs

from mailserver.archive.access.bucket import BucketFiles, BucketTimeouts
from mailserver.archive.errors import ArchiveError

WORKING = BucketTimeouts(5.0, 20.0, 3)
"""A run has time, and to copy a large object takes S3 seconds. A silent endpoint is given up after a minute."""

REQUESTS_AT_ONCE = 16


class WritableBucket(BucketFiles):
    """The objects of an archive. Every method raises ArchiveError for what S3 refuses."""

    patience = WORKING

    def __init__(self, root: str) -> None:
        super().__init__(root)
        self.permit: Callable[[], None] = lambda: None
        """Called before each request that changes something; raises ArchiveError if there must be none."""

    def put_object(self, name: str, content: bytes) -> None:
        """Write an object whole, or leave what was there."""
        self.permit()
        with self._refused(name, "write"), self._opened_client().open_output_stream(self._path(name)) as stream:
            stream.write(content)

    def below(self, name: str) -> dict[str, int]:
        """The sizes of all objects below a directory, by their paths there; of an object itself, by ""."""
        top = f"{self._path(name)}/"
        found = {one.path.removeprefix(top): one.size for one in self._listed(name, recursive=True) if one.is_file}
        size = None if found else self.size(name)
        return found if size is None else {"": size}

    def changed(self, directory: str) -> dict[str, float]:
        """When each object right below a directory was written last, by its name: Unix seconds, by the clock of S3."""
        return {one.base_name: one.mtime_ns / 1e9 for one in self._listed(directory, recursive=False) if one.is_file}

    def copy(self, source: str, target: str) -> None:
        """Copy an object, or all below a directory; S3 does that itself. Then look whether every copy is there.

        Raises:
            ArchiveError: there is nothing to copy, or a copy is missing.
        """
        client, before = self._opened_client(), self.below(source)
        if not before:
            raise ArchiveError(f"cannot write {self.where(target)}: {self.where(source)} is missing")

        def copy_one(path: str) -> None:
            self.permit()
            client.copy_file(self._path(_below(source, path)), self._path(_below(target, path)))

        with self._refused(target, "write"):
            _each(copy_one, before)
        there = self.below(target)
        if missing := sorted(path for path, size in before.items() if there.get(path) != size):
            raise ArchiveError(f"cannot write {self.where(_below(target, missing[0]))}: it is not there afterwards")

    def delete(self, *names: str) -> None:
        """Delete objects, or all below directories, if they are there."""
        _each(self._delete, names)

    def _delete(self, name: str) -> None:
        client, path = self._opened_client(), self._path(name)
        self.permit()
        with self._refused(name, "remove"), contextlib.suppress(FileNotFoundError):
            match client.get_file_info(path).type:
                case pafs.FileType.File:
                    client.delete_file(path)
                case pafs.FileType.Directory:
                    client.delete_dir(path)


def _below(directory: str, path: str) -> str:
    return f"{directory}/{path}" if path else directory


def _each(do: Callable[[str], None], names: Iterable[str]) -> None:
    with ThreadPoolExecutor(REQUESTS_AT_ONCE, thread_name_prefix="archive-objects") as threads:
        for _ in threads.map(do, names):
            pass
