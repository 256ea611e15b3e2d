"""Waku v1 without I/O: envelopes and packets (6/WAKU1), payloads (7/WAKU-DATA), topics (10/WAKU-USAGE)."""
