"""The nightly compaction of the store into Parquet files, with Spark.

Nothing is here yet: it arrives with its own change. Of `mailserver` it may import `mailserver.store.schema`
only (`tests/test_layers.py` keeps it so).
"""
