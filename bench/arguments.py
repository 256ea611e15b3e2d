"""The command line of `python -m bench`: what is measured, how often and how much of it."""

import argparse
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.data import Distribution, Sizes
from mailserver.app.config import Config
from mailserver.codec.keys import Enode
from mailserver.errors import DecodeError
from mailserver.handoff.communities import MAX_SHOWN

PARTS = (
    "ingest",
    "history",
    "busy",
    "relay",
    "handshakes",
    "idle",
    "flood",
    "compaction",
    "archive",
    "sync",
    "gateway",
    "communities",
)
BY_NAME = ("postgres",)
"""Parts that are measured only if they are named: they need what not every machine has."""

PARTS_HELP = f"any of {', '.join(PARTS)} (default: all), and {', '.join(BY_NAME)}, which needs PostgreSQL"

HISTORY_DAYS = 30
HISTORY_ENVELOPES = 1_000_000
"""A store has so many of so many days; a larger one goes back further, so that the same questions find as much."""

COMPACTION_DAYS = (1, 30)

QUICK: dict[str, Any] = {
    "runs": 1,
    "envelopes": [2000],
    "ingest_envelopes": 400,
    "ingest_rate": 500,
    "busy_seconds": 1,
    "relay_envelopes": 400,
    "late_envelopes": 5,
    "handshakes": 40,
    "dialers": 4,
    "idle_connections": 20,
    "idle_seconds": 1,
    "flood_store": 2000,
    "flood_seconds": 1,
    "topics": 200,
    "peers": 5,
    "flooders": 2,
    "density": 1,
    "hot_answers": 5,
    "gateway_store": 50_000,
    "light_clients": 20,
    "pushes": 400,
    "push_rate": 1000,
    "queries": 50,
    "sent_messages": 32,
    "community_messages": 2000,
    "community_weeks": 4,
    "served_communities": [2],
}
"""What --quick sets, where it is not given."""

DEFAULTS: dict[str, Any] = {
    "runs": 5,
    "envelopes": [1_000_000],
    "ingest_envelopes": 100_000,
    "ingest_rate": 5000,
    "busy_seconds": 20,
    "relay_envelopes": 12_000,  # 14 MB of the 16 that a mailserver keeps for peers that are slower than its sender
    "late_envelopes": 40,
    "handshakes": 5000,
    "dialers": 16,
    "idle_connections": 500,
    "idle_seconds": 20,  # each is pinged once
    "flood_store": 100_000,
    "flood_seconds": 15,
    "topics": 5000,
    "peers": 50,
    "flooders": 5,
    "density": 1,
    "hot_answers": 1000,
    "gateway_store": 1_000_000,
    "light_clients": 1000,
    "pushes": 60_000,
    "push_rate": 20_000,
    "queries": 500,
    "sent_messages": 1000,
    "community_messages": 500_000,
    "community_weeks": 52,
    "served_communities": [1, 10, 100],
}


STRANGER = {"ingest_envelopes": 30_000}
"""Instead, with --stranger: slowed to 500 packets of 1 a second, 100,000 would expire on their way."""


