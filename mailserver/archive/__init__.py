"""The Parquet archive without Spark: where its files are, what its records say, and whether both agree."""
