"""What cuts the power: `recorder` records, `replay` says what may be left on a disk, `scenarios` and `archive` say what
is done and what was promised, `cuts` puts them together.
"""
