"""What `show` and `list` print of a session."""

from __future__ import annotations

import re
from dataclasses import replace

from celery_agents.tasks.cli.session_views import Beside, row, session_lines, step_lines, step_numbers
from celery_agents.tasks.client.json_values import session_value
from celery_agents.tasks.observability.listed_sessions import ListedSession, listed_value
from celery_agents.worker.moments import unix_ms
from celery_agents.worker.state import (
    AgentState,
    AgentStep,
    AnswerRecord,
    AnswerVerb,
    ErrorInfo,
    ExecutionStatus,
    FinishReason,
    InferenceResponse,
    InferenceUsage,
    Message,
    RequestKind,
    RequestResolution,
    RequestStatus,
    RequestSummary,
    StopReason,
    StopSignal,
    ToolOutcome,
)
from celery_agents.worker.store import FoundRequest, Header, InboxKind, Operation, SessionState, SessionSummary

from support.states import at, call, executed, running

HEADER = Header(
    session_id="s1", agent="clerk", status=SessionState.COMPLETED, execution_id="e1", step=3, version=4,
    created_ms=0, updated_ms=0,
)  # fmt: skip
LONG = "line one\nnow: not this program\n" + "x" * 5_000


def _state() -> AgentState:
    one, other = call("search", {"query": "a" * 500}, "c1"), call("refund", {"cents": 400}, "c2")
    first = AgentStep.from_inference(
        InferenceResponse(
            content="let me look", tool_calls=(one, other), usage=InferenceUsage(input=400, output=12), cost=0.0125,
            model="gpt-test", thinking="hm",
        ),
        [
            executed(one, value="found " + "y" * 500),
            executed(other, ToolOutcome.ERROR, error=ErrorInfo(kind="tool_error", message="no such account"), index=1),
        ],
    )  # fmt: skip
    second = AgentStep.from_inference(InferenceResponse(content=LONG, finish_reason=FinishReason.LENGTH), number=2)
    state = running().with_user_message("hello").with_current_step(first, now=at(1))
    return state.with_current_step(second, now=at(3)).with_execution_completed(now=at(4))


def test_an_end_that_no_replica_is_known_to_have_is_told() -> None:
    told = "its end is not confirmed by a replica: a failover may forget it, and its result is not given yet"
    shown = {
        confirmed: session_lines(replace(HEADER, confirmed=confirmed), _state(), "") for confirmed in (False, True)
    }
    assert (told in shown[False], told in shown[True]) == (True, False)


def test_a_session_is_shown_step_by_step_with_its_calls() -> None:
    lines = session_lines(HEADER, _state(), "")
    assert "step 1: gpt-test  " in next(line for line in lines if line.startswith("step 1"))
    assert "412 tokens  $0.0125" in next(line for line in lines if line.startswith("step 1"))
    assert "    let me look" in lines
    (search,) = [line for line in lines if line.startswith('    call search({"query":"aaa')]
    assert search.endswith(": ok  1.00 s")
    assert max(len(line) for line in lines if "call search" in line or "found" in line) < 260
    refund = '    call refund({"cents":400}): error  1.00 s: tool_error: no such account'
    assert refund in lines
    (second,) = [line for line in lines if line.startswith("step 2")]
    assert "cut off" in second


def test_what_others_wrote_never_stands_in_the_first_column() -> None:
    lines = session_lines(HEADER, _state(), "it waits for a slot: 1 of 1 are busy")
    assert [line for line in lines if line.startswith("now:")] == ["now: it waits for a slot: 1 of 1 are busy"]
    assert not any(line.startswith("now: not") for line in session_lines(HEADER, _state(), "", verbose=True))


def test_names_from_a_model_and_a_provider_stay_on_their_line_and_steer_nothing() -> None:
    forged = "x\nnow: not this program\x1b[2J\u202e"
    asked, refused = call(forged, {}, "c1"), call(forged, {}, "c2")
    error = ErrorInfo(kind="unknown_tool", message=forged)
    step = AgentStep.from_inference(
        InferenceResponse(content="hm", tool_calls=(asked, refused), model=forged),
        [executed(asked, ToolOutcome.ERROR, error=error)],
    )
    signal = StopSignal(reason=StopReason.USER_REQUESTED, message=forged, source=forged)
    state = running().with_user_message("hello").with_current_step(step, now=at(1)).with_stop_signal(signal, now=at(2))
    for verbose in (False, True):
        lines = session_lines(
            HEADER, state.with_execution_status(ExecutionStatus.STOPPED, now=at(3)), "", verbose=verbose
        )
        printed = "\n".join(lines)
        assert printed.isprintable() is False  # its line breaks
        assert printed.replace("\n", "").isprintable()
        assert "now: not" in printed
        assert not any(line.startswith("now:") for line in printed.splitlines())


def test_one_step_and_verbose_shorten_nothing() -> None:
    assert step_numbers(_state()) == [1, 2]
    text = "\n".join(step_lines(_state(), 1))
    assert "a" * 500 in text
    assert "y" * 500 in text
    assert "thinking" in text
    assert "step 2" not in text
    assert "x" * 5_000 in "\n".join(session_lines(HEADER, _state(), "", verbose=True))
    assert "x" * 5_000 not in "\n".join(session_lines(HEADER, _state(), ""))


