"""Every metric of the daemon, and counters fast enough for its hot paths."""
