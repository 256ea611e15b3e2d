"""`waku-mailserver request` against mailservers that answer as a test says: what it takes, refuses and says."""

import asyncio
import json
from dataclasses import dataclass
from datetime import UTC, datetime

import pytest

from mailserver.commands.cli import main
from mailserver.mail.request import Cursor
from mailserver.waku.envelope import Envelope, EnvelopeHash
from mailserver.waku.payload import key_from_password
from tests.catchup.servers import Answer, Archive, Asked, Server, make_envelopes, place, serving
from tests.mailservers import NEWS, NOW, SPORT, make_envelope

pytestmark = pytest.mark.integration

PASSWORD = "of the mailserver"
FIRST = 1_000_000_000  # in 2001
TOPIC = f"0x{NEWS.hex()}"
BOUNDS = ("--from", str(NOW - 1000), "--to", str(NOW))

Capture = pytest.CaptureFixture[str]


@dataclass
class Done:
    """How the command ended, and what it had printed: the hashes of the envelopes, and what it said."""

    code: int
    hashes: list[str]
    said: str
    server: Server


async def request(answer: Answer, capsys: Capture, *flags: str) -> Done:
    """Ask a mailserver that answers so."""
    async with serving(answer, key=key_from_password(PASSWORD)) as server:
        arguments = ["request", str(server.enode), "--password", PASSWORD, "--json", *flags]
        code = await asyncio.to_thread(main, arguments)
    printed = capsys.readouterr()
    return Done(code, [json.loads(line)["hash"] for line in printed.out.splitlines()], printed.err, server)


def hashes(*envelopes: Envelope) -> list[str]:
    return [envelope.hash().hex() for envelope in envelopes]


def giving(*envelopes: Envelope, cursor: Cursor | None = None) -> Answer:
    async def answer(asked: Asked) -> None:
        asked.give(envelopes)
        asked.complete(cursor)

    return answer


# What was not asked for


@pytest.mark.parametrize("like_go", [False, True])
async def test_honest_answer_is_taken_as_it_is(capsys: Capture, like_go: bool) -> None:
    envelopes = make_envelopes(25, first=1)

    done = await request(
        Archive(envelopes, like_go=like_go), capsys, *BOUNDS, "--topic", TOPIC, "--limit", "10", "--all"
    )

    assert (done.code, done.said) == (0, "25 envelopes\n")
    assert done.hashes == hashes(*envelopes)
    assert len(done.server.requests) == 3


@pytest.mark.parametrize(
    ("wrong", "described"),
    [
        (make_envelope(9, created=FIRST), "1 created outside of the range that was asked for ({})"),
        (make_envelope(9, created=NOW - 5, topic=SPORT), "1 with a topic that was not asked for ({})"),
        (make_envelope(1, created=NOW - 1), "1 sent twice ({})"),
    ],
)
async def test_what_was_not_asked_for_is_named_and_left_out(wrong: Envelope, described: str, capsys: Capture) -> None:
    right = make_envelopes(3, first=1)

    done = await request(giving(*right[:2], wrong, right[2]), capsys, *BOUNDS, "--topic", TOPIC)

    assert (done.code, done.hashes) == (1, hashes(*right))
    complaint = f"waku-mailserver: the mailserver's answer is not what was asked for: {described}\n"
    assert done.said == "3 envelopes\n" + complaint.format(*hashes(wrong))


async def test_more_than_the_limit_is_named_and_left_out(capsys: Capture) -> None:
    envelopes = make_envelopes(2001)

    done = await request(giving(*envelopes), capsys, "--from", "0", "--to", str(NOW), "--limit", "1000")

    assert (done.code, done.hashes) == (1, hashes(*envelopes[:1000]))
    assert "1001 beyond the limit that was asked for (first: " in done.said


async def test_wrong_order_is_named_and_what_came_is_taken(capsys: Capture) -> None:
    envelopes = make_envelopes(3)

    done = await request(giving(*envelopes[::-1]), capsys, *BOUNDS)

    assert (done.code, done.hashes) == (1, hashes(*envelopes[::-1]))
    assert "2 newer than the one before it (first: " in done.said


async def test_what_was_wrong_is_said_also_where_the_answer_is_broken_off(capsys: Capture) -> None:
    async def answer(asked: Asked) -> None:
        asked.give([make_envelope(1, created=FIRST)])
        asked.fail("the disk is gone")

    done = await request(answer, capsys, *BOUNDS)

    assert done.code == 1
    complaint, failure = done.said.splitlines()
    assert "1 created outside of the range" in complaint
    assert failure == "waku-mailserver: the disk is gone"


async def test_cursors_of_short_and_empty_pages_are_followed(capsys: Capture) -> None:
    """As a mailserver may end a page early whose bloom filter admits many topics."""
    envelopes = make_envelopes(6)

    async def answer(asked: Asked) -> None:
        number = asked.number
        page = envelopes[number // 4 : number // 4 + 1] if number % 4 == 0 else []
        asked.give(page)
        at = place(page[0]) if page else (NOW - number // 4, EnvelopeHash(bytes([255 - number]) * 32))
        asked.complete(Cursor(*at) if number < 20 else None)

    done = await request(answer, capsys, *BOUNDS, "--all")

    assert (done.code, done.said) == (0, "5 envelopes\n")
    assert done.hashes == hashes(*envelopes[1:])


# The bounds


async def test_open_end_is_sent_as_0_and_one_that_is_given_never(capsys: Capture) -> None:
    sent = []
    for flags in ([], ["--to", "0"], ["--to", "1970-01-01"], ["--to", "1"], ["--to", "100"]):
        done = await request(giving(), capsys, *flags)
        assert (done.code, done.said) == (0, "0 envelopes\n")
        sent.append(done.server.requests[0])

    assert [each.upper for each in sent] == [0, 1, 1, 1, 100]
    assert [each.lower for each in sent[1:]] == [0, 0, 0, 0]
    assert sent[0].lower == pytest.approx(datetime.now(UTC).timestamp() - 24 * 3600, abs=60)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--from", "11", "--to", "10"], "--from 11 is after --to 10"),
        (["--from", "1", "--to", "0"], "--from 1 is after --to 0"),
        (["--from", "2100-01-01"], "--from 4102444800 is after --to "),
    ],
)
async def test_bounds_in_the_wrong_order_are_an_error_of_usage(flags: list[str], message: str, capsys: Capture) -> None:
    done = await request(giving(), capsys, *flags)

    assert (done.code, done.hashes, done.server.visits) == (2, [], 0)
    assert done.said.startswith(f"waku-mailserver: {message}")


# Proof of work


async def test_too_little_work_is_an_error_that_names_the_flag(capsys: Capture) -> None:
    async def answer(asked: Asked) -> None:
        asked.fail("PoW() is too low")

    done = await request(answer, capsys, "--pow", "0.002")

    assert done.code == 1
    assert done.said == "waku-mailserver: PoW() is too low (it was sealed with 0.002): give more with --pow\n"
