"""Which rows of several stores go into the archive: from DataFrames, without session, paths or clock."""

import numpy as np
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from spark_export.pieces import Seqs

PLACE = ["store", "seq"]
"""What tells a stored row from every other of a run."""


def first_received(keys: DataFrame) -> DataFrame:
    """Of rows with the same hash, the one received first: KEYS in, KEYS out."""
    others = [name for name in keys.columns if name not in ("received", *PLACE, "hash")]
    earliest = F.min(F.struct("received", *PLACE, *others)).alias("earliest")
    return keys.groupBy("hash").agg(earliest).select("hash", "earliest.*").select(*keys.columns)


def without(rows: DataFrame, others: DataFrame, *columns: str) -> DataFrame:
    """The rows that have no counterpart in `others`, by these columns."""
    return rows.join(others, on=list(columns), how="left_anti")


def seqs_by_store(rows: DataFrame | None) -> dict[int, Seqs]:
    """Column `seq` of rows, sorted, by column `store`."""
    if rows is None:
        return {}
    places = rows.select(*PLACE).toArrow()
    stores, seqs = places.column("store").to_numpy(), places.column("seq").to_numpy()
    return {int(store): np.sort(seqs[stores == store]) for store in np.unique(stores)}
