"""Hundreds of seeds of the simulation, and every mutant found by it.

A failing seed is replayed, with its story, by `cd tests && python -m fault.sim.run --seed N`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

import pytest

from celery_agents.worker.agent import Agent
from celery_agents.worker.capabilities import Reasoning
from celery_agents.worker.hooks import Hook, HookContext, HookPoint

from fault.sim.database import StoreContext
from fault.sim.deleting import unseen_deleting
from fault.sim.holding import unseen_holding
from fault.sim.interrupting import unseen_interrupting
from fault.sim.limiting import unseen_limiting
from fault.sim.mutants import Mutant, hunt, mutants_by_kind
from fault.sim.rewinding import unseen_rewinding
from fault.sim.run import a_redis, run_seeds
from fault.sim.simulation import Simulation
from fault.sim.substitutes import EditedDatabase, Substitutes
from fault.sim.vacuity import unknown, unseen, unseen_capable, unseen_smart, unseen_waiting
from fault.sim.world import Tally

SEEDS = 450
WAITING_SEEDS = 250
CAPABLE_SEEDS = 100
DELETING_SEEDS = 100
SMART_SEEDS = 100
LIMITING_SEEDS = 100
REWINDING_SEEDS = 80
INTERRUPTING_SEEDS = 100
HOLDING_SEEDS = 60
TOGETHER_SEEDS = 60
# Not seen in every few hundred seeds; the campaign's 60 000 seeds must show them too.
RARE = {
    "answer StoreUnavailable",
    "answer mode started",
    "answer not_yet",
    "answer restarted",
    "answer swept queued",
    "answer message again",
    "round trip submit.read",
    "round trip submit.exec",
    "round trip stop.now",
    "round trip load.all",
    "round trip journal.own",
    "round trip journal.full",
    "round trip restore.exec",
    "answer stop.exec aborted",
    "answer journal.answer refused",
    "answer commit.exec refused",
    "answer poison parked",
    "answer submit again",
}
RARE_IN_LIMITING = {"answer raised in time"}
RARE_IN_HOLDING = {"answer holder keep refused", "answer taken over"}
RARE_IN_WAITING = {
    "answer expired approve",
    "answer expired answer",
    "answer expired pass_on",
    "answer answer refused denied",
    "answer answer refused expired",
    "answer answer refused passed_on",
    "answer suspend.exec aborted",
    "answer resume.exec aborted",
}


HUNTED = [
    pytest.param(kind, mutant, id=f"{kind}-{mutant.name}" if kind else mutant.name)
    for kind, mutants in mutants_by_kind().items()
    for mutant in mutants
]


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with a_redis() as found:
        yield found


def run_all(url: str, seeds: int, *kinds: str) -> Tally:
    """Run seeds of kinds, of which none may break anything, and give what they have seen."""
    tally = Tally()
    for verdict in run_seeds(url, range(seeds), tally, **dict.fromkeys(kinds, True)):
        story = "\n".join(verdict.story)
        replay = " ".join(
            ["cd tests && python -m fault.sim.run --seed", str(verdict.seed), *(f"--{each}" for each in kinds)]
        )
        assert not verdict.violations, f"seed {verdict.seed}: {verdict.violations[0]}\n{replay}\n{story}"
    return tally


def expect_all_seen(tally: Tally, missing: Iterable[str], seeds: str) -> None:
    """Nothing that these seeds are about was tested in vain, and the fault plan knows each round trip."""
    unseen_answers = sorted(missing)
    assert not unseen_answers, f"never happened in {seeds}: {unseen_answers}"
    assert not list(unknown(tally)), f"round trips without a place in the fault plan: {list(unknown(tally))}"


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_no_seed_breaks_an_invariant(url: str) -> None:
    tally = run_all(url, SEEDS)
    expect_all_seen(tally, set(unseen(tally)) - RARE, f"{SEEDS} seeds")


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_no_seed_whose_sessions_ask_breaks_an_invariant(url: str) -> None:
    tally = run_all(url, WAITING_SEEDS, "waiting")
    expect_all_seen(tally, set(unseen_waiting(tally)) - RARE_IN_WAITING, f"{WAITING_SEEDS} seeds whose sessions ask")


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_no_seed_in_which_sessions_are_deleted_leaves_anything_or_brings_one_back(url: str) -> None:
    tally = run_all(url, DELETING_SEEDS, "deleting")
    expect_all_seen(tally, unseen_deleting(tally), f"{DELETING_SEEDS} seeds")


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_no_seed_whose_agents_have_every_capability_breaks_an_invariant_or_a_part(url: str) -> None:
    tally = run_all(url, CAPABLE_SEEDS, "capable")
    assert not list(unseen_capable(tally)), f"never happened in {CAPABLE_SEEDS} seeds: {list(unseen_capable(tally))}"


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_no_seed_whose_agents_have_long_tasks_breaks_an_invariant_or_a_part(url: str) -> None:
    tally = run_all(url, SMART_SEEDS, "smart")
    expect_all_seen(tally, unseen_smart(tally), f"{SMART_SEEDS} seeds")


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_no_seed_in_which_budgets_are_changed_loses_a_change_or_decides_by_an_old_one(url: str) -> None:
    tally = run_all(url, LIMITING_SEEDS, "limiting")
    missing = set(unseen_limiting(tally)) - RARE_IN_LIMITING
    expect_all_seen(tally, missing, f"{LIMITING_SEEDS} seeds that change budgets")


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_no_seed_in_which_sessions_are_rewound_loses_or_doubles_anything(url: str) -> None:
    tally = run_all(url, REWINDING_SEEDS, "rewinding")
    expect_all_seen(tally, unseen_rewinding(tally), f"{REWINDING_SEEDS} seeds that rewind sessions")


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_no_seed_in_which_messages_interrupt_loses_one_or_begins_what_it_must_not(url: str) -> None:
    tally = run_all(url, INTERRUPTING_SEEDS, "interrupting")
    expect_all_seen(tally, unseen_interrupting(tally), f"{INTERRUPTING_SEEDS} seeds in which messages interrupt")


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_no_seed_under_concurrency_limits_lets_too_many_run_or_forgets_who_waits(url: str) -> None:
    tally = run_all(url, HOLDING_SEEDS, "holding")
    expect_all_seen(tally, set(unseen_holding(tally)) - RARE_IN_HOLDING, f"{HOLDING_SEEDS} seeds under limits")


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_no_seed_breaks_an_invariant_where_clients_do_everything_under_limits(url: str) -> None:
    tally = run_all(url, TOGETHER_SEEDS, "waiting", "deleting", "limiting", "rewinding", "interrupting", "holding")
    each = ("waited", "delete changed", "budget changed", "rewind changed", "claimed interrupted", "holder taken")
    expect_all_seen(tally, [name for name in each if not tally.answers[name]], f"{TOGETHER_SEEDS} seeds of all kinds")


class _Doubling(Reasoning):
    """Records the first step a second time, in the hooks before the second one."""

    def hooks(self) -> Sequence[Hook]:
        return (*super().hooks(), Hook(HookPoint.BEFORE_STEP, self._record_again, priority=-100))

    def _record_again(self, context: HookContext) -> HookContext | None:
        steps = context.state.run.reasoning_steps
        if not steps or len(steps) != context.state.step_count or context.step != 2:
            return None
        return context.changed(state=context.state.run.with_reasoning_step(steps[-1]))


def test_the_simulation_finds_a_reasoning_step_that_is_recorded_twice(url: str) -> None:
    def spoil(agents: Sequence[Agent]) -> Sequence[Agent]:
        return [replace(each, capabilities=[_Doubling(), *each.capabilities[1:]]) for each in agents]

    context, spoiled = StoreContext(url), Substitutes(agents=spoil)
    for seed in range(200):
        verdict = Simulation(context, seed, spoiled, capable=True).run()
        if verdict.violations:
            assert verdict.violations[0].invariant == "parts"
            return
    raise AssertionError("nobody saw that a reasoning step is there twice")


def test_a_seed_gives_the_same_run_again(url: str) -> None:
    for seed in (3, 17, 91):
        one, other = (next(iter(run_seeds(url, [seed], Tally()))) for _ in range(2))
        assert one.facts == other.facts
        assert one.tally == other.tally
        # Names made from random ids differ, and nothing else.
        assert [line.split()[0] for line in one.story] == [line.split()[0] for line in other.story]


def test_what_stands_in_place_of_the_product_and_changes_nothing_breaks_nothing(url: str) -> None:
    """Else a mutant could be found for the sake of how it is put in."""
    context, unchanged = StoreContext(url), Substitutes(EditedDatabase)
    for seed in range(40):
        verdict = Simulation(context, seed, unchanged).run()
        assert not verdict.violations, f"seed {seed}: {verdict.violations[0]}"


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.timeout(200)
@pytest.mark.parametrize(("kind", "mutant"), HUNTED)
def test_the_simulation_finds(kind: str, mutant: Mutant, url: str) -> None:
    found = hunt(mutant, url, seeds=4000, seconds=90.0, **({kind: True} if kind else {}))
    assert found is not None, f"the mutant survives, although {mutant.breaks}"
