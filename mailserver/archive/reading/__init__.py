"""Reads envelopes from the Parquet archive without Spark, for the daemon that answers requests from it."""
