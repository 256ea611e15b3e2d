"""The local socket between the daemon and its gateways: live envelopes out, envelopes of the gateway's clients in."""
