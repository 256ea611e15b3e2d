"""One Spark for all tests: to start it takes longer than most of them."""

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from spark_export.session import spark_session

SETTINGS = {
    "spark.driver.memory": "1g",
    "spark.sql.shuffle.partitions": "2",
    "spark.default.parallelism": "2",
}


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """Spark with two threads in this process."""
    with spark_session("local[2]", SETTINGS, progress=False) as session:
        yield session
