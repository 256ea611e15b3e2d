"""The local socket between the worker that writes a store in a file and the other workers on it."""
