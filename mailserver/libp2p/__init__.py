"""libp2p, the transport of Waku v2, without I/O: multistream-select, Noise, the muxers mplex and yamux, identify."""
