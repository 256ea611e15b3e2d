"""The month itself: step after step of the clock, what people do in each, nights, weeks and accidents."""

import asyncio
import contextlib
import json
import math
import os
import random
import re
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import aiohttp

from bench.daemon import usage
from bench.data import Distribution, Topics
from mailserver.archive.days import day_of
from mailserver.archive.manifest import decode_record, visible
from mailserver.errors import ConnectionLost
from mailserver.store.sqlite.schema import STORE_FILE
from mailserver.waku.envelope import Envelope
from mailserver.waku.payload import key_from_password
from tests.integration.daemons import PROGRAM, Daemon, running_daemon
from tests.moved_clock import MovedClock
from tests.soak.model import SECONDS_PER_DAY, Model, make_envelopes
from tests.soak.samples import BY_THE_CLOCK, Sample, Verdict, judge, longest_run, percentiles, process_figures
from tests.soak.traffic import Peers, Phone, Times, Visits, visit

START = 1_796_083_200
"""2026-12-01: the clock begins here."""

STEP_S = 300
STEPS_PER_HOUR = 3600 // STEP_S
NIGHT_S = 3 * 3600 + 17 * 60
"""When the compaction begins, in seconds of each day."""

NIGHT_STEP_S = 1.0
"""Real seconds that a step takes while the compaction is at work: no night lasts a day."""

TOPICS = 2_000
TOPICS_OF_A_PHONE = 8
VISITS_PER_STEP = 1.5
ACCIDENTS = ((0.1, True), (0.2, False), (0.3, True), (0.95, False))
"""At which share of the time the daemon ends, and whether it is killed: long enough runs are left to tell leaks."""

SAFE_SHARE = 0.7
"""Phones ask back to this share of the retention: what is older may be pruned while they read it."""

MIN_JUDGED_DAYS = 5.0
"""A daemon that has run for less is warming up: caches and rings fill, and what grows says nothing."""

PASSWORD = "status-offline-inbox"
COMMAND_TIMEOUT_S = 1800.0
LATER_S = 600
"""After the last day, until the last compaction."""


@dataclass(frozen=True, slots=True)
class Settings:
    """How long, and how much."""

    days: float
    envelopes_per_day: int
    phones: int
    retention_days: float
    seed: int


@dataclass
class Result:
    """What was done and found. `broken` says what was not kept."""

    settings: Settings
    samples: list[Sample] = field(default_factory=list)
    verdicts: list[Verdict] = field(default_factory=list)
    figures: dict[str, int | float] = field(default_factory=dict)
    broken: list[str] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        """For programs."""
        return json.loads(json.dumps(asdict(self)).replace("NaN", "null"))  # type: ignore[no-any-return]


