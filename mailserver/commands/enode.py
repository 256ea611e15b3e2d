"""`waku-mailserver enode`: who the mailserver of a data directory is."""

import argparse

from mailserver.commands.settings import add_settings, config_of
from mailserver.datadir import read_enode


def add(parser: argparse.ArgumentParser) -> None:
    """Take the arguments of `enode`."""
    add_settings(parser, only={"data_dir"})
    parser.set_defaults(command=_enode)


def _enode(arguments: argparse.Namespace) -> None:
    print(read_enode(config_of(arguments).data_dir))
