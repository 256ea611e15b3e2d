"""A mailserver for Waku v1 networks: it stores the envelopes that pass by and gives them back on request.

Each folder is a room, and imports only point down: docs/architecture.md draws the order, `tests/test_layers.py`
keeps it.
"""

__version__ = "0.2.0"
