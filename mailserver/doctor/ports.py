"""Addresses to listen on: they must be free, or our own daemon must answer there."""

import errno
import socket
from ipaddress import ip_address

from mailserver.app.client_id import CLIENT_ID
from mailserver.app.config import Config, parse_address
from mailserver.client.mail_client import connect
from mailserver.data_dir.folder import read_enode
from mailserver.data_dir.running import is_running
from mailserver.doctor.findings import Finding, ok, problem, warning
from mailserver.errors import MailserverError

CONNECT_TIMEOUT_S = 3.0


async def check_ports(config: Config) -> list[Finding]:
    """Check each address in the settings."""
    running = is_running(config.data_dir)
    findings = [await _check_listen(config, running=running)]
    for name in ("rpc", "metrics"):
        address = getattr(config, name)
        if address:
            findings.append(_check_service(name, address, running=running))
    if config.rpc and not config.rpc_token_file and not _is_loopback(parse_address("rpc", config.rpc)[0]):
        text = f"{config.rpc} can be reached from elsewhere, and asks for no token"
        findings.append(problem("rpc token", text, "give --rpc-token-file, or listen on 127.0.0.1"))
    return [*findings, _check_advertised(config)]


async def _check_listen(config: Config, *, running: bool) -> Finding:
    finding = check_address("listen", config.listen, running=running)
    if finding is not None:
        return finding
    try:
        enode = read_enode(config.data_dir)
        async with connect(enode, CLIENT_ID):
            return ok("listen", f"our mailserver runs and answers at {enode.host}:{enode.port}")
    except MailserverError as error:
        advice = "does another program listen there, or does the mailserver hang? Look at its log"
        return problem("listen", f"our mailserver runs, but does not answer: {error}", advice)


def _check_service(name: str, address: str, *, running: bool) -> Finding:
    finding = check_address(name, address, running=running)
    if finding is not None:
        return finding
    host, port = parse_address(name, address)
    try:
        socket.create_connection((_reachable(host), port), CONNECT_TIMEOUT_S).close()
    except OSError as error:
        return problem(name, f"{address} is taken, but nobody answers: {error.strerror or error}", "look at the log")
    return ok(name, f"{address} is taken, and somebody answers: our mailserver runs")


def check_address(name: str, address: str, *, running: bool) -> Finding | None:
    """Whether we can listen there; None if it is taken while our daemon runs, which has to be asked then."""
    host, port = parse_address(name, address)
    if port == 0:
        return ok(name, f"{address}: any free port") if not running or name != "listen" else None
    try:
        candidates = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        for family, kind, protocol, _, place in candidates:
            with socket.socket(family, kind, protocol) as listening:
                listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as the daemon does
                if family == socket.AF_INET6:
                    listening.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
                listening.bind(place)
                listening.listen(1)
    except (OSError, UnicodeError) as error:
        return _refused(name, address, error, running=running)
    return ok(name, f"{address} is free")


def _refused(name: str, address: str, error: Exception, *, running: bool) -> Finding | None:
    number = getattr(error, "errno", None)
    if number == errno.EADDRINUSE:
        if running:
            return None
        return problem(name, f"{address} is taken by another program", f"end it, or choose another port: --{name}")
    if number == errno.EACCES:
        return problem(name, f"we may not listen on {address}", "choose a port from 1024 on, or grant the capability")
    text = getattr(error, "strerror", None) or str(error)
    return problem(name, f"cannot listen on {address}: {text}", f"does this machine have that address? --{name}")


def _check_advertised(config: Config) -> Finding:
    host = config.advertised_host
    unknown = "whether others reach it cannot be known here: try `waku-mailserver request ENODE` from elsewhere"
    try:
        address = ip_address(host)
    except ValueError:
        return ok("enode", f"advertises {host}; {unknown}")
    if address.is_loopback or address.is_unspecified:
        advice = "set --advertise to the address or name by which others reach this machine"
        return warning("enode", f"advertises {host}, which nobody else can use", advice)
    where = "an address of a private network; " if address.is_private else ""
    return ok("enode", f"advertises {host}; {where}{unknown}")


def _reachable(host: str) -> str:
    return {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}.get(host, host)  # noqa: S104 - not listened on


def _is_loopback(host: str) -> bool:
    try:
        return all(ip_address(found[4][0]).is_loopback for found in socket.getaddrinfo(host or None, 0))
    except (OSError, ValueError):
        return False