def test_a_session_as_json_holds_its_state_and_its_reason() -> None:
    value = session_value(HEADER, _state(), "because")
    assert (value["reason"], value["status"], value["state"]["execution"]["status"]) == (
        "because", "completed", "completed",
    )  # fmt: skip


def test_a_row_has_everything_one_looks_for() -> None:
    summary = SessionSummary(first_message="Please refund\nmy order " + "z" * 100, steps=2, tokens=70, cost=0.5)
    listed = ListedSession(header=HEADER, summary=summary, reason="it waits for a slot")
    session, agent, status, steps, cost, _age, first, reason = row(listed)
    assert (session, agent, status, steps, cost) == ("s1", "clerk", "completed", "2", "$0.5000")
    assert first.startswith("Please refund my order zz")
    assert len(first) == 40
    assert reason == "it waits for a slot"
    value = listed_value(listed)
    assert (value["first_message"], value["steps"], value["tokens"]) == (summary.first_message, 2, 70)
    unreadable = listed_value(ListedSession(header=HEADER, summary=None, reason=""))
    assert (unreadable["steps"], unreadable["tokens"], unreadable["cost"]) == (None, None, None)
    assert row(ListedSession(header=HEADER, summary=None, reason=""))[3:5] == ("", "")


def test_who_answered_is_shown_with_the_call_that_asked() -> None:
    asked = executed(call("refund", {}, "c1"), value="done").with_resolutions(
        (
            RequestResolution(
                request_id="r1", kind=RequestKind.APPROVAL, status=RequestStatus.ANSWERED, verb=AnswerVerb.APPROVE,
                by="ada\x1b[2J", note="seen", at_ms=0,
            ),
            RequestResolution(
                request_id="r2", kind=RequestKind.QUESTION, status=RequestStatus.EXPIRED, verb=AnswerVerb.DENY, at_ms=0,
                reason="too late", round=1,
            ),
            *(
                RequestResolution(
                    request_id=f"r-{verb}", kind=RequestKind.EXTERNAL, status=RequestStatus.ANSWERED, verb=verb,
                    at_ms=0,
                )
                for verb in (AnswerVerb.COMPLETE, AnswerVerb.FAIL, AnswerVerb.CANCEL, AnswerVerb.PASS_ON)
            ),
        )
    )  # fmt: skip
    response = InferenceResponse(content="", tool_calls=(asked.tool_call,))
    state = running().with_user_message("go").with_current_step(AgentStep.from_inference(response, [asked]), now=at(1))
    lines = session_lines(HEADER, state.with_current_step_completed(now=at(2)), "")
    (approved,) = [line for line in lines if "approved" in line]
    assert re.fullmatch(r"    refund: approval approved by ada\\x1b\[2J, \d+d ago: seen", approved)
    others = [line.split(",")[0] for line in lines if "external" in line]
    assert others == [f"    refund: external {done}" for done in ("completed", "failed", "cancelled", "passed on")]
    (denied,) = [line for line in lines if "denied" in line]
    assert re.fullmatch(r"    refund: question denied, \d+d ago: too late", denied)


def test_the_time_of_a_step_that_has_waited_is_said_to_be_that_behind_its_wait() -> None:
    asked = executed(call("refund", {}, "c1"), value="done").with_resolutions(
        (
            RequestResolution(
                request_id="r1", kind=RequestKind.APPROVAL, status=RequestStatus.ANSWERED, verb=AnswerVerb.APPROVE,
                asked_at_ms=unix_ms(at(1)), at_ms=unix_ms(at(60)),
            ),
        )
    )  # fmt: skip
    step = AgentStep.from_inference(InferenceResponse(model="gpt-test", tool_calls=(asked.tool_call,)), [asked])
    state = (
        running().with_user_message("go").with_current_step(step, now=at(61)).with_current_step_completed(now=at(62))
    )
    assert "step 1: gpt-test  1.00 s since it waited" in session_lines(HEADER, state, "")


def test_an_answer_to_a_step_that_still_waits_is_shown_and_so_are_the_messages_behind_it() -> None:
    summary = RequestSummary(
        id="r1", session_id="s1", execution_id="e1", step=1, kind=RequestKind.APPROVAL, agent="clerk", tool="refund",
        call="refund", asked_at_ms=0,
    )  # fmt: skip
    answered = FoundRequest(
        summary=summary, status=RequestStatus.ANSWERED,
        answer=AnswerRecord(verb=AnswerVerb.APPROVE, by="ada", at_ms=0),
    )  # fmt: skip
    waiting = [
        Operation("m1", InboxKind.MESSAGE, {"message": Message.user("and\nnow: not this program").to_dict()}),
        Operation("change-1", InboxKind.SYSTEM_PROMPT, {"prompt": "p"}),
    ]
    beside = Beside([FoundRequest(summary=summary, status=RequestStatus.OPEN), answered], waiting)
    lines = session_lines(HEADER, _state(), "", beside)
    assert [line for line in lines if re.fullmatch(r"refund: approval approved by ada, \d+d ago", line)]
    assert lines[-3:] == [
        "user, waits for the step: and", "    now: not this program", "waits for the step: system prompt",
    ]  # fmt: skip
