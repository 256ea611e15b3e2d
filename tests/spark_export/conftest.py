"""One Spark for all tests: to start it takes longer than most of them; and places for stores and archives."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from mailserver.archive.layout import PartitionBy
from spark_export import plan
from spark_export.session import spark_session
from tests.spark_export.damage import NOW, ONE, THREE, TWO, Place
from tests.spark_export.samples import compact_into, put

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


@pytest.fixture(scope="session")
def sound_place(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Place:
    """A store of three days, and their archive, that tests copy."""
    place = Place(tmp_path_factory.mktemp("mending") / "place")
    put(place.store, ONE, TWO, THREE)
    compact_into(
        spark, place.archive, place.store, now=NOW, run="run-1", partition_by=PartitionBy.TOPIC_PREFIX, prefix_digits=1
    )
    return place


@pytest.fixture
def place(sound_place: Place, tmp_path: Path) -> Place:
    """A copy of it, to damage."""
    return sound_place.copy(tmp_path / "place")


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """Where the store will be."""
    return tmp_path / "a" / "mailserver.db"


@pytest.fixture
def other_store(tmp_path: Path) -> Path:
    """Where another one will be."""
    return tmp_path / "b" / "mailserver.db"


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    """Where the archive will be."""
    return tmp_path / "archive"


@pytest.fixture
def small_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each day is a group of its own."""
    monkeypatch.setattr(plan, "GROUP_BYTES", 1)
