"""Simulated trees of agents: workers die between any two round trips, replies are lost, people stop, hold and write.

    cd tests && python -m fault.sim.trees --seeds 0:1000        python -m fault.sim.trees --seed 17

One seed is one tree of depth 3 with up to three children for each session, a limit of $1 at the root, and random usage. The
engine and the store are the product's; the database is in memory and the clock stands still. Afterwards the checks of I14
and I15 read the store and the ledger of what was paid.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from celery_agents.worker import crash_points
from celery_agents.worker.agent import Agent
from celery_agents.worker.engine import LeaseKeeper
from celery_agents.worker.errors import ActionRefused, CeleryAgentsError, StoreUnavailable
from celery_agents.worker.state import (
    AgentState,
    ExecutionBudget,
    InferenceResponse,
    Message,
    Role,
    ToolCall,
)
from celery_agents.worker.store import StepRef, Store
from celery_agents.worker.store.control import ControlFields, control_command
from celery_agents.worker.store.database import Command, Guard
from celery_agents.worker.tools import AgentTool, ToolContext, tool

from support.engine import Bench, WorkerDied
from support.trees import children_of, register
from support.verdict import Verdict

BUDGET = 1.0
MOST_PER_CALL = 0.1
DEEPEST = 3
MOST_TURNS = 6_000


class FaultyDatabase:
    """`Database` whose round trips kill the worker, before or after they are applied, or lose their replies."""

    def __init__(self, inner: Any, chance: random.Random, rates: tuple[float, float]) -> None:
        self.inner = inner
        self.is_dead = False
        self.is_armed = False
        self.faults: Counter[str] = Counter()
        self._chance = chance
        self._kill, self._lose = rates
        self._thread = threading.get_ident()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def die(self) -> None:
        """End the worker: nothing of it reaches the database any more."""
        self.is_dead = True
        raise WorkerDied

    def _meet(self, point: str, apply: Callable[[], Any]) -> Any:
        if threading.get_ident() != self._thread or not (self.is_armed or self.is_dead):
            return apply()
        if self.is_dead:
            raise WorkerDied
        if self._chance.random() < self._kill:
            self.faults[f"died before {point}"] += 1
            self.die()
        reply = apply()
        if self._chance.random() < self._kill:
            self.faults[f"died after {point}"] += 1
            self.die()
        if self._chance.random() < self._lose:
            self.faults["reply lost"] += 1
            raise StoreUnavailable(f"the reply of {point} was lost")
        return reply

    def pipeline(self, point: str, commands: Sequence[Command]) -> list[Any]:
        return self._meet(point, lambda: self.inner.pipeline(point, commands))

    def transaction(self, point: str, commands: Sequence[Command]) -> list[Any]:
        return self._meet(point, lambda: self.inner.transaction(point, commands))

    def script(self, point: str, name: str, keys: Sequence[str], args: Sequence[Any]) -> Any:
        return self._meet(point, lambda: self.inner.script(point, name, keys, args))

    def place(self, key: str) -> str:
        return self.inner.place(key)

    def script_command(self, name: str, keys: Sequence[str], args: Sequence[Any]) -> Command | None:
        return self.inner.script_command(name, keys, args)

    def compare_and_apply(self, point: str, guards: Sequence[Guard], commands: Sequence[Command]) -> Any:
        return self._meet(point, lambda: self.inner.compare_and_apply(point, guards, commands))

    @contextlib.contextmanager
    def watch(self, point: str, keys: Sequence[str], reads: Sequence[Command]) -> Iterator[Any]:
        with self.inner.watch(point, keys, reads) as watched:
            self._meet(point, lambda: None)
            yield _FaultyWatched(self, watched)


class _FaultyWatched:
    def __init__(self, database: FaultyDatabase, inner: Any) -> None:
        self.replies = inner.replies
        self._database = database
        self._inner = inner

    def pipeline(self, point: str, commands: Sequence[Command], **options: Any) -> Any:
        return self._database._meet(point, lambda: self._inner.pipeline(point, commands, **options))

    def commit(self, point: str, commands: Sequence[Command]) -> Any:
        return self._database._meet(point, lambda: self._inner.commit(point, commands))


@dataclass
class TreeVerdict:
    """The result of one seed.

    Attributes:
        paid: Costs of the model calls, by execution and step.
    """

    seed: int
    violations: list[str] = field(default_factory=list[str])
    counts: Counter[str] = field(default_factory=Counter[str])
    paid: dict[tuple[str, int], list[float]] = field(default_factory=dict[tuple[str, int], list[float]])

    def expect(self, holds: bool, text: str) -> None:
        """Note a broken invariant."""
        if not holds:
            self.violations.append(text)


class TreeSimulation:
    """One seed.

    Args:
        seed: The one source of chance.
        turns: Steps and waits after which the tree must have ended; no faults in their second half.
    """

    def __init__(self, seed: int, turns: int = MOST_TURNS) -> None:
        self.chance = random.Random(seed)
        self.turns = turns
        self.verdict = TreeVerdict(seed)
        self.root = ""
        self.known: set[str] = set()
        self.children: dict[tuple[str, int], list[str]] = {}
        self.bench = Bench(self._agent())
        rates = self.chance.choice(((0.0, 0.0), (0.01, 0.01), (0.03, 0.02), (0.0, 0.05)))
        inner = self.bench.store.context.database
        self.database = FaultyDatabase(inner, self.chance, rates)
        store = self.bench.store
        self.bench.store = Store(
            self.database, self.bench.settings, clock=store.context.clock, publisher=store.context.publisher
        )
        self._start_worker()
        self.interferes = self.chance.random() < 0.5

    # --- the agent ----------------------------------------------------------------------------------------------

    def _agent(self) -> Agent:
        chance = self.chance
        join = chance.choice(("all", "all", "first"))
        on_failure = chance.choice(("tell", "tell", "fail", "fail_fast"))

        @tool(effect="keyed")
        def survey(ctx: ToolContext, prompts: list[str]) -> str:
            """Start a child for each prompt."""
            return f"{len(ctx.spawn('spender', prompts))} ends"

        spend = AgentTool("spender", name="spend", join=join, on_failure=on_failure)
        return Agent(
            "spender",
            driver=self._answer,
            tools=(spend, survey),
            max_children=chance.choice((1, 2, 8)),
            max_depth=DEEPEST,
        )

    def _answer(self, state: AgentState) -> InferenceResponse:
        execution, chance = state.execution, self.chance
        assert execution is not None
        step = execution.step_count + 1
        self.bench.clock.go_on(chance.random() * 2)
        self.database.is_armed, armed = False, self.database.is_armed
        if self.root and self._has_ended(self.root):
            self.verdict.expect(False, "I14: a child asks the model after its root has ended")
        self.database.is_armed = armed
        said = next(each.content for each in state.messages if each.content.startswith("level"))
        level = int(said.split()[1])
        cost = round(chance.uniform(0.2, 1.0) * MOST_PER_CALL, 4)
        self.verdict.paid.setdefault((execution.execution_id, step), []).append(cost)
        if chance.random() < 0.02:
            raise LookupError("the model has failed for good")
        calls: tuple[ToolCall, ...] = ()
        if step <= 3 and chance.random() < (0.9 if step == 1 else 0.4):
            count, prompt = chance.randint(1, 3), f"level {level + 1}"
            if chance.random() < 0.2:
                calls = (ToolCall(id=f"{step}s", name="survey", args={"prompts": [prompt] * count}),)
            else:
                calls = tuple(ToolCall(id=f"{step}-{n}", name="spend", args={"prompt": prompt}) for n in range(count))
        return InferenceResponse(content=f"level {level} step {step}", tool_calls=calls, cost=cost)

    # --- the run ------------------------------------------------------------------------------------------------

    def run(self) -> TreeVerdict:
        """From the submit to the end of the tree, then the checks."""
        try:
            register(self.bench)
            root = self.root = self.bench.submit("level 0", budget=ExecutionBudget(max_cost=BUDGET))
            crash_points.install(self._pass)
            self._run(root)
            self._check(root)
        finally:
            crash_points.install(None)
            self.bench.close()
        self.verdict.counts.update(self.database.faults)
        return self.verdict

    def _start_worker(self) -> None:
        bench = self.bench
        bench.keeper.close()
        bench.keeper = LeaseKeeper(bench.store, bench.settings, monotonic=bench.clock.monotonic)
        bench.runner = bench.another_worker(*bench.agents)
        self.database.is_dead = False

    def _pass(self, point: str) -> None:
        self.verdict.counts[f"passed {point}"] += 1
        if self.database.is_armed and self.chance.random() < 0.01:
            self.verdict.counts[f"died at {point}"] += 1
            self.database.die()

    def _run(self, root: str) -> None:
        bench = self.bench
        for turn in range(self.turns):
            everybody = [root, *children_of(bench, root)]
            due = next(filter(None, map(self._due, self.chance.sample(everybody, len(everybody)))), None)
            if due is None:
                if all(self._has_ended(each) for each in everybody):
                    return
                bench.clock.go_on(30.0)
                self._resume(everybody)
                continue
            if self.interferes and self.chance.random() < 0.03:
                self._interfere(everybody)
                continue  # what was due may have changed
            self._step(due, is_safe=turn > self.turns // 2)
            bench.clock.go_on(self.chance.random() * 0.5)
        self.verdict.expect(False, f"I13: the tree has not ended after {self.turns} turns")

    def _due(self, session: str) -> StepRef | None:
        """The step of a session that a worker may claim now; None without one."""
        keys = self.bench.store.context.keys(session)
        (reply,) = self.bench.store.context.database.pipeline("test", [control_command(keys)])
        control, now_ms = ControlFields.read(reply), self.bench.clock.now_ms()
        is_due = control.phase in ("run", "wait") and control.not_before_ms <= now_ms and not control.is_held(now_ms)
        return control.ref(session) if is_due else None

    def _has_ended(self, session: str) -> bool:
        return self.bench.state(session).execution is not None and self.bench.execution(session).status.is_terminal()

    def _step(self, due: StepRef, *, is_safe: bool) -> None:
        """Run the step that is due, in a worker that may die in it; then its lease is over."""
        self.database.is_armed = not is_safe
        try:
            self.bench.runner.run_step(due)
        except WorkerDied:
            self.verdict.counts["worker died"] += 1
        except CeleryAgentsError as error:
            self.verdict.counts[f"step ended with {type(error).__name__}"] += 1
        finally:
            self.database.is_armed = False
        if self.database.is_dead:
            self._start_worker()
        self._check_covered(due)
        if self.bench.store.sessions.step_facts(due.session_id).claimed:
            self.bench.clock.go_on(self.bench.settings.lease_seconds + self.bench.settings.lease_grace_seconds + 0.1)

    def _check_covered(self, due: StepRef) -> None:
        """I15: a child is made only while its reservation is covered by what its parent has left at that moment."""
        known = self.known
        made = [each for each in children_of(self.bench, self.root) if each not in known]
        known.update(made)
        step = self.children.setdefault((due.execution_id, due.step), [])
        earlier, step[:] = list(step), [*step, *made]
        limit = self.bench.execution(due.session_id).budget.max_cost
        if not made or limit is None:
            return
        execution = self.bench.execution(due.session_id)
        paid = self.verdict.paid.get((due.execution_id, due.step), [0.0])[-1]
        taken = (execution.cost or 0.0) + (paid if execution.step_count < due.step else 0.0)
        for child in [*earlier, *made]:
            below = self.bench.execution(child)
            taken += (below.cost or 0.0) if below.status.is_terminal() else below.budget.max_cost or 0.0
        self.verdict.expect(taken <= limit + 1e-6, f"I15: a child was made when {taken:.4f} of {limit:.4f} were taken")
        self.verdict.counts["children made"] += len(made)
        self.verdict.counts["children made after others had ended"] += len(made) if earlier else 0

    def _interfere(self, everybody: list[str]) -> None:
        """Do what people do: stop a session, hold it, write to it."""
        session, what = self.chance.choice(everybody), self.chance.choice(("stop", "suspend", "message", "message"))
        if self._has_ended(session) or (what == "message" and session == everybody[0]):
            return  # a message that meets the end of a root begins an execution with a budget of its own
        self.verdict.counts[f"client {what}"] += 1
        with contextlib.suppress(ActionRefused):
            if what == "stop":
                self.bench.stop(session)
            elif what == "suspend":
                self.bench.store.sessions.suspend(session, reason="audit", by="operator", until_ms=None)
            else:
                self.bench.send(session, "more")

    def _resume(self, everybody: list[str]) -> None:
        """Do what an operator does: let go on what is held, and what is parked behind too many deaths."""
        for session in everybody:
            if self.bench.store.sessions.header(session).status == "parked":
                self.verdict.counts["parked"] += 1
                self.bench.retry(session)
            self.bench.store.sessions.resume(session, by="operator")

    # --- the checks ---------------------------------------------------------------------------------------------

    def _check(self, root: str) -> None:
        tree = self.bench.store.trees.tree(root)
        nodes, verdict = list(tree.walk()), self.verdict
        members = self.bench.store.trees.members(root)
        verdict.expect(len(nodes) == len(members) + 1, "I14: a child has no parent in the tree")
        own, in_flight, over, open_ends = 0.0, 0.0, 0, 0
        for node in nodes:
            types = Counter(event.type for event in self.bench.store.sessions.events(node.session_id))
            started, ended = types["child_started"], types["child_ended"]
            verdict.expect(started == len(node.children), f"I14: {started} starts of {len(node.children)} children")
            verdict.expect(ended <= started, f"I14: {ended} ends of {started} children")
            open_ends += started - ended
            execution = self.bench.execution(node.session_id)
            verdict.expect(execution.status.is_terminal(), f"I14: {node.session_id} is {execution.status}")
            over += execution.status.value != "completed"
            costs = [each.step.inference_response.cost or 0.0 for each in execution.step_executions]
            own += sum(costs)
            limit = execution.budget.max_cost
            cost = execution.cost or 0.0
            if limit is not None and costs and cost - costs[-1] <= limit < cost:  # its last call passed the limit
                in_flight += costs[-1]
            self._check_results(self.bench.state(node.session_id).messages)
        verdict.counts["sessions"] += len(nodes)
        verdict.counts["ends without an answer"] += open_ends
        verdict.expect(own <= BUDGET + in_flight + 1e-6, f"I15: spent {own:.4f} with {in_flight:.4f} in flight")
        self._check_charges(tree.cost or 0.0, own, over, open_ends)

    def _check_charges(self, charged: float, own: float, over: int, open_ends: int) -> None:
        """I15: what was spent is charged once."""
        paid = sum(sum(costs) for costs in self.verdict.paid.values())
        lost = sum(len(costs) - 1 for costs in self.verdict.paid.values())
        # A child that gave no end in time is charged its reservation, which the calls in flight may exceed.
        least = own - (over * MOST_PER_CALL if open_ends else 0.0) - 1e-6
        self.verdict.expect(charged >= least, f"I15: charged {charged:.4f} of {own:.4f}")
        if not open_ends:
            most = own + (lost + over) * MOST_PER_CALL + 1e-6
            self.verdict.expect(charged <= most, f"I15: charged {charged:.4f}, spent {own:.4f}")
        self.verdict.counts["lost answers"] += lost
        self.verdict.counts["beyond half of the budget"] += paid > BUDGET / 2

    def _check_results(self, messages: Sequence[Message]) -> None:
        """The provider sees one result for each call, in call order."""
        asked: list[str] = []
        for message in messages:
            if message.role is Role.TOOL:
                self.verdict.expect(bool(asked) and message.tool_call_id == asked[0], "order: a result out of order")
                asked = asked[1:]
                continue
            self.verdict.expect(not asked, f"order: {len(asked)} calls without a result")
            asked = [each.id for each in message.tool_calls]
        self.verdict.counts["children refused"] += sum(
            "are left for it: the calls before it used them" in each.content for each in messages
        )
        self.verdict.expect(not asked, f"order: {len(asked)} calls without a result at the end")


def run_trees(seeds: Sequence[int], turns: int = MOST_TURNS) -> Iterator[TreeVerdict]:
    """One verdict a seed, as they come."""
    for seed in seeds:
        yield TreeSimulation(seed, turns).run()


def search(first: int, count: int) -> Verdict:
    """The verdict over many trees, for the campaign."""
    found = Verdict()
    for verdict in run_trees(range(first, first + count)):
        found.counts.update({name: n for name, n in verdict.counts.items() if not name.startswith("died ")})
        found.counts["trees"] += 1
        for violation in verdict.violations:
            found.expect(False, violation.partition(":")[0], f"tree {verdict.seed}: {violation}")
    return found


def main(arguments: list[str] | None = None) -> int:
    """Run seeds, and print what was seen."""
    parser = argparse.ArgumentParser(prog="python -m fault.sim.trees", description=__doc__)
    parser.add_argument("--seed", type=int)
    parser.add_argument("--seeds", default="0:1000", help="from:to")
    options = parser.parse_args(arguments)
    first, _, last = options.seeds.partition(":")
    seeds = [options.seed] if options.seed is not None else range(int(first), int(last))
    counts: Counter[str] = Counter()
    failed, began = 0, time.perf_counter()
    for verdict in run_trees(seeds):
        counts.update(verdict.counts)
        if verdict.violations:
            failed += 1
            print(f"seed {verdict.seed}: {verdict.violations[:3]}", flush=True)
    took = time.perf_counter() - began
    shown = {name: count for name, count in sorted(counts.items()) if not name.startswith("died ")}
    print(f"{len(seeds)} trees, {failed} failed, {len(seeds) / took:.1f} trees/s\n{shown}")
    return int(failed > 0)


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    os._exit(code)
