"""`waku-mailserver community`: communities and their history archives, as owner and as member."""

import argparse
from collections.abc import Callable

from mailserver.commands import community_history, community_member, community_owner, community_serve, community_status

COMMANDS: tuple[tuple[str, Callable[[argparse.ArgumentParser], None], str, str], ...] = (
    *community_owner.COMMANDS,
    *community_member.COMMANDS,
    *community_status.COMMANDS,
    *community_history.COMMANDS,
    *community_serve.COMMANDS,
)
"""Name, what defines the arguments, a short description, and a longer one where there is more to say."""


def add(parser: argparse.ArgumentParser) -> None:
    """Take the commands of `community`."""
    commands = parser.add_subparsers(required=True, metavar="COMMAND", parser_class=argparse.ArgumentParser)
    for name, add_arguments, help_text, description in COMMANDS:
        add_arguments(
            commands.add_parser(
                name, help=help_text, description=description or f"{help_text[0].upper()}{help_text[1:]}."
            )
        )
