"""An archive on S3, or what speaks its protocol: reached by pyarrow, with the credentials that AWS's tools take.

Nothing is known of an object without a request. What waits for one is bounded: an endpoint that is down, or says
nothing, is given up before whoever reads for a request of history is (`mailserver.archive.reading.reads`), so that the
cause is told. The client is made when it is first used, in the thread that uses it: it may look for credentials on the
network.
"""

import contextlib
import errno
import hashlib
import os
import threading
import time
from collections.abc import Collection, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.fs as pafs

from mailserver.archive.errors import ArchiveBusy, ArchiveError, ArchiveFileUnreadable
from mailserver.archive.files import (
    MAX_RECORD_BYTES,
    FileVersion,
    SmallText,
    count_lines,
    is_data,
    text_of,
    text_or_fault,
)


@dataclass(frozen=True, slots=True)
class BucketTimeouts:
    """How long a connection may take, how long an endpoint may send nothing, and how often each request is tried."""

    connect_s: float
    silence_s: float
    attempts: int


READING = BucketTimeouts(2.0, 3.0, 2)
"""For requests of history: together less than 8 s."""

LEASES = "_leases"
"""Each run that is at work on the archive has an object there, and renews it (`spark_export.s3_lease`)."""

LEASE_S = 300.0
"""A run that has not renewed its lease for longer has ended."""

READS_AT_ONCE = 16
"""How many records are read at the same time: there may be hundreds, each a round trip or two away."""

_ENDPOINTS = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL")
"""The environment variables that name an endpoint; pyarrow's client knows all others itself."""

AUTHORITIES = "AWS_CA_BUNDLE"
"""The variable that names a file of certificate authorities, for an endpoint whose certificate no public one signed."""

_NO_ANSWER = "NETWORK_CONNECTION"
"""What pyarrow's client says where S3 has not answered."""

_DENIED = "ACCESS_DENIED"
"""What it says where S3 refuses access: also to whoever has no credentials."""

_SETTLED_S = 2.0
"""S3 tells the second of a change. A version that was seen for longer cannot be one of two of the same second."""

_CLOCKS_DIFFER_S = 3600.0
"""An object that is older than this by our clock was not changed just now, by any clock that S3 could have."""

_CHUNK_BYTES = 8 * 1024 * 1024
"""Each is a request."""


