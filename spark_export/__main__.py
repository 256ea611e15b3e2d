"""`python -m spark_export`, and what spark-submit runs."""

import sys

from spark_export.cli import main

if __name__ == "__main__":
    sys.exit(main())
