"""The Parquet archive as those see it who have no Spark."""
