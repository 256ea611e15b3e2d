"""A server with a certificate of our own authority: what the URL asks for is checked, and else refused in one line."""

import asyncio
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlencode

import pytest

from mailserver.errors import StoreError
from mailserver.store.postgres.job import StoreDatabase
from mailserver.store.postgres.store import open_store
from tests.certificates import make_certificate
from tests.ports import free_ports
from tests.store.engines import found
from tests.store.postgres.server import QUICK, USER, Server
from tests.store.samples import new_envelopes, raws

pytestmark = pytest.mark.integration


class TlsServer:
    """It takes TLS on a port of 127.0.0.1, and has a certificate for that address."""

    def __init__(self, folder: Path, port: int) -> None:
        self.authority_file = make_certificate(folder).authority_file
        self.port = port
        tls = {"ssl": "on", "ssl_cert_file": "server.pem", "ssl_key_file": "server.pem"}
        self.server = Server({**QUICK, **tls, "listen_addresses": "127.0.0.1", "port": str(port)})
        mine = self.server.folder / "data" / "server.pem"
        shutil.copy(folder / "server.pem", mine)
        mine.chmod(0o600)
        if os.geteuid() == 0:
            shutil.chown(mine, USER, USER)

    def url(self, host: str = "127.0.0.1", **checked: str | Path) -> str:
        return f"postgresql://{USER}@{host}:{self.port}/postgres?{urlencode(checked)}"


@pytest.fixture(scope="module")
def tls(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TlsServer]:
    (port,) = free_ports(1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PGPORT", str(port))  # for the programs of PostgreSQL
        made = TlsServer(tmp_path_factory.mktemp("tls"), port)
        made.server.start()
        yield made
        made.server.remove()


async def test_store_is_used_by_tls_that_is_checked(tls: TlsServer) -> None:
    url = tls.url(sslmode="verify-full", sslrootcert=tls.authority_file)

    async with open_store(url) as store:
        await store.put(new_envelopes(3))
        read = await found(store)
        used = tls.server.sql(
            "SELECT DISTINCT ssl FROM pg_stat_ssl JOIN pg_stat_activity USING (pid) WHERE client_port > 0"
        )

    assert read == raws(new_envelopes(3)[::-1])
    assert used == "t"
    assert await asyncio.to_thread(StoreDatabase(url).exists)


@pytest.mark.parametrize(
    ("host", "authority", "what"),
    [
        ("127.0.0.1", "other", "certificate verify failed"),
        ("localhost", "its own", "Hostname mismatch"),
    ],
)
async def test_certificate_of_another_is_refused_in_one_line(
    tls: TlsServer, tmp_path: Path, host: str, authority: str, what: str
) -> None:
    file = tls.authority_file if authority == "its own" else make_certificate(tmp_path).authority_file
    url = tls.url(host, sslmode="verify-full", sslrootcert=file)

    with pytest.raises(StoreError) as by_daemon:
        async with open_store(url):
            pytest.fail("it was opened")
    with pytest.raises(StoreError) as by_job:
        await asyncio.to_thread(StoreDatabase(url).exists)

    for refused in (str(by_daemon.value), str(by_job.value)):
        assert what in refused
        assert refused.startswith("cannot open the store postgresql://")
        assert "\n" not in refused
