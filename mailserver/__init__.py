"""A mailserver for Waku v1 networks: it stores the envelopes that pass by and gives them back on request.

The folders are layers; imports only point down (`tests/test_layers.py` keeps it so): `codec` (bytes and
cryptography), `rlpx`, `waku` and `mail` (one protocol each, without I/O), `store` and `net` (SQLite and
sockets), `services` and `client`, and on top `config`, `daemon` and `cli`.
"""

__version__ = "0.1.0"
