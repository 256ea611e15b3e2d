"""Fuzzing guided by coverage: every decoder, and the whole session machine.

`make fuzz` runs the targets of `targets/` for as long as is asked, each in a process of its own; `corpus/` holds what
they have found worth keeping, and plain pytest replays it. A target takes bytes, and raises where a promise is broken.
It also runs the property tests, whose examples are always the same in plain pytest, with others (`properties`).
"""
