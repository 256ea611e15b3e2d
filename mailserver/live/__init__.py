"""Live envelopes: judged, stored, relayed to peers, handed to filters and subscriptions."""
