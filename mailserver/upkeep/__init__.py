"""What keeps the store small and the clock honest: pruning, and the time that envelopes prove."""
