"""Each cell of the table of docs/messages.md: a message with a mode meets a session in a state."""

from __future__ import annotations

import re
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Final

import pytest

from celery_agents.worker.errors import ActionRefused, SessionBusy

from support.asking import a_request, approve, ask, commit_leg, events
from support.child_sessions import as_child, child_request, end_child, wait_for_children
from support.store import Bench

pytestmark = pytest.mark.leaves_keys("sessions are left in the middle of an execution")

PAGE = Path(__file__).resolve().parents[2] / "docs" / "messages.md"
MODES = ("steer", "queue", "interrupt", "refuse")
Setup = Callable[[Bench], AbstractContextManager[None]]


def _rows() -> dict[str, dict[str, str]]:
    """The cells of the page by state and mode."""
    section = PAGE.read_text(encoding="utf-8").partition("## What happens when")[2].partition("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("| ")][1:]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return {state: dict(zip(MODES, rest, strict=True)) for state, *rest in cells}


TABLE: Final = _rows()


def _state(act: Callable[[Bench], object]) -> Setup:
    @contextmanager
    def set_up(bench: Bench) -> Generator[None]:
        act(bench)
        yield

    return set_up


def _hold_queue(bench: Bench) -> None:
    claimed = bench.claim()
    bench.message("queued", "q0", when="queue")
    bench.commit(claimed, failed=True)


def _stop_while_it_runs(bench: Bench) -> None:
    bench.claim()
    bench.stop()


@contextmanager
def _child(bench: Bench) -> Generator[None]:
    request = child_request(bench)
    wait_for_children(bench, bench.claim(), request)
    with as_child(bench, request):
        bench.claim()
        yield


@contextmanager
def _ended_child(bench: Bench) -> Generator[None]:
    request = child_request(bench)
    wait_for_children(bench, bench.claim(), request)
    end_child(bench, request)
    with as_child(bench, request):
        yield


STATES: Final[dict[str, Setup]] = {
    "runs, and a worker has its step": _state(lambda bench: bench.claim()),
    "runs, and no worker has begun its step": _state(lambda _: None),
    "waits for an answer": _state(lambda bench: ask(bench, a_request(bench))),
    "waits for an answer whose place a message takes": _state(
        lambda bench: ask(bench, a_request(bench, while_waiting="withdraw"))
    ),
    "is suspended": _state(lambda bench: bench.store.sessions.suspend(bench.session, reason="a look")),
    "is being stopped": _state(_stop_while_it_runs),
    "is parked": _state(lambda bench: bench.store.steps.park(bench.ref(), "nobody can run it")),
    "has no execution": _state(lambda bench: bench.commit(bench.claim(), final=True)),
    "has no execution, and its queue is held": _state(_hold_queue),
    "is a child that runs": _child,
    "is a child that has ended": _ended_child,
}


def test_the_page_has_each_state() -> None:
    assert list(TABLE) == list(STATES)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("state", STATES)
def test_a_message_meets_a_session(bench: Bench, state: str, mode: str) -> None:
    cell = TABLE[state][mode]
    wanted = re.match(r"`(\w+)`|(refused)", cell)
    assert wanted is not None, cell
    with STATES[state](bench):
        before = (bench.said, bench.queue)
        if wanted[1] in ("starts", "joins", "queued", "held"):
            sent = bench.message("the message", "m1", when=mode)
            assert sent.placed == wanted[1]
            _check_place(bench, cell)
            return
        expected = SessionBusy if wanted[1] == "SessionBusy" else ActionRefused
        with pytest.raises(expected) as refused:
            bench.message("the message", "m1", when=mode)
        assert isinstance(refused.value, SessionBusy) == (wanted[1] == "SessionBusy")
        assert (bench.said, bench.queue) == before


def _check_place(bench: Bench, cell: str) -> None:
    """The message is where the cell says, and nowhere else."""
    waits = [each.id for each in bench.store.sessions.read_waiting(bench.session).inbox]
    queued, held = bench.queue
    is_said = "the message" in bench.said
    assert (is_said, *waits, *queued).count("m1") + is_said == 1
    assert ("at that step's commit" in cell or "behind the answer" in cell) <= ("m1" in waits)
    assert ("closes the request" in cell) == ("request_cancelled" in events(bench))
    assert cell.startswith(("`starts`", "`joins` at once")) <= is_said
    assert cell.startswith(("`queued`", "`held`")) == ("m1" in queued)
    assert ("held" in cell and "held by the stop" not in cell) == bool(held)


def test_a_message_to_a_suspended_session_begins_nothing_before_the_resume(bench: Bench) -> None:
    bench.store.sessions.suspend(bench.session, reason="a look")
    bench.message("more", "m1")
    bench.message("later", "m2", when="queue")
    assert bench.due() is not None
    bench.store.sessions.resume(bench.session)
    bench.commit(bench.claim(), final=True)
    assert bench.said == ["first", "more", "later"]


def test_a_message_behind_an_answer_joins_with_the_step_that_waited(bench: Bench) -> None:
    request = a_request(bench)
    ask(bench, request)
    bench.message("more", "m1")
    assert bench.said == ["first"]
    approve(bench, request)
    commit_leg(bench, bench.claim())
    assert bench.said == ["first", "more"]
