"""The mailservers and stores that are measured, and what is said meanwhile."""

import argparse
import contextlib
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import uvloop

from bench.addresses import LIMITED
from bench.arguments import HISTORY_DAYS, HISTORY_ENVELOPES
from bench.daemon import Daemon
from bench.ingest import IngestFailed
from bench.store import FilledStore, StoreSpec, prepare_store
from mailserver.codec.keys import Enode
from mailserver.store.sqlite.reading import read_stats
from mailserver.store.sqlite.schema import STORE_FILE


@dataclass(frozen=True, slots=True)
class Target:
    """The mailserver that is measured; `pid` is None if its process is not known."""

    enode: Enode
    pid: int | None


@contextlib.contextmanager
def fresh_target(arguments: argparse.Namespace, envelopes: int, flags: Sequence[str] = ()) -> Iterator[Target]:
    """The named mailserver, or ours with an empty store, which must hold so many envelopes at the end.

    Args:
        flags: what ours is told.
    """
    if arguments.enode is not None:
        yield Target(arguments.enode, arguments.pid)
        return
    with tempfile.TemporaryDirectory(prefix="bench-ingest-") as folder:
        data_dir = Path(folder)
        with Daemon(data_dir, arguments.password, (*limits_of(arguments), *flags)) as daemon:
            yield Target(daemon.enode, daemon.pid)
        stored = uvloop.run(read_stats(data_dir / STORE_FILE)).envelopes
        if stored != envelopes:
            raise IngestFailed(f"{envelopes} envelopes were confirmed, {stored} are stored")


def limits_of(arguments: argparse.Namespace) -> tuple[str, ...]:
    """What our daemon is told of limits."""
    return LIMITED if arguments.stranger else ()


@contextlib.contextmanager
def prepared_store(arguments: argparse.Namespace, envelopes: int) -> Iterator[FilledStore]:
    """A store that is filled, or was and is kept."""
    days = max(round(envelopes * HISTORY_DAYS / HISTORY_ENVELOPES / arguments.density), 1)
    spec = StoreSpec(envelopes, arguments.topics, days, arguments.distribution, arguments.sizes)
    with contextlib.ExitStack() as stack:
        folder = arguments.store or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-store-")))
        data_dir = folder / (str(envelopes) if arguments.density == 1 else f"{envelopes}-dense-{arguments.density}")
        progress(f"store: preparing {envelopes:,} envelopes of {days} days in {data_dir}")
        yield prepare_store(data_dir, spec)


def progress(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
