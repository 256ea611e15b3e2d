"""Live envelopes: judged, stored, relayed to peers, handed to whoever listens."""
