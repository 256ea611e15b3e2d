"""`waku-mailserver enode`: print the enode URL of the mailserver that uses a data directory."""

import argparse
import json

from mailserver.commands.settings import add_settings, config_of
from mailserver.data_dir.folder import read_enode


def add(parser: argparse.ArgumentParser) -> None:
    """Take the arguments of `enode`."""
    add_settings(parser, only={"data_dir"})
    parser.add_argument("--json", action="store_true", help="print the URL and its parts as one JSON object")
    parser.set_defaults(command=_enode)


def _enode(arguments: argparse.Namespace) -> None:
    enode = read_enode(config_of(arguments).data_dir)
    fields = {"enode": str(enode), "node_id": enode.node_id.hex(), "host": enode.host, "port": enode.port}
    print(json.dumps(fields) if arguments.json else enode)
