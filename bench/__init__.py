"""Measurements of the mailserver's parts, for `make bench`. Each arrives with the code that it measures."""
