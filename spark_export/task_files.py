"""The archive's files as tasks reach them, on whatever worker: by pyarrow's file systems, without the JVM."""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from urllib.parse import urlsplit

import pyarrow as pa
import pyarrow.fs as pafs
from pyspark.sql import SparkSession

from mailserver.archive.errors import ArchiveError

LOCAL, S3A = "file", "s3a"

_S3A_SETTINGS = {
    "fs.s3a.access.key": "access_key",
    "fs.s3a.secret.key": "secret_key",
    "fs.s3a.session.token": "session_token",
    "fs.s3a.endpoint": "endpoint_override",
    "fs.s3a.endpoint.region": "region",
}
"""What Hadoop's client is told, and the same in pyarrow's words. What is not set, both take from AWS_.. variables, from
~/.aws, or from the machine's role."""


@dataclass(frozen=True, slots=True)
class Access:
    """Where an archive is, and what it takes to reach it. It travels to the workers."""

    url: str
    s3: Mapping[str, str] = field(default_factory=dict, repr=False)


def access_to(spark: SparkSession, url: str) -> Access:
    """How tasks reach an archive that the driver reaches by Hadoop's settings, or in a folder."""
    if urlsplit(url).scheme != S3A:
        return Access(url)
    told = spark.sparkContext._jsc.hadoopConfiguration()  # noqa: SLF001 - Spark has no other way to its settings
    found = {ours: told.get(name) for name, ours in _S3A_SETTINGS.items()}
    return Access(url, {name: value for name, value in found.items() if value})


class TaskFiles:
    """The files of one archive; names are relative to it. Every method raises ArchiveError for what is refused."""

    def __init__(self, access: Access) -> None:
        self._url = access.url
        parts = urlsplit(access.url)
        try:
            match parts.scheme:
                case "file":
                    files, root = pafs.LocalFileSystem(), access.url.removeprefix("file://")
                case "s3a":
                    files, root = pafs.S3FileSystem(**access.s3), parts.netloc + parts.path
                case _:
                    files, root = pafs.FileSystem.from_uri(access.url)
        except (pa.ArrowException, OSError, ValueError) as error:
            raise ArchiveError(f"cannot open {access.url}: {_cause(error)}") from error
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
            if self._is_object_store:  # nothing is there before it is whole
                with self._files.open_output_stream(name) as stream:
                    yield stream
                return
            for folder in (os.path.dirname(name), os.path.dirname(way)):  # noqa: PTH120 - of names, and no paths
                self._files.create_dir(folder, recursive=True)
            with self._files.open_output_stream(way) as stream:
                yield stream
            self._files.move(way, name)
        except OSError as error:
            raise self._refused("write", name, error) from error

    def _refused(self, what: str, name: str, error: OSError) -> ArchiveError:
        cause = _cause(error) if error.errno is None else os.strerror(error.errno)
        return ArchiveError(f"cannot {what} {self._url}/{name}: {cause}")


def _cause(error: Exception) -> str:
    return str(error).partition("\n")[0]
