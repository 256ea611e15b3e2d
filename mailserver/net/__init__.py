"""Sockets: connections that pump a Session, the listener, the dialer."""
