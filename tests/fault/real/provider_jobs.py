"""Loops of several steps at a provider that answers later, while workers are killed: each answer is paid once.

What was created and paid is what the provider's own book says, which is read past it.
"""

from __future__ import annotations

import math
import random
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import redis

from celery_agents import Job
from celery_agents.flow import SpendCap
from celery_agents.worker.errors import StoreUnavailable
from celery_agents.worker.flow.caps import NANOS

from support.lab import Lab, Supervisor
from support.patient_agents import PROVIDER_ROOT
from support.patient_process import PatientProcess
from support.verdict import Verdict, judge_rest
from support.wait import wait_until

POINTS: Final = ("c0", "c1", "p0", "p1", "p2", "c2", "c3", "c5", "c7")
AGENTS: Final = ("within_8h", "within_24h", "claude", "gemini", "chat", "teller")
FOUND: Final = ("within_24h", "claude", "gemini")
"""Agents whose jobs are found behind a crash between creation and id."""
ATTACHED: Final = ("chat", "teller")
"""Agents whose answers begin at once, in the background."""
TOOLS: Final = 3
_DYING_SECONDS: Final = 1.5
"""From a creation to the moment in which the death of its worker is noticed."""
STEPS: Final = TOOLS + 1
_EQUAL: Final = 1.000001
_MUCH: Final = 1_000_000.0
"""US dollars: a cap that counts, and keeps nobody waiting."""
_ENV: Final = {
    "OPENAI_API_KEY": "sk-not-a-key",
    "ANTHROPIC_API_KEY": "sk-not-a-key",
    "GOOGLE_API_KEY": "sk-not-a-key",
    "CELERY_AGENTS_ATTEMPTS_LIMIT": "100",
    "CELERY_AGENTS_SUSPECT_ATTEMPTS": "90",
    "CELERY_AGENTS_JOB_POLL_SECONDS": "0.3",
    "CELERY_AGENTS_JOB_POLL_MAX_SECONDS": "1",
    "CELERY_AGENTS_LOOKUP_MARGIN_SECONDS": "0.2",
}
_QUICK: Final = {"CELERY_AGENTS_STEP_TIMEOUT_SECONDS": "8"}
"""A batch that nobody has created is believed not to be there so long behind its intention."""


@dataclass
class Stage:
    """A provider with its book, and a lab whose workers ask it."""

    lab: Lab
    provider: PatientProcess

    def submit(self, agent: str, number: int) -> Job:
        """A loop of `STEPS` steps with a tool between them; its name is in the question."""
        return self.lab.client.submit(
            agent, f"{agent} {number}: loop {TOOLS} note", labels={"job": f"{agent}-{number}"}
        )


@contextmanager
def stage(directory: Path, redis_options: Mapping[str, Any] | None = None, **env: str) -> Iterator[Stage]:
    """A provider and a lab without workers."""
    provider = PatientProcess(directory / "provider")
    provider.begin()
    try:
        with Lab(
            directory / "lab", agents="support.patient_agents", redis_options=redis_options,
            env={**_ENV, PROVIDER_ROOT: provider.root, **env},
        ) as lab:  # fmt: skip
            yield Stage(lab, provider)
    finally:
        provider.book.close()
        provider.end()


def kill_jobs(
    directory: Path,
    agents: Sequence[str],
    rounds: int,
    seed: int,
    *,
    points: Sequence[str] = POINTS,
    redis_kills: int = 0,
    timeout: float,
) -> Verdict:
    """Kill a worker so many times at each point, with loops of each agent on their way.

    Args:
        redis_kills: How often Redis is killed meanwhile, which keeps what it has acknowledged.
    """
    chance = random.Random(seed)
    plans = [f"{point}:0.3:{chance.randrange(10**9)}" for point in points for _ in range(rounds)]
    chance.shuffle(plans)
    jobs: dict[str, list[Job]] = {agent: [] for agent in agents}
    verdict = Verdict()
    with stage(directory, {"append_only": "always"} if redis_kills else None, **_QUICK) as played:
        lab, provider = played.lab, played.provider
        redis_deaths: list[float] = []
        provider.control("plan", seconds=0.3)
        for agent in agents:
            lab.client.caps.set(SpendCap(agent, usd=_MUCH, per="month", agent=agent))
        deadline = time.monotonic() + timeout
        with Supervisor(lab, plans, 2) as supervisor:
            while not supervisor.done or _running(lab, [job for each in jobs.values() for job in each]):
                assert time.monotonic() < deadline, f"not done within {timeout:g} s: {supervisor.active}, {jobs}"
                for agent in agents if not supervisor.done else ():
                    if len(_running(lab, jobs[agent])) < 3:
                        jobs[agent].append(played.submit(agent, len(jobs[agent])))
                if len(redis_deaths) < redis_kills and chance.random() < 0.02:
                    redis_deaths.append(time.time())
                    lab.server.kill()
                    lab.server.start()
                    wait_until(lab.redis.ping, "Redis is back", 20, ignoring=(redis.RedisError,))
                    wait_until(
                        lambda: lab.client.store.housekeeping.now_ms(), "the client is back", 20,
                        ignoring=(StoreUnavailable,),
                    )  # fmt: skip
                time.sleep(0.1)
            kills = Counter(death.crash.partition(":")[0] for death in supervisor.deaths)
            for death in supervisor.deaths:
                verdict.expect(death.code == -9, "workers", f"ended with {death.code} at {death.crash}")
            wait_until(lambda: not _to_clean(lab), "all jobs are cleaned up behind", 30)
        verdict.counts.update({f"kills_{point}": count for point, count in kills.items()})
        verdict.counts["kills"] += kills.total()
        deaths = [*(death.at_ms / 1000 for death in supervisor.deaths), *redis_deaths]
        verdict.counts["redis_kills"] = len(redis_deaths)
        for agent in agents:
            _judge(verdict, played, agent, jobs[agent], deaths)
            _judge_cap(verdict, played, agent)
        judge_rest(verdict, lab.client, lab.redis)
    return verdict


