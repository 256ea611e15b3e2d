"""`python -m mailserver`: the same as the `waku-mailserver` command."""

from mailserver.commands.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
