"""A mail client: asks any mailserver for history, and posts envelopes to any Waku v1 node."""
