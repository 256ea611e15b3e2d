"""What the mailserver is put through: kills, power cuts, full disks, hostile peers, broken networks, stepped clocks.

`make faults` runs them at full size and prints figures; the tests in this folder are their short forms.
"""
