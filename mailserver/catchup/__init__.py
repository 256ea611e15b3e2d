"""Catching up: asks other mailservers for the history that is missing here, and stores it."""
