"""The two ids of a Waku message, without I/O: the MUID and the message hash, for envelopes and for v2 messages."""
