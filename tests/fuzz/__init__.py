"""Fuzzing guided by coverage: every decoder, and the whole session machine.

`make fuzz` runs the targets of `targets/` for as long as is asked, each in a process of its own. `corpus/` holds what
they have found worth keeping, in one file for each target (`corpora`); plain pytest replays it. A target takes bytes,
and raises where a promise is broken. `make fuzz` also runs the property tests, whose examples are always the same in
plain pytest, with other examples (`properties`).
"""
