"""Bytes and cryptography: RLP, Snappy, Keccak, AES, secp256k1, ECIES. Knows no peer and no protocol."""
