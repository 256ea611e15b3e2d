"""Measurements of a mailserver over the wire, for `make bench`: its speed, and what it takes of the machine."""
