"""The verdict over jobs of `support.agents`: ledger, final Redis and event streams against the invariants."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import redis

from celery_agents import AgentClient
from celery_agents.worker.state import ToolOutcome
from celery_agents.worker.store.keys import SessionKeys

from .http_service import Entry
from .redis_keys import immortal_keys

_WITHOUT_EFFECT: Final = ("pure", "failing", "approved", "ask_limited")


@dataclass(frozen=True)
class Submitted:
    """A job that was acknowledged, and what it should have come to.

    Attributes:
        tools: The tools of each step before the answer.
    """

    session_id: str
    execution_id: str
    tools: tuple[tuple[str, ...], ...]


@dataclass
class Verdict:
    """What was found. `violations` empty and every wanted count above zero is a pass."""

    violations: list[str] = field(default_factory=list[str])
    counts: Counter[str] = field(default_factory=Counter[str])
    recoveries: list[float] = field(default_factory=list[float])

    def expect(self, holds: bool, invariant: str, text: str) -> None:
        """Note a broken invariant."""
        if not holds:
            self.violations.append(f"{invariant}: {text}")

    def vacuous(self, wanted: Iterable[str]) -> list[str]:
        """What should have been seen and was not."""
        return [name for name in wanted if not self.counts[name]]

    def add(self, other: Verdict) -> None:
        """Take another run's findings in."""
        self.violations += other.violations
        self.counts += other.counts
        self.recoveries += other.recoveries

    def as_json(self) -> dict[str, Any]:
        """For the campaign's report; recoveries in seconds."""
        return {
            "holds": not self.violations,
            "violations": self.violations[:50],
            "counts": dict(sorted(self.counts.items())),
            "recoveries": summary(self.recoveries),
        }

    def __str__(self) -> str:
        return json.dumps(self.as_json(), indent=1)


def summary(seconds: Sequence[float]) -> dict[str, float]:
    """n, median, 99th percentile and maximum."""
    if not seconds:
        return {"n": 0}
    ordered = sorted(seconds)
    return {
        "n": len(ordered),
        "p50": round(_percentile(ordered, 0.5), 2),
        "p99": round(_percentile(ordered, 0.99), 2),
        "max": round(ordered[-1], 2),
    }


def _percentile(ordered: Sequence[float], share: float) -> float:
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def judge(
    client: AgentClient,
    server: redis.Redis,
    entries: Sequence[Entry],
    jobs: Sequence[Submitted],
    *,
    statuses: Collection[str] = ("completed",),
    planned: bool = True,
) -> Verdict:
    """The verdict after all jobs have ended.

    Args:
        server: A decoding client of the store's database.
        entries: The ledger's.
        statuses: How a job may end. The plan of those that were cut short need not be complete.
        planned: The driver is the one of `support.agents`, which notes its calls in the ledger.
    """
    verdict = Verdict()
    driver: dict[tuple[str, int], int] = Counter(_step_of(e["key"]) for e in entries if e.get("kind") == "driver")
    effects: dict[str, list[Entry]] = defaultdict(list)
    for entry in entries:
        if entry.get("kind") == "effect":
            effects[entry["execution"]].append(entry)
    for job in jobs:
        try:
            _judge_job(
                verdict, client, server, job, driver if planned else None, effects[job.execution_id], statuses
            )  # fmt: skip
        except Exception as error:
            verdict.expect(False, "I8", f"{job.session_id} cannot be judged: {type(error).__name__}: {error}")
    judge_rest(verdict, client, server)
    return verdict


def judge_rest(verdict: Verdict, client: AgentClient, server: redis.Redis) -> None:
    """I11, when all executions have ended."""
    total, _, _ = client.store.housekeeping.backlog()
    verdict.expect(total == 0, "I11", f"{total} sessions are still due")
    left = immortal_keys(server)
    verdict.expect(not left, "I11", f"without a time to live: {left[:10]}")


def _step_of(key: str) -> tuple[str, int]:
    _, execution, step = key.split(":")
    return execution, int(step)


