"""Seeds in which people change budgets: when they do it, and what must be true of each execution afterwards."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

from celery_agents.worker.state import ExecutionState, StopReason

from .plan import CRASH_POINTS, Action
from .world import Fault, Tally
from support.points import OF_LIMITING, OF_WORKERS, Points

if TYPE_CHECKING:
    from .simulation import Simulation

_COMMITS: Final = (Points.COMMIT_ATTEMPT, Points.COMMIT_READ, Points.COMMIT_EXEC, Points.WAIT_READ, Points.WAIT_EXEC)


def plan_changes(rng: random.Random, sessions: Sequence[str], now: float) -> list[Action]:
    """Draw who changes the limit of steps, and when; most often beside a commit or a wait."""
    triggers = [f"{side}{p}" for p in OF_WORKERS for side in "<>"] + [*CRASH_POINTS, "driver", "tool", "lease ended"]
    triggers += [f"{side}{p}" for side in "<>" for p in (*_COMMITS, *OF_LIMITING)] * 6
    found: list[Action] = []
    for session in sessions:
        for number in range(100, 100 + rng.choices((1, 2, 4), (4, 4, 1))[0]):
            at = now + rng.choice((300, 3000, 20_000)) * rng.random()
            point = rng.choice(triggers) if rng.random() < 0.8 else ""
            limit = rng.choice((0, 1, 1, 2, 2, 3, 9))
            found.append(Action("budget", session, number, point, rng.choice((1, 1, 2, 3)), at, limit=limit))
        if rng.random() < 0.3:
            for number, kind in ((120, "suspend"), (121, "resume")):
                at = now + rng.choice((500, 5000)) * rng.random()
                found.append(Action(kind, session, number, rng.choice(triggers), 1, at))
    return found


def plan_lost_changes(rng: random.Random, kind: str) -> list[Fault]:
    """Draw the replies that changes lose."""
    if kind not in ("lost", "pause", "mixed") or rng.random() < 0.5:
        return []
    return [Fault(rng.choices(("swallow", "refuse"), (3, 1))[0], rng.choice(OF_LIMITING), 1)]


def check_limits(sim: Simulation, session: str, last: ExecutionState) -> None:
    """B1 to B4: each step was decided by the limit that held then, and no change is lost or left behind."""
    world, history = sim.world, sim.history
    for execution, changes in history.limits.items():
        if not execution.startswith(session) and execution != last.execution_id:
            continue
        for paid in sim.stage.ledgers.payments:
            if paid.execution != execution:
                continue
            limit = _limit_at(sim, execution, _looked(sim, execution, paid.step, paid.job))
            name = f"{execution}.{paid.step}"
            world.expect(limit is None or paid.step - 1 < limit, "B1", f"{name} was asked under a limit of {limit}")
        if execution != last.execution_id:
            continue
        _, newest = changes[-1]
        world.expect(
            last.budget.max_steps == newest, "B3", f"{execution} has {last.budget.max_steps} steps, set {newest}"
        )
        if last.final_reason() is StopReason.STEPS_LIMIT_REACHED:
            world.expect(
                last.step_count >= newest, "B2", f"{execution} ended at step {last.step_count} by a limit of {newest}"
            )
    keys = sim.client.context.keys(session)
    ((field, mark),) = sim.context.database.pipeline("check", [("HMGET", keys.ctl, "budget", "cancel")])
    world.expect(field is None and mark != b"!budget", "B4", f"{session} has ended with the change {field!r}")


def _looked(sim: Simulation, execution: str, step: int, job: str) -> int:
    """When a job had looked at a step last before it asked: at its claim, or at the commit that carried it on."""
    claims = [
        each.seq for each in sim.history.claims if (each.execution, each.step, each.job) == (execution, step, job)
    ]
    return max([*claims, sim.history.beside.committed.get((execution, step - 1), 0)])


def _limit_at(sim: Simulation, execution: str, seq: int) -> int | None:
    """The limit of steps that held at a moment; None without one."""
    earlier = [limit for at, limit in sim.history.limits[execution] if at <= seq]
    if earlier:
        return earlier[-1]
    plan = next((sim.stage.plans[each] for each in sim.sessions if sim.stage.first_of(each) == execution), None)
    return None if plan is None or plan.budget is None else plan.budget.max_steps


def unseen_limiting(tally: Tally) -> Iterator[str]:
    """What should have happened in seeds that change budgets, and did not."""
    for name in OF_LIMITING:
        if not tally.points[f"<{name}"]:
            yield f"round trip {name}"
    answers = ("budget changed", "budget refused", "budget.exec aborted", "commit.attempt declined", "raised in time")
    for answer in answers:
        if not tally.answers[answer]:
            yield f"answer {answer}"
