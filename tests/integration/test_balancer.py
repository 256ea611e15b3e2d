"""Mailservers behind one address: what docs/operating/recipes.md says of them."""

import asyncio
import contextlib
import shutil
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from mailserver.client.mail_client import connect
from mailserver.codec.keys import Enode
from mailserver.data_dir.folder import KEY_FILE
from mailserver.errors import MailserverError
from tests.faults.disk_client import Client, serves
from tests.integration.daemons import running_daemon
from tests.store.postgres.server import new_schema, shared_server

pytestmark = pytest.mark.integration


@contextlib.asynccontextmanager
async def balanced(enodes: Sequence[Enode]) -> AsyncIterator[int]:
    """Pass connections on to one mailserver after the other, byte for byte; yield the port where they are taken."""
    taken = 0

    async def pipe(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(65536):
                writer.write(data)
                await writer.drain()
        writer.close()

    async def take(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal taken
        taken += 1
        enode = enodes[(taken - 1) % len(enodes)]
        behind_reader, behind_writer = await asyncio.open_connection(enode.host, enode.port)
        await asyncio.gather(pipe(reader, behind_writer), pipe(behind_reader, writer))

    server = await asyncio.start_server(take, "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[1]


async def test_mailservers_with_one_node_key_and_one_database_are_one_to_clients(tmp_path: Path) -> None:
    url, client = shared_server().url(new_schema(shared_server())), Client(seed=1)
    with running_daemon(tmp_path / "one", "--store", url) as one:
        one.wait_for_line("listening")
        (tmp_path / "other").mkdir(mode=0o700)
        shutil.copy(tmp_path / "one" / KEY_FILE, tmp_path / "other" / KEY_FILE)
        with running_daemon(tmp_path / "other", "--store", url) as other:
            async with balanced([one.enode, other.enode]) as port:
                address = replace(one.enode, port=port)
                async with connect(address, "first") as first, connect(address, "second") as second:
                    assert await client.post(first, client.envelopes(10))
                    assert await client.post(second, client.envelopes(10, age_s=5))
                    for mail in (first, second):
                        assert client.faults_of(await serves(mail)) == []
            assert one.enode.node_id == other.enode.node_id
            assert one.stop() == other.stop() == 0
    assert len(client.confirmed) == 20


async def test_mailserver_with_another_node_key_answers_nobody_who_asks_for_the_first(tmp_path: Path) -> None:
    with running_daemon(tmp_path / "one") as one, running_daemon(tmp_path / "other") as other:
        async with balanced([other.enode]) as port:
            with pytest.raises(MailserverError):
                async with connect(replace(one.enode, port=port), "client"):
                    pytest.fail("it has answered")
        assert one.stop() == other.stop() == 0
