"""The archive's files as tasks reach them, on whatever worker: by pyarrow's file systems, without the JVM."""

import functools
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pyarrow.fs as pafs

from mailserver.archive.access.bucket import cause_of, connect, endpoint
from mailserver.archive.errors import ArchiveError
from mailserver.files import open_descriptor
from spark_export.s3_bucket import WORKING


class TaskFiles:
    """The files of one archive; names are relative to it. Every method raises ArchiveError for what is refused."""

    def __init__(self, url: str) -> None:
        """Describe the archive at this URL, `Archive.url`."""
        self._url = url
        scheme, _, path = url.partition("://")
        self._folder = Path(path) if scheme == "file" else None
        try:
            match scheme:
                case "file":
                    files, root = pafs.LocalFileSystem(), path
                case "s3":
                    files, root = _client_of_s3(endpoint(os.environ)), path
                case _:
                    files, root = pafs.FileSystem.from_uri(url)
        except (pa.ArrowException, OSError, ValueError) as error:
            raise ArchiveError(f"cannot open {url}: {cause_of(error)}") from error
        self._is_object_store = files.type_name == "s3"
        self._files = pafs.SubTreeFileSystem(root, files)

    def read(self, name: str) -> pa.Buffer:
        """All bytes of a file."""
        with self.opened(name) as file:
            try:
                return file.read_buffer()
            except OSError as error:
                raise self._refused("read", name, error) from error

    def opened(self, name: str) -> pa.NativeFile:
        """A file, to read parts of."""
        try:
            return self._files.open_input_file(name)
        except OSError as error:
            raise self._refused("read", name, error) from error

    def write(self, name: str, data: pa.Buffer, way: str) -> None:
        """Make a file of these bytes, as `created` does."""
        with self.created(name, way) as stream:
            stream.write(data)

    @contextmanager
    def created(self, name: str, way: str) -> Iterator[pa.NativeFile]:
        """Make a file, whole or not at all: what is written in the context. One that was there is replaced.

        Args:
            way: another name, unlike any that another task or attempt uses, where the file may be until it is whole.
        """
        try:
            if self._is_object_store:  # nothing is there before it is closed
                stream = self._files.open_output_stream(name)
                try:
                    yield stream
                except BaseException:
                    stream.close()  # pyarrow cannot give up a file
                    self._files.delete_file(name)
                    raise
                stream.close()
                return
            for folder in (os.path.dirname(name), os.path.dirname(way)):  # noqa: PTH120 - of names, and no paths
                self._files.create_dir(folder, recursive=True)
            with self._files.open_output_stream(way) as stream:
                yield stream
            self._files.move(way, name)
        except OSError as error:
            raise self._refused("write", name, error) from error

    def flush(self, name: str) -> None:
        """Have the kernel begin to put a file onto the disk, so that whoever syncs it later need not wait long.

        Nothing is promised. It is done where the archive is in a folder.
        """
        if self._folder is None or not hasattr(os, "posix_fadvise"):
            return
        try:
            with open_descriptor(self._folder / name, os.O_RDONLY) as descriptor:
                # Linux writes out what it is told to drop, and does not wait for it.
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        except OSError as error:
            raise self._refused("write", name, error) from error

    def _refused(self, what: str, name: str, error: OSError) -> ArchiveError:
        cause = cause_of(error) if error.errno is None else os.strerror(error.errno)
        return ArchiveError(f"cannot {what} {self._url}/{name}: {cause}")


@functools.lru_cache(maxsize=1)
def _client_of_s3(at: str | None) -> pafs.S3FileSystem:
    """The client of this process: each one looks for credentials by itself, perhaps on the network."""
    del at  # another endpoint takes another client
    return connect(WORKING)
