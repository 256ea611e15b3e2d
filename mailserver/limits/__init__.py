"""Limits on what peers may do: admission, rates, quotas, memory, and turns on the event loop."""
