"""AG-UI: a real `serve`, a real worker, and a reader that knows nothing but the official types."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Iterator, Sequence
from typing import Any

import httpx
import pytest
from ag_ui import core
from pydantic import TypeAdapter

from support.agents import call, plan
from support.lab import Lab
from support.serve_process import ServeProcess
from support.tree_agents import delegate
from support.wait import wait_until

pytestmark = [pytest.mark.timeout(240), pytest.mark.filterwarnings("ignore:no worker has registered")]

EVENT: TypeAdapter[Any] = TypeAdapter(core.Event)
ADMIN, SUBMIT = "token-of-admin-0123456789", "token-of-submit-0123456789"
ENV = {"CELERY_AGENTS_TOKEN_SECRET": "not-a-secret-but-long-enough"}
AGENTS = "support.agents,support.tree_agents,support.asking_agents,support.interrupted_agents"


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    with Lab(tmp_path_factory.mktemp("agui") / "lab", agents=AGENTS, env=ENV) as started:
        started.worker()
        yield started


@pytest.fixture(scope="module")
def served(lab: Lab) -> Iterator[ServeProcess]:
    env = {**ENV, "CELERY_AGENTS_HTTP_TOKEN_SECRETS": f"{ADMIN}:admin,{SUBMIT}:submit"}
    process = ServeProcess(lab.directory / "serve", lab.store_url, env)
    process.start()
    yield process
    process.end()


@pytest.fixture
def http(served: ServeProcess) -> Iterator[httpx.Client]:
    with served.http(ADMIN) as client:
        yield client


class Run:
    """What a reader got of a run.

    Attributes:
        frames: (cursor, event); the cursor is "" where the stream gave none.
    """

    def __init__(self, frames: list[tuple[str, Any]]) -> None:
        self.frames = frames

    @property
    def events(self) -> list[Any]:
        return [event for _, event in self.frames]

    @property
    def kinds(self) -> list[str]:
        return [event.type.value for event in self.events]

    @property
    def text(self) -> str:
        return "".join(event.delta for event in self.of("TEXT_MESSAGE_CONTENT"))

    @property
    def outcome(self) -> Any:
        return self.events[-1].outcome

    def of(self, kind: str) -> list[Any]:
        return [event for event in self.events if event.type.value == kind]


def body(thread: str, text: str | None, run: str | None = None, **more: Any) -> dict[str, Any]:
    messages = [] if text is None else [{"id": uuid.uuid4().hex, "role": "user", "content": text}]
    return {"threadId": thread, "runId": run or uuid.uuid4().hex, "messages": messages, "tools": [], **more}


def stream(http: httpx.Client, agent: str, given: dict[str, Any], *, after: str = "", most: int = 10_000) -> Run:
    """Run an agent and read until the end, or until so many events."""
    frames: list[tuple[str, Any]] = []
    headers = {"Last-Event-ID": after} if after else {}
    with http.stream("POST", f"/agui/{agent}", json=given, headers=headers) as response:
        assert response.status_code == 200, response.read()
        assert response.headers["content-type"].startswith("text/event-stream")
        pending = ""
        for piece in response.iter_text():
            pending += piece
            *whole, pending = pending.split("\n\n")
            for frame in whole:
                fields = dict(line.split(": ", 1) for line in frame.split("\n") if not line.startswith(":"))
                if "data" in fields:
                    frames.append((fields.get("id", ""), EVENT.validate_json(fields["data"])))
                if len(frames) == most:
                    return Run(frames)
    return Run(frames)


def conversation(events: Sequence[Any]) -> list[tuple[str, str, list[str]]]:
    """What a reader shows that applies the events: role, text and arguments of calls of each message of an agent."""
    shown: dict[str, tuple[str, str, list[str]]] = {}
    for event in events:
        match event.type.value:
            case "MESSAGES_SNAPSHOT":
                shown = {
                    each.id: (
                        each.role,
                        each.content or "",
                        [call.function.arguments for call in each.tool_calls or []],
                    )
                    if each.role == "assistant"
                    else (each.role, each.content, [])
                    for each in event.messages
                }
            case "TEXT_MESSAGE_START":
                shown[event.message_id] = ("assistant", "", [])
            case "TEXT_MESSAGE_CONTENT":
                role, text, calls = shown[event.message_id]
                shown[event.message_id] = (role, text + event.delta, calls)
            case "TOOL_CALL_START":
                shown.setdefault(event.parent_message_id, ("assistant", "", []))[2].append("")
            case "TOOL_CALL_ARGS":
                list(shown.values())[-1][2][-1] += event.delta
            case "TOOL_CALL_RESULT":
                shown[event.message_id] = ("tool", event.content, [])
            case _:
                pass
    return [message for message in shown.values() if message[0] != "user"]


def thread() -> str:
    return str(uuid.uuid4())


def check_order(run: Run) -> None:
    """The rules of the protocol: one start, one end, and everything that was opened is closed before it."""
    assert run.kinds[0] == "RUN_STARTED"
    assert run.kinds[-1] in ("RUN_FINISHED", "RUN_ERROR")
    assert run.kinds.count("RUN_STARTED") == 1
    opened: set[tuple[str, str]] = set()
    for event in run.events:
        name = event.type.value
        for start, end, field in (
            ("TEXT_MESSAGE_START", "TEXT_MESSAGE_END", "message_id"),
            ("TOOL_CALL_START", "TOOL_CALL_END", "tool_call_id"),
            ("STEP_STARTED", "STEP_FINISHED", "step_name"),
            ("SUBAGENT_STARTED", "SUBAGENT_FINISHED", "subagent_run_id"),
        ):
            if name == start:
                assert (start, getattr(event, field)) not in opened
                opened.add((start, getattr(event, field)))
            if name == end or (end, name) == ("SUBAGENT_FINISHED", "SUBAGENT_ERROR"):
                opened.remove((start, getattr(event, field)))
    assert not opened


def test_a_run_is_told_from_its_message_to_its_answer(http: httpx.Client) -> None:
    name = thread()
    run = stream(http, "planned", body(name, plan([call("pure", work="a")], answer="it is done")))
    check_order(run)
    assert (run.text, run.outcome.type) == ("it is done", "success")
    assert run.events[0].protocol_version == core.PROTOCOL_VERSION
    (started,) = run.of("TOOL_CALL_START")
    (result,) = run.of("TOOL_CALL_RESULT")
    assert started.tool_call_name == "pure"
    assert started.tool_call_id == result.tool_call_id
    assert json.loads(run.of("TOOL_CALL_ARGS")[0].delta) == {"work": "a"}
    assert run.events[-1].result["final_response"] == "it is done"

    second = stream(http, "planned", body(name, plan(answer="and again")))
    check_order(second)
    assert second.text == "and again", "the second run tells its own messages only"


def test_the_same_run_again_does_nothing_twice_and_tells_the_same(http: httpx.Client, lab: Lab) -> None:
    given = body(thread(), plan([call("keyed", work="once by run")], answer="done"))
    first, again = stream(http, "planned", given), stream(http, "planned", given)
    assert conversation(again.events) == conversation(first.events)
    assert again.events[-1].model_dump() == first.events[-1].model_dump()
    assert [each["work"] for each in lab.ledger.entries() if each.get("work") == "once by run"] == ["once by run"]


def test_a_reader_that_is_cut_off_goes_on_after_its_cursor(http: httpx.Client) -> None:
    steps = [[call("pure", work=str(number))] for number in range(4)]
    given = body(thread(), plan(*steps, answer="done"))
    whole = stream(http, "planned", given)
    for cut in range(3, len(whole.frames), 4):
        seen = whole.frames[:cut]
        cursor = next((each for each, _ in reversed(seen) if each), "")
        kept = max((place for place, (each, _) in enumerate(seen) if each), default=0)
        rest = stream(http, "planned", given, after=cursor)
        check_order(rest)
        together = [*whole.events[: kept + 1], *rest.events[1:]] if cursor else rest.events
        assert conversation(together) == conversation(whole.events)
        assert rest.kinds.count("STEP_FINISHED") == 5 - [each.type for each in whole.events[: kept + 1]].count(
            "STEP_FINISHED"
        )


def test_a_reader_that_goes_on_behind_the_next_run_has_the_conversation_in_its_order(http: httpx.Client) -> None:
    name = thread()
    given = body(name, plan([call("pure", work="a")], [call("pure", work="b")], answer="first"))
    whole = stream(http, "planned", given)
    stream(http, "planned", body(name, plan(answer="second")))
    for cut in range(3, len(whole.frames), 3):
        cursor = next((each for each, _ in reversed(whole.frames[:cut]) if each), "")
        rest = stream(http, "planned", given, after=cursor)
        check_order(rest)
        together = [*whole.events[: whole.kinds.index("STEP_STARTED")], *rest.events] if cursor else rest.events
        told = conversation(whole.events)
        assert conversation(together)[: len(told)] == told


def test_a_restart_of_the_server_loses_a_reader_nothing(served: ServeProcess, http: httpx.Client) -> None:
    given = body(thread(), plan([call("pure", work="a")], [call("pure", work="b")], answer="over a restart"))
    begun = stream(http, "planned", given, most=2)
    served.kill()
    served.start()
    rest = stream(http, "planned", given, after=begun.frames[-1][0])
    assert rest.text == "over a restart"


def test_a_question_interrupts_the_run_and_a_resumed_one_goes_on(http: httpx.Client, lab: Lab) -> None:
    name = thread()
    first = stream(http, "asking", body(name, plan([call("refund", work="asked")], answer="refunded")))
    check_order(first)
    assert first.outcome.type == "interrupt"
    (asked,) = first.outcome.interrupts
    assert asked.reason == "approval"
    assert asked.metadata["args"]["work"] == "asked"
    assert asked.response_schema["required"] == ["approved"]
    assert not [each for each in lab.ledger.entries() if each.get("work") == "asked"]

    resume = [{"interruptId": asked.id, "status": "resolved", "payload": {"approved": True}}]
    given = body(name, None, resume=resume)
    second = stream(http, "asking", given)
    check_order(second)
    assert (second.text, second.outcome.type) == ("refunded", "success")
    assert len([each for each in lab.ledger.entries() if each.get("work") == "asked"]) == 1

    again = stream(http, "asking", given)
    check_order(again)
    (history,) = again.of("MESSAGES_SNAPSHOT")
    assert history.messages[-1].content == "refunded"
    assert again.outcome.type == "success"


def test_denied_and_cancelled_interrupts_and_answers_to_questions(http: httpx.Client) -> None:
    name = thread()
    calls = [call("refund", work="no"), call("refund", work="neither"), call("measured", work="box")]
    first = stream(http, "asking", body(name, plan(calls, answer="told")))
    asked = {each.metadata["args"]["work"]: each for each in first.outcome.interrupts}
    assert asked["box"].reason == "question"
    assert asked["box"].response_schema["properties"]["size"]
    some = [{"interruptId": asked["no"].id, "status": "resolved", "payload": {"approved": False, "reason": "dear"}}]
    second = stream(http, "asking", body(name, None, resume=some))
    check_order(second)
    assert {each.id for each in second.outcome.interrupts} == {asked["neither"].id, asked["box"].id}
    others = [
        {"interruptId": asked["neither"].id, "status": "cancelled"},
        {"interruptId": asked["box"].id, "status": "resolved", "payload": {"size": "XL"}},
    ]
    third = stream(http, "asking", body(name, None, resume=others))
    check_order(third)
    results = [event.content for event in third.of("TOOL_CALL_RESULT")]
    assert "dear" in results[0]
    assert third.text == "told"


def test_a_subagent_is_told_and_its_question_interrupts_the_run(http: httpx.Client) -> None:
    name = thread()
    inner = plan([call("approved_unsafe", work="below")], answer="inner")
    first = stream(http, "node", body(name, plan([delegate(inner)], answer="outer")))
    check_order(first)
    (started,) = first.of("SUBAGENT_STARTED")
    (asked,) = first.outcome.interrupts
    assert (started.name, asked.subagent_run_id) == ("node", started.subagent_run_id)
    (suspended,) = first.of("SUBAGENT_FINISHED")
    assert suspended.outcome.interrupt_ids == [asked.id]
    resume = [{"interruptId": asked.id, "status": "resolved", "payload": {"approved": True}}]
    given = body(name, None, resume=resume)
    second = stream(http, "node", given)
    check_order(second)
    assert [each.subagent_run_id for each in second.of("SUBAGENT_STARTED")] == [started.subagent_run_id]
    assert second.text == "outer"

    cursor = next(each for each, _ in second.frames if each)
    rest = stream(http, "node", given, after=cursor)
    check_order(rest)
    assert rest.events[-1].model_dump() == second.events[-1].model_dump(), "a reader that is cut off goes on"
    assert http.get(f"/v1/sessions/{name}/requests/{asked.id}").json()["status"] == "used"


def test_a_stopped_run_is_cancelled_and_a_failed_one_is_an_error(http: httpx.Client) -> None:
    name = thread()
    given = body(name, plan([call("refund", work="never")]))
    assert stream(http, "asking", given).outcome.type == "interrupt"
    http.post(f"/v1/sessions/{name}/stop", json={"timeout_seconds": 20})
    wait_until(lambda: http.get(f"/v1/sessions/{name}").json()["status"] == "stopped", "it is stopped", 20)
    stopped = stream(http, "asking", given)
    check_order(stopped)
    assert stopped.outcome.type == "cancelled"

    failed = stream(http, "planned", body(thread(), "no plan at all"))
    check_order(failed)
    assert failed.kinds[-1] == "RUN_ERROR", failed.kinds
    assert failed.events[-1].message


def test_a_browser_s_token_reaches_its_own_thread_only(served: ServeProcess, http: httpx.Client) -> None:
    name = thread()
    stream(http, "planned", body(name, plan(answer="first")))
    scopes = {"scopes": ["submit", "read"]}
    token = http.post(f"/v1/sessions/{name}/tokens", json=scopes).json()["token"]
    with served.http(token) as browser:
        assert stream(browser, "planned", body(name, plan(answer="mine"))).text == "mine"
        assert browser.post("/agui/planned", json=body(thread(), "x")).status_code == 403
        resume = [{"interruptId": "x", "status": "cancelled"}]
        assert browser.post("/agui/planned", json=body(name, None, resume=resume)).status_code == 403
    with served.http(SUBMIT) as submitter:
        assert submitter.post("/agui/planned", json=body(thread(), "x")).status_code == 403
    with served.http() as nobody:
        assert nobody.post("/agui/planned", json=body(thread(), "x")).status_code == 401


WRONG: list[tuple[dict[str, Any], int, str]] = [
    ({"threadId": None}, 422, "threadId"),
    ({"threadId": "no id"}, 422, "no id"),
    ({"messages": []}, 404, ""),
    ({"messages": [{"id": "1", "role": "user", "content": " "}]}, 422, "message"),
    ({"messages": [{"id": "1", "role": "user", "content": [{"type": "image", "source": {"type": "url",
      "value": "https://example.com/a.png"}}]}]}, 422, "messages[0].content"),
    ({"messages": [{"id": "1", "role": "user", "content": "a"}, {"id": "2", "role": "assistant", "content": "b"},
      {"id": "3", "role": "user", "content": "c"}]}, 422, "threadId"),
    ({"tools": [{"name": "paint", "description": "", "parameters": {}}]}, 422, "tools"),
    ({"state": {"a": 1}}, 422, "state"),
    ({"runId": 7}, 422, "runId"),
    ({"forwardedProps": {"theme": "dark"}}, 422, "forwardedProps"),
    ({"forwardedProps": {"when": "later"}}, 422, "when"),
    ({"forwardedProps": {"when": "queue"}, "messages": []}, 422, "forwardedProps"),
]  # fmt: skip


@pytest.mark.parametrize(("change", "status", "named"), WRONG)
def test_wrong_input_is_refused_and_nothing_is_written(
    http: httpx.Client, change: dict[str, Any], status: int, named: str
) -> None:
    given = {**body(thread(), "hello"), **change}
    response = http.post("/agui/planned", json=given)
    assert response.status_code == status, response.text
    assert response.headers["content-type"].startswith("application/problem+json")
    assert named in response.text
    assert http.get(f"/v1/sessions/{given['threadId']}").status_code in (404, 422)


def test_wrong_answers_and_cursors_are_refused(http: httpx.Client) -> None:
    name = thread()
    asked = stream(http, "asking", body(name, plan([call("refund", work="kept")]))).outcome.interrupts[0].id

    def refused(**entry: Any) -> httpx.Response:
        return http.post("/agui/asking", json=body(name, None, resume=[{"status": "resolved", **entry}]))

    assert refused(interruptId="nothing", payload={"approved": True}).status_code == 404
    for payload in (None, True, {}, {"approved": "yes"}, {"approved": True, "approve": True}):
        response = refused(interruptId=asked, payload=payload)
        assert response.status_code == 422, response.text
        assert asked in response.text
    one, two = ({"status": "resolved", "payload": {"approved": True, "seen": seen}} for seen in (5, "x"))
    both = [{**one, "interruptId": asked}, {**two, "interruptId": asked}]
    response = http.post("/agui/asking", json=body(name, None, resume=both))
    assert (response.status_code, "seen" in response.text) == (422, True)
    cursor = {"Last-Event-ID": "somewhere"}
    assert http.post("/agui/asking", json=body(name, None), headers=cursor).status_code == 422
    assert http.get(f"/v1/sessions/{name}").json()["status"] == "waiting"
    http.post(f"/v1/sessions/{name}/stop")


def test_a_run_says_how_its_message_is_delivered(http: httpx.Client, served: ServeProcess, lab: Lab) -> None:
    name, first = thread(), plan([call("keyed", work="agui")], answer="done", gate="never-agui")
    stream(http, "writer", body(name, first), most=1)
    wait_until(lambda: [each for each in lab.ledger.entries() if each.get("gate") == "never-agui"], "it is asked", 20)
    queued = body(name, plan(answer="later"), forwardedProps={"when": "queue"})
    stream(http, "writer", queued, most=1)
    run = stream(http, "writer", body(name, plan(answer="at once"), forwardedProps={"when": "interrupt"}))
    check_order(run)
    assert (conversation(run.events)[-1][1], run.outcome.type) == ("at once", "success")
    assert conversation(stream(http, "writer", queued).events)[-1][1] == "later"
    assert not [each for each in lab.ledger.entries() if each.get("work") == "agui"]

    stream(http, "planned", body(name := thread(), plan(answer="done", gate="agui-busy")), most=1)
    wait_until(lambda: [each for each in lab.ledger.entries() if each.get("gate") == "agui-busy"], "it is asked", 20)
    given = body(name, plan(answer="never"), forwardedProps={"when": "queue"})
    stream(http, "planned", given, most=1)
    (operation,) = [each["operation_id"] for each in http.get(f"/v1/sessions/{name}/queue").json()["messages"]]
    http.delete(f"/v1/sessions/{name}/messages/{operation}")
    assert stream(http, "planned", given).outcome.type == "cancelled"
    busy = body(name, "more", forwardedProps={"when": "refuse"})
    assert http.post("/agui/planned", json=busy).status_code == 409
    scopes = {"scopes": ["submit", "read"]}
    token = http.post(f"/v1/sessions/{name}/tokens", json=scopes).json()["token"]
    with served.http(token) as browser:
        interrupting = body(name, "more", forwardedProps={"when": "interrupt"})
        assert browser.post("/agui/planned", json=interrupting).status_code == 403
    lab.ledger.open("agui-busy")


def test_what_an_agent_can_do_is_told(http: httpx.Client) -> None:
    found = core.AgentCapabilities.model_validate(http.get("/agui/planned").json())
    assert found.transport is not None
    assert found.transport.resumable
    assert found.human_in_the_loop is not None
    assert found.human_in_the_loop.approve_with_edits
    assert http.get("/agui/nobody").status_code in (404, 422)


def test_a_reader_that_leaves_stops_nothing(http: httpx.Client) -> None:
    name = thread()
    stream(http, "planned", body(name, plan([call("pure", work="a")], answer="done")), most=1)
    deadline = time.monotonic() + 20
    while http.get(f"/v1/sessions/{name}").json()["status"] != "completed":
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_a_message_of_a_sessions_token_is_its_subjects_own(http: httpx.Client, served: ServeProcess) -> None:
    name = uuid.uuid4().hex
    stream(http, "asking", body(name, plan([call("refund", work="a")])))

    def token(*scopes: str) -> str:
        given = {"scopes": scopes, "subject": "jo"}
        return http.post(f"/v1/sessions/{name}/tokens", json=given).json()["token"]

    with served.http(token("submit", "read")) as bearer:
        stream(bearer, "asking", body(name, "later", forwardedProps={"when": "queue"}), most=1)
    (message,) = http.get(f"/v1/sessions/{name}/queue").json()["messages"]
    assert message["by"] == "jo"
    with served.http(token("chat")) as chat:
        assert chat.delete(f"/v1/sessions/{name}/messages/{message['operation_id']}").json() == {"changed": True}
    sent = {"message": "for ann", "session_id": name, "by": "ann"}
    http.post("/v1/agents/asking/jobs", json=sent)
    (request,) = http.get(f"/v1/sessions/{name}/requests").json()["requests"]
    assert [each["text"] for each in request["messages"]] == ["for ann"]
    assert [each["by"] for each in http.get(f"/v1/sessions/{name}/queue").json()["messages"]] == ["ann"]
    http.post(f"/v1/sessions/{name}/stop", json={})
