"""A rewind makes an earlier state the next version; all states before it stay readable, on every store."""

from __future__ import annotations

from typing import Any

import pytest

from celery_agents.worker.engine import retry_transition, stop_transition
from celery_agents.worker.errors import (
    ActionRefused,
    IdempotencyMismatch,
    InvalidTransition,
    SessionConflict,
    SessionNotFound,
)
from celery_agents.worker.state import AgentState, ExecutionStatus
from celery_agents.worker.store.database import Database
from celery_agents.worker.store.sessions.past_reads import StepAddress

from support.asking import ask, header
from support.points import Points
from support.random_past import Past
from support.store import Bench

pytestmark = pytest.mark.leaves_keys("executions go on")


def read(bench: Bench, address: str) -> AgentState:
    execution, number = address.split(":")
    return bench.store.sessions.state_at(bench.session, StepAddress(int(number), execution))


def rewind(bench: Bench, address: str, **options: Any) -> int:
    version = options.pop("version", None) or header(bench).version
    past = read(bench, address)
    asked = options.pop("asked", address)
    return bench.store.sessions.rewind(bench.session, past, asked, version=version, **{"by": "ann", **options})


def stored(bench: Bench) -> AgentState:
    return bench.store.sessions.load(bench.session).state


def check_rewound(now: AgentState, then: AgentState) -> None:
    """Everything is as it was then, but for the executions."""
    for name, section in then.store.sections.items():
        assert now.store.section(name).messages == section.messages
    extra = [name for name in now.store.sections if name not in then.store.sections]
    assert all(not now.store.section(name).messages for name in extra)
    assert now.context.metadata == then.context.metadata
    assert (now.system_prompt, now.llm_config) == (then.system_prompt, then.llm_config)
    one, other = now.to_dict()["parts"], then.to_dict()["parts"]
    assert (one or {}).get("values", {}) == (other or {}).get("values", {})


@pytest.mark.parametrize("seed", [*range(4), *(pytest.param(seed, marks=pytest.mark.long) for seed in range(4, 8))])
def test_a_session_is_rewound_again_and_again_and_every_state_stays_readable(bench: Bench, seed: int) -> None:
    past = Past(bench, seed)
    for _ in range(4):
        steps = past.dice.randrange(2, 7)
        for number in range(1, steps + 1):
            past.random_step(number, final=number == steps)
        if past.dice.random() < 0.3:
            past.act()
        for _ in range(past.dice.randrange(3)):
            address = past.dice.choice(list(past.saved))
            rewind(bench, address)
            check_rewound(stored(bench), past.saved[address])
            past.check()
        bench.execution = bench.message("next").execution_id
    past.check()


def two_executions(bench: Bench) -> Past:
    past = Past(bench, 0)
    for final in (False, False, True):
        past.step(len(past.saved) + 1, lambda s: s.with_metadata("a", s.step_count), final=final)
    bench.execution = bench.message("next").execution_id
    past.step(1, lambda state: state.with_metadata("a", "b"))
    past.step(2, final=True)
    return past


def test_what_was_spent_and_recorded_stays_and_one_event_tells_of_it(bench: Bench) -> None:
    past = two_executions(bench)
    first, before = next(iter(past.saved)), stored(bench)
    record = bench.store.sessions.outcome(bench.session, bench.execution)
    version = rewind(bench, first)
    after = stored(bench)
    assert after.execution is not None
    assert before.execution is not None
    assert (after.execution.usage, after.execution.cost) == (before.execution.usage, before.execution.cost)
    assert (after.execution.step_count, after.execution_count) == (2, before.execution_count)
    assert bench.store.sessions.outcome(bench.session, bench.execution) == record
    assert (header(bench).version, header(bench).status) == (version, "idle")
    event = bench.store.sessions.events(bench.session)[-1]
    assert (event.type, event.data) == (
        "rewound", {"to": first, "from": f"{bench.execution}:2", "version": version, "by": "ann"},
    )  # fmt: skip
    assert bench.database("ZRANGE", bench.shard.callbacks, 0, -1) == []


def test_a_rewound_session_is_listed_and_found_by_its_first_message(bench: Bench) -> None:
    past = two_executions(bench)
    before = bench.store.sessions.summaries([bench.session])[bench.session].first_message
    assert before
    rewind(bench, next(iter(past.saved)))
    found = bench.store.sessions.summaries([bench.session, "s-other"])
    assert found[bench.session].first_message == before


def test_the_steps_of_all_executions_are_read_without_the_conversation(bench: Bench) -> None:
    names: list[str] = []
    for turn in range(3):  # each step is packed over its own message
        names.append(bench.execution)
        bench.commit(bench.claim(), text=f"{turn}" + "x" * 3000)
        bench.commit(bench.claim(2), final=True, text=f"{turn}" + "y" * 3000)
        bench.execution = bench.message("next").execution_id
    bench.commit(bench.claim(), final=True, text="z" * 3000)
    first = StepAddress(1, names[0])
    before = list(bench.store.sessions.steps_after(bench.session, first))
    assert len(before) == 6
    rewind(bench, f"{names[0]}:1")
    for store in (bench.store, bench.another()):
        after = list(store.sessions.steps_after(bench.session, first))
        assert [(name, step.inference_response) for name, step in after] == [
            (name, step.inference_response) for name, step in before
        ]


