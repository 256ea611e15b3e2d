"""Measurements of a mailserver over the wire, for `make bench`: its speed at ingest and at answering for history."""
