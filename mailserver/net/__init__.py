"""Sockets: connections, the listener, the dialer."""