def test_the_next_message_goes_on_from_there(bench: Bench) -> None:
    past = two_executions(bench)
    first = next(iter(past.saved))
    rewind(bench, first)
    bench.execution = bench.message("once more").execution_id
    past.step(1, final=True)
    said = [message.content for message in stored(bench).store.section().messages]
    assert said == [*[each.content for each in past.saved[first].store.section().messages], "once more", "answer 1"]
    past.check()
    assert header(bench).status == "completed"


@pytest.mark.parametrize("end", ["failed", "stopped"])
def test_a_rewound_execution_is_not_retried_and_is_no_failed_one(bench: Bench, end: str) -> None:
    past = Past(bench, 0)
    past.step(1)
    past.step(2)
    if end == "stopped":
        bench.store.sessions.stop(bench.session, None, stop_transition)
    else:
        from celery_agents.worker.state import ErrorInfo
        from celery_agents.worker.store import NextState

        claimed = bench.claim(3)
        failed = lambda s: NextState(s.state.with_failure(ErrorInfo(kind="broken", message="broken")))  # noqa: E731
        bench.store.steps.commit(claimed.claim, claimed.loaded, failed, results={}, keep_claim=False)
        assert bench.database("ZSCORE", bench.shard.failed, bench.session) is not None
    rewind(bench, f"{bench.execution}:1")
    assert bench.database("ZSCORE", bench.shard.failed, bench.session) is None
    before = bench.snapshot()
    with pytest.raises(InvalidTransition, match="rewound"):
        bench.store.sessions.retry(bench.session, retry_transition(None))
    assert bench.snapshot() == before
    assert bench.message("more").outcome == "started"
    assert stored(bench).status is ExecutionStatus.PENDING


def test_what_runs_waits_or_was_saved_meanwhile_is_not_rewound(bench: Bench) -> None:
    past = Past(bench, 0)
    past.step(1)
    address = f"{bench.execution}:1"
    before = bench.snapshot()
    with pytest.raises(ActionRefused, match="stop it"):
        rewind(bench, address)
    assert bench.snapshot() == before
    ask(bench, step=2)
    with pytest.raises(ActionRefused, match="stop it"):
        rewind(bench, address)
    bench.session = "nobody"
    with pytest.raises(SessionNotFound):
        bench.store.sessions.rewind(bench.session, past.saved[address], address, version=1)


def test_another_version_is_a_conflict(bench: Bench) -> None:
    two_executions(bench)
    version = header(bench).version
    with pytest.raises(SessionConflict) as caught:
        rewind(bench, f"{bench.execution}:1", version=version - 1)
    assert (caught.value.expected, caught.value.stored) == (version - 1, version)


def test_a_message_between_look_and_write_is_not_lost(bench: Bench) -> None:
    two_executions(bench)
    bench.spy.before(Points.REWIND_EXEC, lambda: bench.message("in between"))
    with pytest.raises(SessionConflict):
        rewind(bench, f"{bench.execution}:1")
    assert stored(bench).messages[-1].content == "in between"


@pytest.mark.parametrize("point", [Points.REWIND_READ, Points.REWIND_EXEC])
def test_a_rewind_whose_reply_is_lost_is_made_once(bench: Bench, point: str) -> None:
    two_executions(bench)
    version = header(bench).version
    bench.spy.lose(point)
    assert rewind(bench, f"{bench.execution}:1") == version + 1
    assert header(bench).version == version + 1
    assert [each.type for each in bench.store.sessions.events(bench.session)].count("rewound") == 1


def test_all_keys_have_a_life_behind_a_rewind(database: Database) -> None:
    bench = Bench(database)
    bench.submit()
    two_executions(bench)
    rewind(bench, f"{bench.execution}:1")
    keys = bench.store.context.keys(bench.session)
    names = [
        keys.session,
        keys.ctl,
        keys.events,
        keys.old_values,
        keys.section("messages", 1),
        keys.steps(bench.execution),
    ]
    assert [name for name in names if bench.database("PTTL", name) <= 0] == []
    assert bench.database("EXISTS", keys.section("messages", 0)) == 0


def test_an_operation_that_comes_again_rewinds_nothing_that_came_since(bench: Bench) -> None:
    two_executions(bench)
    first, last = bench.execution, header(bench).version
    rewind(bench, f"{first}:1", operation_id="once")
    bench.execution = bench.message("more").execution_id
    bench.commit(bench.claim(), final=True)
    before = bench.snapshot()
    assert rewind(bench, f"{first}:1", operation_id="once", version=last) == header(bench).version
    with pytest.raises(IdempotencyMismatch, match=f"rewound to {first}:1"):
        rewind(bench, f"{first}:2", operation_id="once")
    assert bench.snapshot() == before


def test_the_same_request_is_known_whatever_its_number_means_by_now(bench: Bench) -> None:
    two_executions(bench)
    first = bench.execution
    rewind(bench, f"{first}:1", asked="1", operation_id="once")
    bench.execution = bench.message("more").execution_id
    bench.commit(bench.claim(), final=True)
    before = bench.snapshot()
    assert rewind(bench, f"{bench.execution}:1", asked="1", operation_id="once") == header(bench).version
    sessions = bench.store.sessions
    assert [sessions.find_rewind(bench.session, name, "1") for name in ("once", "another")] == [True, False]
    with pytest.raises(IdempotencyMismatch, match="rewound to 1"):
        sessions.find_rewind(bench.session, "once", "2")
    with pytest.raises(SessionNotFound):
        sessions.find_rewind("nobody", "once", "1")
    assert bench.snapshot() == before
