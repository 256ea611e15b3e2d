"""Real daemons whose store is in a real PostgreSQL, which is killed and comes back."""

import asyncio
import json
import signal
from dataclasses import replace
from pathlib import Path

import pytest

from mailserver.client.mail_client import RequestFailed
from mailserver.mail.request import MailRequest, RequestId
from mailserver.waku.bloom import FULL_INTEREST
from mailserver.waku.envelope import Envelope
from tests.faults.disk_client import Client, connected, metrics_port, serves, until_ready
from tests.integration.daemons import run_command, running_daemon
from tests.mailservers import PASSWORD_KEY
from tests.store.postgres.server import Server, new_schema

pytestmark = pytest.mark.integration


async def test_database_that_is_killed_costs_nothing_that_was_confirmed(durable_server: Server, tmp_path: Path) -> None:
    url, client = durable_server.url(new_schema(durable_server)), Client(seed=1)
    with running_daemon(tmp_path / "data", "--store", url, "--metrics", "127.0.0.1:0") as daemon:
        port = metrics_port(daemon)
        await until_ready(port, 200)
        async with connected(daemon) as mail:
            for _ in range(5):
                assert await client.post(mail, client.envelopes(20))
            await asyncio.to_thread(durable_server.kill)
            assert not await client.post(mail, client.envelopes(3), within_s=2)
            text = await until_ready(port, 503)
            async with asyncio.timeout(15):
                with pytest.raises(RequestFailed):  # an error completion, in time
                    await serves(mail)
        await asyncio.to_thread(durable_server.start)
        await until_ready(port, 200)
        async with connected(daemon) as mail:
            assert await client.post(mail, client.envelopes(20))
            assert client.faults_of(await serves(mail)) == []
        (problem,) = [problem for problem in json.loads(text)["problems"] if problem["check"] == "store"]
        assert "database" in problem["text"]
        assert len([line for line in daemon.lines if "database unreachable" in line]) == 1
        assert len([line for line in daemon.lines if "database can be reached again" in line]) == 1
        daemon.process.send_signal(signal.SIGKILL)
        daemon.wait()

    with running_daemon(tmp_path / "data", "--store", url) as daemon:
        async with connected(daemon) as mail:
            assert client.faults_of(await serves(mail)) == []
        assert daemon.stop() == 0


async def test_two_mailservers_on_one_database_have_one_history(durable_server: Server, tmp_path: Path) -> None:
    url, client = durable_server.url(new_schema(durable_server)), Client(seed=2)
    with (
        running_daemon(tmp_path / "one", "--store", url) as one,
        running_daemon(tmp_path / "other", "--store", url) as other,
    ):
        async with connected(one) as first, connected(other) as second:
            envelopes = [*client.envelopes(50), *client.envelopes(50, age_s=5)]
            both = await asyncio.gather(client.post(first, envelopes), client.post(second, envelopes))
            assert all(both)

            # A client that pages with a cursor of one at the other.
            served: list[Envelope] = []
            request = MailRequest(RequestId(bytes(32)), 0, 2**32 - 1, FULL_INTEREST, limit=30)
            for number in range(4):
                mail = (first, second)[number % 2]
                completion = await mail.request(request, PASSWORD_KEY, served.extend)
                request = replace(request, request_id=RequestId(bytes([number + 1]) * 32), cursor=completion.cursor)

            assert sorted(envelope.raw for envelope in served) == sorted(envelope.raw for envelope in envelopes)
            assert request.cursor is None
            assert client.faults_of(await serves(first)) == client.faults_of(await serves(second)) == []
        assert one.stop() == other.stop() == 0


async def test_database_that_was_put_back_is_told_and_gives_no_number_twice(
    durable_server: Server, tmp_path: Path
) -> None:
    schema, client = new_schema(durable_server), Client(seed=3)
    data, url = tmp_path / "data", durable_server.url(schema)
    with running_daemon(data, "--store", url) as daemon:
        async with connected(daemon) as mail:
            assert await client.post(mail, client.envelopes(10))
            dump, kept = await asyncio.to_thread(durable_server.dump, schema), dict(client.confirmed)
            assert await client.post(mail, client.envelopes(5))
        assert daemon.stop() == 0
    durable_server.restore(schema, dump)
    doctor = run_command("doctor", "--data-dir", data, "--store", url, "--listen", "127.0.0.1:0", "--json")

    client.confirmed = kept
    with running_daemon(data, "--store", url, "--metrics", "127.0.0.1:0") as daemon:
        async with asyncio.timeout(15):
            while "went back" not in (text := await until_ready(metrics_port(daemon), 200)):
                pass  # the store has not been looked at yet
        async with connected(daemon) as mail:
            assert await client.post(mail, client.envelopes(5))
            assert client.faults_of(await serves(mail)) == []
        assert daemon.stop() == 0

    found = {finding["check"]: finding for finding in json.loads(doctor.stdout)}
    assert (found["database rows"]["verdict"], doctor.returncode) == ("problem", 1)
    assert "database went back in time seen=15 found=10" in daemon.log
    (problem,) = [problem for problem in json.loads(text)["problems"] if problem["check"] == "damage"]
    assert not problem["fatal"]
    assert "the database went back to an earlier moment" in problem["text"]
    assert int(durable_server.sql("SELECT count(*) FROM envelopes WHERE seq BETWEEN 11 AND 10000000", schema)) == 0


def test_commands_say_what_they_know_of_a_database(durable_server: Server, tmp_path: Path) -> None:
    data, url = tmp_path / "data", durable_server.url(new_schema(durable_server))
    flags = ("--data-dir", data, "--store", url)

    with running_daemon(data, "--store", url) as daemon:
        stats = run_command("stats", *flags, "--json")
        doctor = run_command("doctor", *flags, "--listen", "127.0.0.1:0", "--json")
        status = run_command("status", "--data-dir", data)
        assert daemon.stop() == 0
    refused = [run_command(*command, *flags) for command in (("backup", tmp_path / "to"), ("check",))]

    assert json.loads(stats.stdout)["envelopes"] == 0
    found = {finding["check"]: finding for finding in json.loads(doctor.stdout)}
    assert found["database"]["verdict"] == "ok"
    assert "PostgreSQL" in found["database"]["text"]
    assert status.returncode == 0, status.stderr
    assert [done.returncode for done in refused] == [1, 1]
    assert all("the store is in a database" in done.stderr for done in refused)


def test_password_of_the_database_is_shown_nowhere(durable_server: Server, tmp_path: Path) -> None:
    schema = new_schema(durable_server)
    url = durable_server.url(schema).replace("postgres@", "postgres:verysecret@")
    with running_daemon(tmp_path / "data", "--store", url) as daemon:
        line = daemon.wait_for_line("listening")
        durable_server.stop()
        daemon.wait_for_line("database unreachable")
        assert daemon.stop() == 0
    durable_server.start()
    shown = run_command("config", "--data-dir", tmp_path / "data", "--store", url)

    assert f"search_path={schema}" in line
    assert shown.returncode == 0
    assert "verysecret" not in daemon.log + shown.stdout + shown.stderr
