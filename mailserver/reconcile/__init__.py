"""Negentropy v1 without I/O: two sides find out what each lacks, at the price of the difference."""
