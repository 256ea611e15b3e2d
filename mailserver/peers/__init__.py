"""The peers that are connected, and what each connection is served."""