class BucketFiles:
    """An archive in a bucket. It is a `mailserver.archive.files.ReadableFiles`. Several threads may use it."""

    absence = "is that the right bucket and prefix?"
    patience = READING

    def __init__(self, root: str) -> None:
        """Describe the archive at `BUCKET` or `BUCKET/PREFIX`."""
        self.root = root.strip("/")
        self.url = f"s3://{self.root}"
        self._lock = threading.Lock()
        self._client: pafs.S3FileSystem | None = None
        self._first_seen: dict[str, tuple[int, int, float]] = {}

    def where(self, name: str) -> str:
        """See ReadableFiles."""
        return f"{self.url}/{name}" if name else self.url

    def read(self, name: str) -> str | None:
        """See ArchiveFiles."""
        with self._refused(name):
            try:
                with self.opened(name) as file:
                    return text_of(file.read(MAX_RECORD_BYTES + 1), self.where(name))
            except FileNotFoundError:
                return None
            except OSError as error:
                if is_not_answered(error):
                    raise
                raise ArchiveFileUnreadable(f"cannot read {self.where(name)}: {cause_of(error)}") from error

    def read_each(self, names: Collection[str]) -> Iterator[tuple[str, SmallText]]:
        """See ArchiveFiles."""
        left = [*names]
        with ThreadPoolExecutor(READS_AT_ONCE, thread_name_prefix="archive-records") as threads:
            while some := left[:READS_AT_ONCE]:
                del left[:READS_AT_ONCE]
                yield from zip(some, threads.map(partial(text_or_fault, self.read), some), strict=True)

    def names(self, directory: str) -> list[str]:
        """See ArchiveFiles."""
        return sorted(entry.base_name for entry in self._listed(directory, recursive=False))

    def sizes(self, directory: str) -> dict[str, int]:
        """See ArchiveFiles."""
        top = f"{self._path(directory)}/"
        found = {}
        for entry in self._listed(directory, recursive=True):
            name = entry.path.removeprefix(top)
            if entry.type is pafs.FileType.File and all(map(is_data, name.split("/"))):
                found[name] = entry.size
        return found

    def size(self, name: str) -> int | None:
        """See ArchiveFiles."""
        with self._refused(name):
            entry = self._opened_client().get_file_info(self._path(name))
        return int(entry.size) if entry.type is pafs.FileType.File else None

    def chunks(self, name: str) -> Iterator[bytes]:
        """See ArchiveFiles."""
        with self._refused(name):
            try:
                with self.opened(name) as file:
                    yield from iter(lambda: file.read(_CHUNK_BYTES), b"")
            except FileNotFoundError:
                return

    def lines(self, name: str) -> int:
        """See ArchiveFiles."""
        return count_lines(self.chunks(name))

    def digest(self, name: str) -> str:
        """See ArchiveFiles."""
        digest = hashlib.sha256()
        with self._refused(name), self.opened(name) as file:
            while chunk := file.read(_CHUNK_BYTES):
                digest.update(chunk)
        return digest.hexdigest()

    @contextlib.contextmanager
    def opened(self, name: str) -> Iterator[Any]:
        """See ReadableFiles. Only what is asked for is fetched."""
        try:
            with self._opened_client().open_input_file(self._path(name)) as file:
                yield file
        except OSError as error:
            if error.errno is None and not is_not_answered(error) and self._is_gone(name):
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), self.where(name)) from error
            raise

    def state(self, directory: str) -> FileVersion | None:
        """See ReadableFiles: there are no directories, only names that begin alike."""
        del directory
        return None

    def versions(self, directory: str) -> dict[str, FileVersion]:
        """See ReadableFiles. A new version changes once more, when it is known to be the only one of its time."""
        now, wall = time.monotonic(), time.time()
        found: dict[str, FileVersion] = {}
        seen: dict[str, tuple[int, int, float]] = {}
        for entry in self._listed(directory, recursive=False):
            if entry.type is not pafs.FileType.File:
                continue
            changed, size = entry.mtime_ns, entry.size
            before = self._first_seen.get(entry.path)
            first = before[2] if before is not None and before[:2] == (changed, size) else now
            seen[entry.path] = changed, size, first
            is_settled = now - first > _SETTLED_S or wall - changed / 1e9 > _CLOCKS_DIFFER_S
            found[entry.base_name] = changed, size, is_settled
        self._first_seen = seen
        return found

    @contextlib.contextmanager
    def left_alone(self) -> Iterator[None]:
        """See ReadableFiles. No run can be kept from beginning: one that did is found out at the end."""
        self._raise_if_leased()
        try:
            yield
        except ArchiveError:
            self._raise_if_leased()
            raise
        self._raise_if_leased()

    def _is_gone(self, name: str) -> bool:
        """Whether an object is missing that could not be read: a read's own error does not always say so."""
        try:
            found = self._opened_client().get_file_info(self._path(name))
        except OSError:
            return False
        return bool(found.type is pafs.FileType.NotFound)

    def _raise_if_leased(self) -> None:
        now = time.time()
        for lease in self._listed(LEASES, recursive=False):
            if lease.is_file and now - lease.mtime_ns / 1e9 <= LEASE_S + _CLOCKS_DIFFER_S:
                where = self.where(f"{LEASES}/{lease.base_name}")
                raise ArchiveBusy(f"a run is at work on the archive, or was killed in the last hour: {where} is there")

    def _listed(self, directory: str, *, recursive: bool) -> list[pafs.FileInfo]:
        wanted = pafs.FileSelector(self._path(directory), recursive=recursive, allow_not_found=True)
        with self._refused(directory):
            entries: list[pafs.FileInfo] = self._opened_client().get_file_info(wanted)
        return entries

    def _path(self, name: str) -> str:
        return f"{self.root}/{name}" if name else self.root

    def _opened_client(self) -> pafs.S3FileSystem:
        with self._lock:
            if self._client is None:
                self._client = connect(self.patience)
            return self._client

    @contextlib.contextmanager
    def _refused(self, name: str, what: str = "read") -> Iterator[None]:
        """Raise ArchiveError for what S3 refuses."""
        try:
            yield
        except (OSError, pa.ArrowException) as error:
            raise ArchiveError(f"cannot {what} {self.where(name)}: {cause_of(error)}") from error


def cause_of(error: Exception) -> str:
    """What pyarrow says of a failure, in one line."""
    said = str(error).partition("\n")[0]
    return f"{said}: are there credentials, and do they allow it?" if _DENIED in said else said


def is_not_answered(error: Exception) -> bool:
    """Whether S3 has not answered, which says nothing about an object."""
    return _NO_ANSWER in str(error)


def connect(patience: BucketTimeouts) -> pafs.S3FileSystem:
    """Make a client, as the environment says. It asks for nothing yet, except perhaps for credentials."""
    return pafs.S3FileSystem(
        endpoint_override=endpoint(os.environ),
        tls_ca_file_path=os.environ.get(AUTHORITIES) or None,
        connect_timeout=patience.connect_s,
        request_timeout=patience.silence_s,
        retry_strategy=pafs.AwsStandardS3RetryStrategy(max_attempts=patience.attempts),
        allow_delayed_open=True,  # a small object is written by one request, and not by three
    )


def endpoint(environment: Mapping[str, str]) -> str | None:
    """The endpoint that the environment names; None for AWS itself."""
    return next((environment[name] for name in _ENDPOINTS if environment.get(name)), None)
