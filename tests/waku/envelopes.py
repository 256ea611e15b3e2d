"""Envelopes that were recorded or are made here, and what the `rlp` package makes of their bytes."""

import rlp
from Crypto.Hash import keccak

from tests.data import load

RECORDED = load("envelopes.json")["envelopes"]
RECORDED_RAWS = [bytes.fromhex(vector["raw"]) for vector in RECORDED]
TOPIC = b"\x9a\xcb\x04\x42"
SMALL = rlp.encode([b"\x6b\x01\x20\xe3", b"\x32", TOPIC, b"data", b"\x01\x00"])
"""A valid envelope with a header of one byte, for mutations: most of its bytes decide about its form."""

LONG = rlp.encode([b"\x6b\x01\x20\xe3", b"\x32", TOPIC, bytes(60), b"\x07"])
"""The same with lengths that have a byte of their own."""

USUAL = rlp.encode([b"\x6b\x01\x20\xe3", b"\x32", TOPIC, bytes(256), b"\x81\x00"])
"""The shortest of the form that nearly all have, which is read at a stroke."""


def keccak256(data: bytes) -> bytes:
    return keccak.new(digest_bits=256, data=data).digest()
