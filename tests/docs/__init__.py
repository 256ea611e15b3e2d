"""Tests of the docs, and of what belongs to them."""
