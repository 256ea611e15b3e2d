"""Tests of mailserver.archive.access."""
