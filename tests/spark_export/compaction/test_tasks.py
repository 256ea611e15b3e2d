"""spark_export.tasks: what workers are told."""

import mmap
import platform
import resource

import pytest
from pyspark.sql import SparkSession

from spark_export.tasks import in_tasks

pytestmark = pytest.mark.spark


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another allocator is not told anything")
def test_worker_takes_large_blocks_from_what_it_has_freed(spark: SparkSession) -> None:
    def new_pages(size: int) -> int:
        bytearray(size)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        bytearray(size)
        return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

    size = 64 * 1024 * 1024
    (found,) = in_tasks(spark, [size], new_pages)

    assert found < size // mmap.PAGESIZE // 10
