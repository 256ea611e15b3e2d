"""RLPx, the transport of devp2p, without I/O: handshake, frames, and the "p2p" capability."""
