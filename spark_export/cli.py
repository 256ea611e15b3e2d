"""Entry of `spark-export`: says in one line what is not installed, and leaves the rest to `spark_export.commands`."""

import sys
from collections.abc import Sequence

_EXTRA = {"pyspark", "py4j", "pyarrow", "matplotlib"}


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; return its exit code."""
    try:
        from spark_export import commands  # noqa: PLC0415 - it imports what may not be installed
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] not in _EXTRA:
            raise
        print(f"spark-export: {error.name} is not installed: pip install 'waku-mailserver[export]'", file=sys.stderr)
        return 1
    return commands.main(argv)