class Soak:
    """One run in a folder of its own."""

    def __init__(self, settings: Settings, folder: Path, on_sample: Callable[[Sample], None]) -> None:
        self.settings = settings
        self.result = Result(settings)
        self._data, self._archive = folder / "data", folder / "archive"
        self._folder = folder
        self._on_sample = on_sample
        self._clock = MovedClock(folder, machine_sleeps=True)
        self._rng = random.Random(settings.seed)
        self._topics = Topics(TOPICS, Distribution.ZIPF)
        self._model = Model()
        self._peers = Peers(self._topics, self._rng)
        self._phones = [
            Phone(self._topics.choose_distinct(TOPICS_OF_A_PHONE, self._rng), START) for _ in range(settings.phones)
        ]
        self._visits = Visits()
        self._confirmations = Times()
        self._compactions: list[float] = []
        self._compaction: asyncio.Task[None] | None = None
        self._process = contextlib.ExitStack()
        self._daemon: Daemon
        self._ports: dict[str, int] = {}
        self._runs = 0
        self._lag = (0.0, 0.0)
        self._cpu = (0.0, 0)
        self._requests = 0

    async def run(self) -> Result:
        """Live through all of it."""
        began = time.monotonic()
        async with aiohttp.ClientSession() as self._http:
            try:
                self._clock.set(START)
                await self._start()
                for number in range(round(self.settings.days * SECONDS_PER_DAY / STEP_S)):
                    await self._step(number)
                await self._end()
            finally:
                await self._peers.close()
                self._process.close()
        self._sum_up(time.monotonic() - began)
        return self.result

    async def _step(self, number: int) -> None:
        elapsed = number * STEP_S
        self._clock.set(START + elapsed)
        began = time.monotonic()
        day = elapsed / SECONDS_PER_DAY
        for at, is_kill in ACCIDENTS:
            if elapsed <= at * self.settings.days * SECONDS_PER_DAY < elapsed + STEP_S:
                await self._accident(is_kill=is_kill)
        if number and elapsed % SECONDS_PER_DAY < STEP_S:
            for peer in self._peers.relay_peers:
                peer.forget()
        if _passes(elapsed, NIGHT_S) and elapsed > SECONDS_PER_DAY:
            await self._night()
        if _passes(elapsed, SECONDS_PER_DAY // 2) and int(day) % max(1, round(self.settings.days / 4)) == 0:
            await self._week()
        await self._post()
        await self._visit()
        if number % STEPS_PER_HOUR == STEPS_PER_HOUR - 1:
            self._peers.relay_peers[1].change(self._topics.choose_distinct(20, self._rng))
            await self._sample(day)
        if self._compaction is not None and not self._compaction.done():
            await asyncio.sleep(max(0.0, NIGHT_STEP_S - (time.monotonic() - began)))

    async def _post(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            for number, batch in enumerate(self._batches()):
                tasks.create_task(self._post_batch(number, batch))

    def _batches(self) -> Iterator[list[Envelope]]:
        """What each poster has to post in this step: more in the evening than at night."""
        now = int(self._clock.now())
        busy = 1 + 0.8 * math.sin(2 * math.pi * (now % SECONDS_PER_DAY) / SECONDS_PER_DAY - math.pi)
        count = self.settings.envelopes_per_day * STEP_S / SECONDS_PER_DAY * busy / len(self._peers.posters)
        for _ in self._peers.posters:
            yield make_envelopes(max(1, round(self._rng.uniform(0.5, 1.5) * count)), self._topics, now, self._rng)

    async def _post_batch(self, number: int, batch: list[Envelope]) -> None:
        day = day_of(int(self._clock.now()))
        try:
            await self._peers.posters[number].post(batch, self._confirmations, self._daemon.process.pid)
        except ConnectionLost:
            self._model.doubt(batch, day)
        else:
            self._model.confirm(batch, day)

    async def _visit(self) -> None:
        """Some phones come, ask and go; the monitoring and JSON-RPC are asked, too."""
        now = int(self._clock.now())
        count = int(VISITS_PER_STEP) + (self._rng.random() < VISITS_PER_STEP % 1)
        key, since = (
            key_from_password(PASSWORD),
            now - round(SAFE_SHARE * self.settings.retention_days * SECONDS_PER_DAY),
        )
        async with asyncio.TaskGroup() as tasks:
            for phone in self._rng.sample(self._phones, count):
                visited = visit(
                    phone,
                    self._daemon.enode,
                    self._daemon.process.pid,
                    key,
                    self._model,
                    now=now,
                    kept_since=since,
                    rng=self._rng,
                    visits=self._visits,
                )
                tasks.create_task(visited)
            tasks.create_task(self._ask("waku_info"))

    async def _ask(self, method: str) -> None:
        question = {"jsonrpc": "2.0", "id": 1, "method": method, "params": []}
        async with self._http.post(f"http://127.0.0.1:{self._ports['JSON-RPC']}/", json=question) as answer:
            assert "result" in await answer.json()

    async def _get(self, path: str) -> str:
        async with self._http.get(f"http://127.0.0.1:{self._ports['metrics']}{path}") as answer:
            return await answer.text()

    async def _sample(self, day: float) -> None:
        status, metrics = json.loads(await self._get("/status.json")), await self._get("/metrics")
        lag = tuple(float(_metric(metrics, f"mailserver_event_loop_lag_seconds_{part}")) for part in ("sum", "count"))
        cpu_s, confirmed = usage(self._daemon.process.pid).cpu_s, self._model.confirmed
        rss_mib, fds, threads = process_figures(self._daemon.process.pid)
        store, mib = status["store"], 1024 * 1024
        files = {name: (self._data / f"{STORE_FILE}{name}").stat().st_size / mib for name in ("", "-wal")}
        sample = Sample(
            day,
            self._runs,
            rss_mib,
            fds,
            threads,
            files["-wal"],
            files[""],
            store["bytes"] / mib,
            store["envelopes"],
            status["queues"]["store_envelopes"],
            *percentiles(self._visits.times.seconds),
            *percentiles(self._visits.times.own),
            *percentiles(self._confirmations.seconds),
            *percentiles(self._confirmations.own),
            cpu_s - self._cpu[0],
            confirmed - self._cpu[1],
            (lag[0] - self._lag[0]) * 1000 / max(1.0, lag[1] - self._lag[1]),
            os.getloadavg()[0],
        )
        self._lag, self._cpu = (lag[0], lag[1]), (cpu_s, confirmed)
        self._visits.times.clear()
        self._confirmations.clear()
        self.result.samples.append(sample)
        self._on_sample(sample)

    # Nights, weeks, accidents.

    async def _night(self) -> None:
        if self._compaction is not None:
            await self._compaction
        self._compaction = asyncio.create_task(self._compact())

    async def _compact(self) -> None:
        began = time.monotonic()
        arguments = ["compact", "--store", str(self._data / STORE_FILE), "--archive", str(self._archive)]
        await self._command("-m", "spark_export", *arguments, "--master", "local[2]", "--driver-memory", "1g")
        self._compactions.append(time.monotonic() - began)

    async def _week(self) -> None:
        backup = self._folder / "backup"
        await self._command(*PROGRAM[1:], "backup", "--data-dir", str(self._data), str(backup))
        for folder in (self._data, backup):
            await self._command(*PROGRAM[1:], "check", "--data-dir", str(folder))
        shutil.rmtree(backup)
        self._count("backups")

    async def _accident(self, *, is_kill: bool) -> None:
        """The daemon ends, in the middle of what is posted, and starts again."""
        batches = list(self._batches())
        async with asyncio.TaskGroup() as tasks:
            for number, batch in enumerate(batches):
                tasks.create_task(self._post_batch(number, batch))
            await asyncio.sleep(0.005)
            if is_kill:
                self._daemon.process.kill()
            else:
                self._daemon.process.terminate()
        await self._peers.close()
        code = await asyncio.to_thread(self._daemon.wait)
        if not is_kill and code != 0:
            self.result.broken.append(f"the daemon ended with {code}")
        self._count("kills" if is_kill else "restarts")
        self._process.close()
        await self._start()

    async def _start(self) -> None:
        flags = ("--rpc", "127.0.0.1:0", "--metrics", "127.0.0.1:0", "--archive", str(self._archive))
        retention = ("--retention-days", str(self.settings.retention_days))
        environment = self._clock.environment()
        self._process = contextlib.ExitStack()
        self._daemon = self._process.enter_context(
            running_daemon(self._data, *flags, *retention, environment=environment)
        )
        self._runs += 1
        for name in ("JSON-RPC", "metrics"):
            line = await asyncio.to_thread(self._daemon.wait_for_line, f"serving {name} port=")
            self._ports[name] = int(line.partition("port=")[2].split()[0])
        self._lag, self._cpu = (0.0, 0.0), (0.0, self._model.confirmed)
        await self._peers.connect(self._daemon.enode)

    async def _command(self, *arguments: str) -> str:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            *arguments,
            env={**os.environ, **self._clock.standing()},
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        async with asyncio.timeout(COMMAND_TIMEOUT_S):
            out, err = await process.communicate()
        if process.returncode:
            self.result.broken.append(f"{' '.join(arguments[:4])}: {process.returncode}: {err.decode()[-500:]}")
        return out.decode()

    # The end.

    async def _end(self) -> None:
        if self._compaction is not None:
            await self._compaction
        last = START + round(self.settings.days * SECONDS_PER_DAY) - 1
        self._clock.set((day_of(last) + 1) * SECONDS_PER_DAY + LATER_S)
        await self._peers.close()
        await self._compact()
        if self._daemon.stop() != 0:
            self.result.broken.append("the daemon did not stop well")
        self._count_log()
        await self._command("-m", "spark_export", "verify", "--archive", str(self._archive))
        self._compare_archive()

    def _compare_archive(self) -> None:
        """The archive has, day by day, what was confirmed, and no more than was sent."""
        records = [decode_record(path.read_text(), path.name) for path in (self._archive / "_records").glob("*.json")]
        rows = {day: said.fingerprint.rows for record in visible(records) for day, said in record.days.items()}
        model = self._model
        for day in sorted(rows.keys() | model.by_day.keys()):
            least, most = model.by_day[day], model.by_day[day] + model.unsure_by_day[day]
            if not least <= rows.get(day, 0) <= most:
                self.result.broken.append(f"day {day}: {rows.get(day, 0)} archived, {least} to {most} were accepted")
        self.result.figures["archived"] = sum(rows.values())
        self.result.figures["archived_days"] = len(rows)

    def _count_log(self) -> None:
        for line in self._daemon.lines:
            if re.search(r" (ERROR|CRITICAL) ", line):
                self.result.broken.append(line)

    def _count(self, name: str) -> None:
        self.result.figures[name] = self.result.figures.get(name, 0) + 1

    def _sum_up(self, seconds: float) -> None:
        result, visits, model = self.result, self._visits, self._model
        result.verdicts = judge(result.samples, self.settings.retention_days)
        result.broken += visits.wrong
        if len(longest_run(result.samples)) >= MIN_JUDGED_DAYS * 24:
            result.broken += [
                f"{v.name}: {v.before:.1f} became {v.after:.1f}" for v in result.verdicts if not v.is_flat
            ]
            result.broken += [
                f"{v.name} was not judged" for v in result.verdicts if not v.is_judged and v.name not in BY_THE_CLOCK
            ]
        refused = sum(poster.refused for poster in self._peers.posters)
        if refused:
            result.broken.append(f"{refused} envelopes were refused")
        repeated = sum(peer.repeated for peer in self._peers.relay_peers)
        if repeated:
            result.broken.append(f"{repeated} envelopes were relayed twice to one peer")
        stored = [sample.stored for sample in result.samples]
        if stored[-1] >= model.confirmed:
            result.broken.append("nothing was pruned")
        result.figures |= {
            "envelopes": model.confirmed,
            "unsure": len(model.unsure),
            "requests": visits.requests,
            "pages": visits.pages,
            "delivered": visits.envelopes,
            "relayed": sum(peer.received for peer in self._peers.relay_peers),
            "compactions": len(self._compactions),
            "compaction_s": round(sum(self._compactions) / max(1, len(self._compactions)), 1),
            "hours_sampled": len(result.samples),
            "seconds": round(seconds, 1),
        }


def _passes(elapsed: int, second_of_day: int) -> bool:
    """Whether a step begins in which the time of day comes to this."""
    return elapsed % SECONDS_PER_DAY <= second_of_day < elapsed % SECONDS_PER_DAY + STEP_S


def _metric(text: str, name: str) -> str:
    found = re.search(rf"^{name} (.+)$", text, re.MULTILINE)
    assert found is not None, name
    return found[1]