def _judge_job(
    verdict: Verdict,
    client: AgentClient,
    server: redis.Redis,
    job: Submitted,
    driver: Mapping[tuple[str, int], int] | None,
    effects: Sequence[Entry],
    statuses: Collection[str],
) -> None:
    name = job.session_id
    status = client.header(name).status
    verdict.counts[f"jobs_{status}"] += 1
    verdict.expect(status in statuses, "I8", f"{name} is {status}")
    execution = client.show(name).state.execution
    assert execution is not None
    verdict.expect(execution.execution_id == job.execution_id, "I8", f"{name} has another execution")
    numbers = [each.step.number for each in execution.step_executions]
    verdict.expect(numbers == list(range(1, len(numbers) + 1)), "I1", f"{name} has steps {numbers}")
    if status == "completed":
        verdict.expect(
            len(numbers) == len(job.tools) + 1, "I8", f"{name} has {len(numbers)} steps of {len(job.tools) + 1}"
        )
    events = client.store.sessions.events(name)
    commits = Counter(e.step for e in events if e.type == "step_committed" and e.execution_id == job.execution_id)
    verdict.expect(
        sorted(commits) == numbers and set(commits.values()) <= {1}, "I1", f"{name} committed {dict(commits)}"
    )
    verdict.counts["commits"] += sum(commits.values())
    verdict.counts["recovered"] += sum(e.type == "step_recovered" for e in events)
    if driver is not None:
        keys = client.store.context.keys(name)
        _judge_calls_of_the_driver(verdict, server, keys, job, numbers, driver)
    judge_effects(verdict, job, execution, effects)


def _judge_calls_of_the_driver(
    verdict: Verdict,
    server: redis.Redis,
    keys: SessionKeys,
    job: Submitted,
    numbers: Sequence[int],
    driver: Mapping[tuple[str, int], int],
) -> None:
    """I4: a claim that finds no answer in the journal leaves a `try:`; no more calls than those and failed attempts."""
    for number in numbers:
        calls = driver.get((job.execution_id, number), 0)
        fields: Mapping[str, str] = server.hgetall(keys.journal(job.execution_id, number))  # type: ignore[assignment]
        allowed = sum(name.startswith(("try:", "err:")) for name in fields)
        verdict.counts["model_calls"] += calls
        verdict.counts["model_calls_extra"] += max(0, calls - 1)
        place = f"{job.execution_id}.{number}"
        verdict.expect(calls >= 1, "I5", f"{place} was committed without a model call")
        verdict.expect(calls <= max(1, allowed), "I4", f"{place} was asked {calls} times in {allowed} attempts")


def judge_effects(verdict: Verdict, job: Submitted, execution: Any, effects: Sequence[Entry]) -> None:
    """I3, I5: each effect is known to the history, and was made once."""
    by_place: dict[tuple[int, int], list[Entry]] = defaultdict(list)
    for entry in effects:
        by_place[entry["step"], entry["index"]].append(entry)
    made = {
        (each.step.number, tool.index): tool for each in execution.step_executions for tool in each.step.tool_executions
    }
    for place, delivered in by_place.items():
        where = f"{delivered[0]['tool']} at {job.execution_id}.{place}"
        verdict.expect(place in made, "I5", f"{where} had an effect that the history does not know")
        verdict.expect(len({entry["key"] for entry in delivered}) == 1, "I3", f"{where} had several keys")
        verdict.counts["effects"] += 1
        verdict.counts["deliveries_again"] += len(delivered) - 1
        real = sum(entry["effect"] for entry in delivered)
        verdict.expect(real == 1, "I3", f"{where} had {real} effects")
    for place, tool in made.items():
        _judge_outcome(verdict, job, place, tool, by_place.get(place, []))


def _judge_outcome(
    verdict: Verdict, job: Submitted, place: tuple[int, int], tool: Any, delivered: Sequence[Entry]
) -> None:
    name, outcome = tool.tool_call.name, tool.outcome
    where = f"{name} at {job.execution_id}.{place}"
    verdict.counts[f"outcome_{outcome.value}"] += 1
    if name in _WITHOUT_EFFECT:
        return
    if outcome is ToolOutcome.OK:
        verdict.expect(bool(delivered), "I5", f"{where} is ok without an effect")
    elif outcome is ToolOutcome.UNKNOWN:
        verdict.counts[f"unknown_{name}"] += 1
    elif outcome is ToolOutcome.ERROR and tool.error is not None and tool.error.kind == "expired":
        # A worker died while it started the work elsewhere, and no result came.
        verdict.counts[f"expired_{name}"] += 1
    elif outcome is ToolOutcome.NOT_RUN:
        verdict.expect(not delivered, "I5", f"{where} is recorded as not run and had an effect")
    else:
        verdict.expect(False, "I5", f"{where} ended as {outcome.value}: {tool.error}")