def parse_arguments(argv: Sequence[str]) -> argparse.Namespace:
    """Read it; what is not given has its default. Ends the process where it is not understood."""
    parser = argparse.ArgumentParser(prog="python -m bench", description="Measure a mailserver over the wire.")
    parser.add_argument("parts", nargs="*", metavar="PART", help=PARTS_HELP)
    parser.add_argument("--quick", action="store_true", help="a few envelopes, one run: shows that it works")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all runs there")
    _add_number(parser, "runs", "runs of each measurement; medians are shown; the flood is run once")
    parser.add_argument(
        "--envelopes",
        type=_positive,
        nargs="+",
        metavar="N",
        help=f"envelopes in the store that is searched, {HISTORY_ENVELOPES:,} for each {HISTORY_DAYS} days; several: "
        f"one store after the other, and the last is compacted (default: {DEFAULTS['envelopes'][0]:,})",
    )
    parser.add_argument(
        "--served-communities",
        type=_positive,
        nargs="+",
        metavar="N",
        help=f"how many are served while memory is looked at, {MAX_SHOWN} at most; several: one after the other",
    )
    parser.add_argument(
        "--density",
        type=_share,
        metavar="N",
        help="times as many envelopes a day in the stores that are asked, as 10, or 0.1 (default: 1)",
    )
    parser.add_argument(
        "--stranger",
        action="store_true",
        help="apply the default limits to ingest, history, busy and relay, too; otherwise loopback is exempt",
    )
    parser.add_argument(
        "--plot", type=Path, metavar="FILE", help="plot there how the time of answers grows with the store"
    )
    _add_number(
        parser,
        "ingest-envelopes",
        f"envelopes sent in one run of ingest; {STRANGER['ingest_envelopes']:,} of a stranger",
    )
    _add_number(parser, "ingest-rate", "envelopes a second that are posted while history is asked for")
    _add_number(parser, "busy-seconds", "how long that is measured")
    _add_number(parser, "relay-envelopes", "envelopes sent in one run of relay")
    _add_number(parser, "late-envelopes", "single envelopes sent after these, for the time that one takes")
    _add_number(parser, "peers", "peers that they are relayed to")
    _add_number(parser, "handshakes", "handshakes of one run")
    _add_number(parser, "dialers", "how many of them are under way at a time")
    _add_number(parser, "idle-connections", "peers that connect and are idle")
    _add_number(parser, "idle-seconds", "how long they are, until the memory is looked at")
    _add_number(parser, "flooders", "peers that flood")
    _add_number(parser, "flood-seconds", "how long a flood is measured once it is slowed")
    _add_number(parser, "flood-store", "envelopes in the store of the flooded mailserver")
    _add_number(parser, "hot-answers", "answers from the store, alone and while the archive is read")
    _add_number(parser, "gateway-store", "envelopes in the store of which a gateway is asked")
    _add_number(parser, "light-clients", "clients of a gateway")
    _add_number(parser, "pushes", "pushes in one run of those to clients of a gateway")
    _add_number(parser, "push-rate", "of them a second that are offered")
    _add_number(parser, "queries", "store queries in one run, asked of a gateway")
    _add_number(parser, "sent-messages", "messages in one run that clients send by a gateway")
    _add_number(parser, "community-messages", "messages of a community")
    _add_number(parser, "community-weeks", "weeks that they are spread over")
    _add_number(parser, "topics", "topics that they are spread over")
    parser.add_argument("--distribution", choices=[kind.value for kind in Distribution], default="uniform")
    parser.add_argument(
        "--sizes",
        choices=[kind.value for kind in Sizes],
        default=Sizes.ONE.value,
        help="envelopes ingested, stored and compacted: 561 bytes, or padded messages of 256 to 8,192 (default: one)",
    )
    parser.add_argument("--connections", type=_positive, nargs="+", default=[1, 4], metavar="N")
    parser.add_argument(
        "--packets", type=_positive, nargs="+", default=[1, 10, 100], metavar="N", help="envelopes per packet"
    )
    parser.add_argument(
        "--days", type=_positive, nargs="+", default=COMPACTION_DAYS, metavar="N", help="days in the compacted stores"
    )
    parser.add_argument(
        "--store", type=Path, metavar="DIR", help="keep stores there; used again if they are what is asked for"
    )
    parser.add_argument("--enode", type=_enode, help="measure this mailserver instead of ours, with whatever it holds")
    parser.add_argument("--beside-ours", action="store_true", help="measure ours, too, before the --enode")
    parser.add_argument("--pid", type=_positive, help="its process, if it runs here: reports CPU and memory")
    parser.add_argument("--password", default=Config().password, help="the mailserver's (default: %(default)s)")
    arguments = parser.parse_args(argv)
    for part in arguments.parts:
        if part not in (*PARTS, *BY_NAME):
            parser.error(f"{part!r} is none of {', '.join((*PARTS, *BY_NAME))}")
    arguments.parts = arguments.parts or PARTS
    if arguments.beside_ours and arguments.enode is None:
        parser.error("--beside-ours is for an --enode: without one, ours alone is measured")
    if arguments.stranger and arguments.enode is not None and not arguments.beside_ours:
        parser.error("--stranger is for ours: which limits another mailserver has is up to that")
    if arguments.plot is not None and ("history" not in arguments.parts or arguments.enode is not None):
        parser.error("--plot draws the history part, of our own stores: what another mailserver has is not known")
    defaults = QUICK if arguments.quick else DEFAULTS
    if arguments.stranger and not arguments.quick:
        defaults = {**defaults, **STRANGER}
    for name, value in defaults.items():
        if getattr(arguments, name) is None:
            setattr(arguments, name, value)
    return arguments


def _add_number(parser: argparse.ArgumentParser, name: str, help_text: str) -> None:
    default = DEFAULTS[name.replace("-", "_")]
    parser.add_argument(f"--{name}", type=_positive, metavar="N", help=f"{help_text} (default: {default:,})")


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} is not positive")
    return number


def _share(text: str) -> float:
    number = float(text)
    if not 0 < number < math.inf:
        raise argparse.ArgumentTypeError(f"{text} is not positive")
    return int(number) if number.is_integer() else number


def _enode(text: str) -> Enode:
    try:
        return Enode.parse(text)
    except DecodeError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
