"""Where an archive is, by its setting."""

import importlib.util
import os

from mailserver.archive.access.folder import FolderFiles
from mailserver.archive.files import ReadableFiles, local_folder

S3_SCHEMES = ("s3", "s3a")
"""`s3a:` is what Hadoop calls the same."""


def is_on_s3(archive: str) -> bool:
    """Whether a setting names a bucket of S3, and perhaps a prefix in it.

    Not if it has credentials, which Hadoop may take: in the log, they would be part of each path.
    """
    scheme, separator, path = archive.partition("://")
    bucket = path.strip("/").partition("/")[0]
    return bool(separator) and scheme in S3_SCHEMES and bool(bucket) and "@" not in bucket


def is_same_archive(one: str, other: str) -> bool:
    """Whether two URLs of archives name the same one, as their storage says them.

    A folder has as many names as links lead to it. Earlier versions recorded `s3a:` for what is `s3:` now.
    """
    return _by_one_name(one) == _by_one_name(other)


def files_of(archive: str) -> ReadableFiles | None:
    """The files of the archive that a setting names; None if they cannot be seen from here.

    Nothing is opened yet. S3 needs pyarrow, which is imported only then.
    """
    folder = local_folder(archive)
    if folder is not None:
        return FolderFiles(folder)
    if not is_on_s3(archive) or importlib.util.find_spec("pyarrow") is None:
        return None
    from mailserver.archive.access.bucket import BucketFiles  # noqa: PLC0415 - as above

    return BucketFiles(archive.partition("://")[2])


def _by_one_name(url: str) -> str:
    scheme, separator, path = url.partition("://")
    if not separator:
        return url
    if scheme == "file":
        return f"file://{os.path.realpath(path)}"  # a path as it is, not percent-encoded: see `LocalFiles.url`
    return f"{'s3' if scheme in S3_SCHEMES else scheme}://{path.rstrip('/')}"
