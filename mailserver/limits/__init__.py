"""Who may do how much: rates, quotas, admission, turns, memory. What every service applies, in one place."""