def _running(lab: Lab, jobs: Sequence[Job]) -> list[Job]:
    ended = ("completed", "failed", "stopped")
    return [job for job in jobs if lab.client.header(job.session_id).status not in ended]


def _to_clean(lab: Lab) -> list[bytes]:
    """The entries of the indexes of jobs."""
    found: list[bytes] = []
    for shard in lab.client.store.context.shards:
        for key in (shard.jobs, shard.old_jobs):
            found += lab.redis.hkeys(key)  # pyright: ignore
    return found


def _judge(verdict: Verdict, played: Stage, agent: str, jobs: Sequence[Job], deaths: Sequence[float]) -> None:
    """Compare what sessions say with the provider's book.

    Args:
        deaths: When workers were found dead, and Redis was killed, as the book tells times.
    """
    book = played.provider.book
    created = [line for line in book.created() if _name_of(str(line["text"])).partition(" ")[0] == agent]
    named = {str(line["id"]): _name_of(str(line["text"])) for line in created}
    asked, dollars = Counter(named.values()), Counter[str]()
    for line in book.paid():
        dollars[named.get(str(line["id"]), "")] += line["dollars"]
    for number, job in enumerate(jobs):
        name, result = f"{agent} {number}", job.result(timeout=10)
        verdict.counts["jobs_completed"] += 1
        verdict.counts[f"{agent}_jobs"] += 1
        verdict.expect(str(result.status) == "completed", "I1", f"{name} is {result.status}: {result.errors}")
        verdict.expect(result.final_response == f"done after {TOOLS}: noted {TOOLS}", "I3", f"{name} says {result}")
        verdict.expect(asked[name] >= STEPS, "I4", f"{name}: {asked[name]} answers for {STEPS} steps")
        is_equal = asked[name] > STEPS or math.isclose(result.cost or 0.0, dollars[name], rel_tol=1e-6)
        verdict.expect(is_equal, "cost", f"{name} costs {result.cost}, and {dollars[name]} were charged")
    extra = len(created) - STEPS * len(jobs)
    verdict.counts["created_again"] += extra
    looked_at = {str(line["id"]) for line in book.polls()}
    unknown = [line for line in created if str(line["id"]) not in looked_at]
    # A process that dies takes the other steps that it runs with it, wherever they are.
    unexplained = [line for line in unknown if not any(0 <= at - line["at"] < _DYING_SECONDS for at in deaths)]
    verdict.expect(extra == len(unknown), "I4", f"{agent}: {extra} answers too many, {len(unknown)} that nobody knows")
    verdict.expect(not unexplained, "I4", f"{agent}: no death explains {unexplained}")
    verdict.expect(not extra or agent not in FOUND, "I4", f"{agent}: {extra} batches were not found")


def _judge_cap(verdict: Verdict, played: Stage, agent: str) -> None:
    """Compare what is spent under the agent's cap with the provider's book.

    What is reserved for a job that is lost counts as spent, and may have been less than it has cost.
    """
    book, redis_ = played.provider.book, played.lab.redis
    own = {str(line["id"]) for line in book.created() if _name_of(str(line["text"])).partition(" ")[0] == agent}
    costs = [line["dollars"] for line in book.paid() if str(line["id"]) in own]
    spent = sum(redis_.zscore(key, "") or 0.0 for key in redis_.keys(f"ca:cap:{agent}:*:spent")) / NANOS  # pyright: ignore
    held = [int(each) / NANOS for key in redis_.keys(f"ca:cap:{agent}:*:held") for each in redis_.hvals(key)]  # pyright: ignore
    verdict.counts[f"{agent}_held"] = len(held)
    settled, paid, kills = spent - sum(held), sum(costs), verdict.counts["kills"] + verdict.counts["redis_kills"]
    guessed = (len(held) + verdict.counts["created_again"]) * max(costs)
    said = f"{agent}: {paid} $ were charged, {settled} settled, and held are {held}"
    verdict.expect(paid <= (spent + guessed) * _EQUAL, "cap", said)
    verdict.expect(len(held) <= kills, "cap", said)
    loses_none = agent in ATTACHED and not verdict.counts["redis_kills"]
    verdict.expect(not loses_none or settled <= paid * _EQUAL, "cap", said)


def _name_of(text: str) -> str:
    """The name of the job that a question begins with; "" for others."""
    return text.partition(":")[0] if ": loop " in text else ""
