"""The nightly compaction, a PySpark job: it writes a mailserver's envelopes to Parquet, by day and topic.

`spark_export.read_archive` is for other programs. It is imported on first use, so that the command line can report in
one line that PySpark is not installed.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from spark_export.read import read_archive

__all__ = ["read_archive"]


def __getattr__(name: str) -> Any:
    if name != "read_archive":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from spark_export.read import read_archive  # noqa: PLC0415 - see above

    return read_archive
