"""The order of messages: `gateway.db`, and the answers to store queries."""
