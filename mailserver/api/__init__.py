"""JSON-RPC 2.0: 9/WAKU-RPC, the history request of 10/WAKU-USAGE, and the peers of this node."""
