"""The commands of `waku-mailserver`, one module each: its `add` defines the arguments and what to call."""
