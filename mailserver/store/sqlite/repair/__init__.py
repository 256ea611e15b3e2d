"""Damage to a store file: finding it, and saving what is left."""
