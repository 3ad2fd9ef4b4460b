"""kill -9 around a wait: of workers that ask and wait, of clients that answer, and of Redis after an answer."""

from __future__ import annotations

import itertools
import random
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from celery_agents.worker import crash_points
from celery_agents.worker.errors import StoreUnavailable
from celery_agents.worker.store import RequestFilter

from support.answering import AnsweringDesk
from support.lab import Lab, Supervisor, wait_while_feeding
from support.verdict import Submitted, Verdict
from support.wait import wait_until
from support.waiting_agents import ASKING_TOOLS, TOKEN_SECRET

POINTS = ("w0", "w1", "w3")
_IN_FLIGHT = 6
# Leases of these scenarios are two seconds long.
_LONGEST_SECONDS = 10
_TESTS = Path(__file__).resolve().parents[2]


def combinations() -> list[tuple[str, str]]:
    """Crash points of workers, and the kinds of calls that meet them."""
    return [(point, tool) for tool in ASKING_TOOLS for point in POINTS]


def _lab(directory: Path, **options: object) -> Lab:
    env = {"CELERY_AGENTS_TOKEN_SECRET": TOKEN_SECRET}
    return Lab(directory, agents="support.waiting_agents", env=env, **options)  # type: ignore[arg-type]


def _submit(lab: Lab, *tools: str) -> Submitted:
    return lab.submit(tools, ["keyed"], agent="asking", before=0.02)


def kill_waiting(directory: Path, rounds: int, seed: int, *, timeout: float) -> Verdict:
    """Kill a worker at each crash point of waiting, with each kind of request, so many times.

    One worker is never killed, two carry crash plans and are started again with the next one when they die.
    """
    chance = random.Random(seed)
    meetings = combinations() * rounds
    plans = [f"{point}:0.5:{chance.randrange(10**9)}" for point, _ in meetings]
    wanted = dict(zip(plans, [tool for _, tool in meetings], strict=True))
    with _lab(directory) as lab:
        steady = lab.worker()
        lab.client.wait_for_agent("asking")
        with AnsweringDesk(lab.new_client(), lab.ledger) as desk, Supervisor(lab, list(plans), 2) as supervisor:
            numbers = itertools.count()

            def feed() -> None:
                tools = [wanted[crash] for crash in supervisor.active] or list(ASKING_TOOLS)
                _submit(lab, tools[next(numbers) % len(tools)])

            wait_while_feeding(
                lambda: supervisor.done, feed,
                in_flight=lambda: sum(not lab.ended(job) for job in lab.jobs[-200:]), most=_IN_FLIGHT, timeout=timeout,
                why="every crash plan has killed its worker",
            )  # fmt: skip
            lab.wait_for_jobs(90)
        verdict = _judge(lab, desk)
        verdict.expect(steady.alive, "workers", "the worker that nobody killed has ended")
        for problem in supervisor.problems:
            verdict.expect(False, "lab", problem)
        waits = lab.recoveries(supervisor.deaths)
        for number, death in enumerate(supervisor.deaths):
            if death.crash:
                verdict.counts["kills"] += 1
                verdict.counts[f"killed_{death.crash.split(':', 1)[0]}_{wanted[death.crash]}"] += 1
                verdict.recoveries += [wait for wait in waits[number] if wait <= _LONGEST_SECONDS]
        verdict.counts["jobs"] = len(lab.jobs)
    return verdict


def _judge(lab: Lab, desk: AnsweringDesk) -> Verdict:
    """The verdict of all jobs, and I12: what was approved is what ran, once."""
    verdict = lab.verdict()
    for problem in desk.problems:
        verdict.expect(False, "I12", problem)
    for entry in lab.ledger.entries():
        if entry.get("tool") in ("approved_unsafe", "approved_keyed", "asks_keyed"):
            asked = entry["work"].removesuffix(" edited")
            approved = desk.decided.get((entry["execution"], entry["step"], asked))
            verdict.expect(approved == entry["work"], "I12", f"{entry['work']!r} ran, approved was {approved!r}")
            verdict.counts["approved_calls"] += 1
            verdict.counts["edited_calls"] += entry["work"].endswith(" edited")
    verdict.counts["requests_answered"] += len(desk.answered)
    (listed,) = (lab.client.store.requests.page(RequestFilter(), limit=10),)
    verdict.expect(not listed.requests, "I11", f"requests are still listed: {listed.requests}")
    return verdict


def kill_clients(directory: Path, rounds: int) -> Verdict:
    """A client dies between its answer and the message that wakes the step; the broker is another database."""
    tools = ("approved_unsafe", "asks_keyed", "question")
    with _lab(directory, separate=True) as lab:
        lab.worker()
        verdict = Verdict()
        for tool in tools * rounds:
            job = _submit(lab, tool)
            request = _open_request(lab, job)
            died = subprocess.run(
                [sys.executable, "-m", "support.answering", lab.store_url, lab.broker_url or "-", job.session_id,
                 request, "w2:1:1"], cwd=_TESTS, check=False, capture_output=True, text=True,
            )  # fmt: skip
            answered_at = time.monotonic()
            verdict.expect(died.returncode == -9, "lab", f"the client ended with {died.returncode}: {died.stderr}")
            lab.wait_for_jobs(30, [job])
            verdict.recoveries.append(time.monotonic() - answered_at)
            verdict.counts[f"killed_w2_{tool}"] += 1
        verdict.add(lab.verdict())
        slowest = max(verdict.recoveries)
        verdict.expect(slowest <= _LONGEST_SECONDS, "I13", f"an answer without its message cost {slowest:.1f} s")
    return verdict


def kill_redis(directory: Path, rounds: int) -> Verdict:
    """Redis dies after it has taken an answer and before anybody goes on; all workers are stopped meanwhile."""
    with _lab(directory, redis_options={"append_only": "always"}) as lab:
        worker = lab.worker()
        desk = AnsweringDesk(lab.new_client(), lab.ledger)
        for number in range(rounds):
            jobs = [_submit(lab, tool) for tool in ASKING_TOOLS[:4]]
            requests = [(job, _open_request(lab, job)) for job in jobs]
            worker.pause()

            def die(point: str) -> None:
                if point == "w2":
                    lab.server.kill()
                    lab.server.start()

            crash_points.install(die)
            try:
                for job, request in requests:
                    _answer(lab, desk, job, request)
            finally:
                crash_points.install(None)
                worker.resume()
            if number % 2:
                worker.kill()
                worker = lab.worker()
            lab.wait_for_jobs(60, jobs)
        lab.client = lab.new_client()  # connections of the old one have died with Redis
        verdict = _judge(lab, desk)
        verdict.counts["redis_killed"] += rounds * 4
    return verdict


def _answer(lab: Lab, desk: AnsweringDesk, job: Submitted, request: str) -> None:
    """Answer a request, and once more when Redis was away: the operation id is the same."""

    def is_answered() -> bool:
        desk.answer(lab.client.store.requests.find(job.session_id, request))
        return request in desk.answered

    wait_until(is_answered, f"{request} is answered", 30, ignoring=(StoreUnavailable,))


def _open_request(lab: Lab, job: Submitted) -> str:
    """The id of the one request that a job waits for."""
    found: Sequence[str] = ()

    def is_open() -> bool:
        nonlocal found
        page = lab.client.store.requests.page(RequestFilter(session_id=job.session_id))
        found = [each.summary.id for each in page.requests]
        return bool(found) and lab.client.header(job.session_id).status == "waiting"

    wait_until(is_open, f"{job.session_id} waits for an answer", 30)
    return found[0]
