"""The commands of `waku-mailserver`, a module each: `add` adds its parser, and says what to call."""
