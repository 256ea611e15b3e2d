"""The index beside a period's Parquet files: where in them a topic, or an envelope by its hash, stands."""
