"""Keeping the store within its limits: pruning, and the time by which envelopes age."""
