"""`waku-mailserver status`: show the state of the running daemon."""

import argparse
import asyncio
import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import uvloop

from mailserver.app.control_call import STATUS, call_daemon
from mailserver.commands.output import counted
from mailserver.commands.settings import add_settings, config_of
from mailserver.commands.terminal import print_table
from mailserver.errors import ConnectionLost
from mailserver.units import delay_text, size_text, span_text

TIMEOUT_S = 15.0
"""How long the daemon may take to answer."""

_ACTIVITY = (
    ("envelopes received", "received"),
    ("envelopes accepted", "taken"),
    ("envelopes refused", "refused"),
    ("envelopes stored", "stored"),
    ("requests answered", "delivered"),
    ("requests rejected", "rejected"),
    ("requests failed", "failed"),
    ("clients lost", "lost"),
    ("peers that connected", "connected"),
    ("answer time, median", "median_s"),
    ("answer time, 95th percentile", "p95_s"),
    ("bytes in", "bytes_in"),
    ("bytes out", "bytes_out"),
    ("worst event loop lag", "lag_s"),
)


def add(parser: argparse.ArgumentParser) -> None:
    """Take the arguments of `status`."""
    add_settings(parser, only={"data_dir"})
    parser.add_argument("--json", action="store_true", help="print one JSON object; docs/status.md describes it")
    parser.set_defaults(command=_status)


def _status(arguments: argparse.Namespace) -> int:
    status = uvloop.run(_ask(config_of(arguments).data_dir))
    if arguments.json:
        print(json.dumps(status))
    else:
        _print(status)
    return 0 if status["ready"] else 1


async def _ask(data_dir: Path) -> dict[str, Any]:
    try:
        async with asyncio.timeout(TIMEOUT_S):
            status: dict[str, Any] = await call_daemon(data_dir, STATUS, {}, lambda _: None)
    except TimeoutError as error:
        raise ConnectionLost(None, f"the mailserver has not answered for {TIMEOUT_S:g} s") from error
    return status


def _print(status: dict[str, Any]) -> None:
    rows = [*_state(status), *_what_there_is(status)]
    colours = {"state": "green" if status["ready"] else "red", "problem": "yellow"}
    print_table((), rows, [colours.get(title, "") for title, _ in rows])
    print()
    minute, day = status["minute"] or {}, status["day"]
    figures = [(title, _figure(name, minute.get(name)), _figure(name, day[name])) for title, name in _ACTIVITY]
    print_table(("", "last minute", "24 hours"), figures)


def _state(status: dict[str, Any]) -> list[tuple[str, str]]:
    versions = status["versions"]
    return [
        ("state", "ready" if status["ready"] else "NOT READY"),
        *(("problem", problem["text"]) for problem in status["problems"]),
        ("version", f"{versions['mailserver']}, Python {versions['python']}, SQLite {versions['sqlite']}"),
        ("up for", span_text(status["uptime_s"])),
        ("enode", status["enode"]),
        *_workers(status["workers"]),
    ]


def _workers(workers: dict[str, int]) -> list[tuple[str, str]]:
    """How many processes serve peers, if there are to be several."""
    running, expected = workers["running"], workers["expected"]
    return [("workers", f"{running} of {expected} running")] if expected > 1 else []


def _what_there_is(status: dict[str, Any]) -> list[tuple[str, str]]:
    peers, queues, store, disk = (status[name] for name in ("peers", "queues", "store", "disk"))
    rows = [
        ("peers that dialled us", _peers(peers["inbound"])),
        ("peers that we dialled", _peers(peers["outbound"])),
        ("peers at most", f"{peers['max']:,}"),
        ("handshakes under way", f"{peers['handshakes']:,}"),
        ("waiting for the disk", f"{queues['store_envelopes']:,} envelopes, {size_text(queues['store_bytes'])}"),
        ("kept for relaying", f"{queues['relay_envelopes']:,} envelopes, {size_text(queues['relay_bytes'])}"),
        ("requests waiting", f"{queues['requests']:,}"),
    ]
    if store is not None:
        oldest = f", the oldest received {_moment(store['oldest'])}" if store["oldest"] is not None else ""
        rows.append(("store", f"{store['envelopes']:,} envelopes, {size_text(store['bytes'])}{oldest}"))
    if disk is not None:
        rows.append(("disk", f"{size_text(disk['free'])} of {size_text(disk['size'])} free"))
    return [
        *rows,
        ("compaction", compaction_text(status["compaction"])),
        ("catching up", _sync(status["catching_up"])),
        ("gateways", _gateways(status["gateways"])),
        ("communities", _communities(status["communities"])),
    ]


def _peers(by_client: dict[str, int]) -> str:
    clients = ", ".join(f"{client} {count}" for client, count in by_client.items() if count)
    return f"{sum(by_client.values())} ({clients})" if clients else "0"


def compaction_text(run: dict[str, Any] | None) -> str:
    """How the last run of the compaction went."""
    if run is None:
        return "has never run"
    if run["state"] == "running":
        return f"running since {_moment(run['started_at'])}"
    if run["state"] == "died":
        return f"was killed, began {_moment(run['started_at'])}"  # when it was killed is not known
    how = "found the archive damaged" if run["state"] == "damaged" else run["state"]
    rows = f", {run['rows']:,} envelopes archived" if run["state"] in ("succeeded", "damaged") else ""
    return f"{how} {_moment(run['finished_at'])}{rows} in {span_text(run['seconds'])}"


def _sync(sync: dict[str, int]) -> str:
    if not sync["sources"]:
        return "no sources"
    left = f"{span_text(sync['left_s'])} left" if sync["left_s"] else "done"
    aside = f", {sync['set_aside']} set aside" if sync["set_aside"] else ""
    return f"{left}; sources: {sync['sources']}{aside}; {sync['stored']:,} envelopes stored"


def _and_communities(gateways: dict[str, int]) -> str:
    return " and the communities" if gateways["communities"] else ""


def _gateways(gateways: dict[str, int]) -> str:
    if not any(gateways.values()):
        return "none"
    missed = f" ({gateways['missed']:,} missed)" if gateways["missed"] else ""
    lost = gateways["posts_refused"] + gateways["posts_failed"]
    refused = f" ({lost:,} refused or failed)" if lost else ""
    return (
        f"{gateways['connected']}{_and_communities(gateways)}; {gateways['sent']:,} envelopes sent{missed}, "
        f"{gateways['posts_stored']:,} stored from them{refused}"
    )


def _communities(communities: dict[str, Any]) -> str:
    known = communities["known"]
    if not known:
        return "none"
    owned = sum(each["role"] == "owner" for each in known)
    problems = sum(each["problem"] is not None for each in known)
    late = sum(each["late_weeks"] or 0 for each in known)
    return (
        f"{owned} owned, {len(known) - owned} joined"
        + (f"; {counted(late, 'week')} without an archive" if late else "")
        + (f"; {problems} with a problem" if problems else "")
        + ("" if communities["running"] else "; community serve does not run")
    )


def _figure(name: str, value: float | None) -> str:
    if value is None:
        return "-"
    if name.endswith("_s"):
        return delay_text(value)
    return size_text(value) if name.startswith("bytes") else f"{value:,}"


def _moment(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
