"""Commands as an operator types them, run in this process, and what they say.

`daemons.run_command` runs them as processes, which takes half a second each: for exit codes, streams and signals.
"""

import contextlib
import io
import json
import socket
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

from mailserver.codec.keys import Enode, PrivateKey
from mailserver.commands.cli import main

NEWS, SPORT = "news", "sport"
NODE_ID = PrivateKey(bytes(range(1, 33))).public_key


def call(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """Run a command in this process."""
    words = [str(argument) for argument in arguments]
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()) as said:
        code = main(words)
    return subprocess.CompletedProcess(words, code, out.getvalue(), said.getvalue())


def post(enode: Enode, payload: str, *flags: str, topic: str = NEWS) -> str:
    """Post; return the hash of the confirmed envelope."""
    done = call("post", str(enode), "--topic", topic, "--payload", payload, *flags)
    assert (done.returncode, done.stderr) == (0, "")
    confirmed, envelope_hash = done.stdout.split()
    assert confirmed == "confirmed"
    return envelope_hash


def request(enode: Enode, *flags: str) -> subprocess.CompletedProcess[str]:
    return call("request", str(enode), *flags)


def found(enode: Enode, *flags: str) -> list[dict[str, object]]:
    """What `request` finds, of each envelope the fields."""
    done = request(enode, "--format", "json", *flags)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def assert_fails(done: subprocess.CompletedProcess[str], code: int, message: str) -> None:
    """It failed with this exit code and one line that begins like this, and printed nothing else."""
    assert done.returncode == code, done.stderr
    assert done.stderr.startswith(f"waku-mailserver: {message}"), done.stderr
    assert done.stderr.count("\n") == 1, done.stderr


@contextlib.contextmanager
def listening(*, close_at_once: bool) -> Iterator[tuple[Enode, threading.Event]]:
    """Somebody who accepts connections and says nothing, or hangs up; the event tells that somebody has dialled."""
    dialled = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as server, contextlib.ExitStack() as held:

        def accept() -> None:
            with contextlib.suppress(OSError):
                while True:
                    connection = held.enter_context(server.accept()[0])
                    if close_at_once:
                        connection.close()
                    dialled.set()

        thread = threading.Thread(target=accept)
        thread.start()
        try:
            yield Enode(NODE_ID, "127.0.0.1", server.getsockname()[1]), dialled
        finally:
            server.shutdown(socket.SHUT_RDWR)  # wakes the accept
            thread.join()
