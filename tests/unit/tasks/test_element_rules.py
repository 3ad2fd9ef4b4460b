"""Elements of our queues: what is taken, what is refused and why, and what is replaced."""

from __future__ import annotations

import base64
import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from celery_agents.config.settings import Settings
from celery_agents.tasks.app import create_app
from celery_agents.tasks.consumer.element_rules import LATEST_ETA, admit
from celery_agents.tasks.consumer.message_checks import (
    LARGEST_LATER_BYTES,
    InvalidMessage,
    check_message,
    check_unacked,
)
from celery_agents.tasks.message_template import MessageTemplate, message_options, record_message
from celery_agents.tasks.names import STEP
from celery_agents.worker.store import StepRef

SETTINGS = Settings.build()
APP = create_app(SETTINGS)
REF = StepRef("nobody", "nothing", 2)
EMBED = {"callbacks": None, "errbacks": None, "chain": None, "chord": None}


def element(ref: StepRef = REF) -> dict[str, Any]:
    """A step message as our publisher writes it."""
    return json.loads(MessageTemplate(APP, SETTINGS, has_parent=ref.step > 1).message(ref, 17))


def encoded(args: object, kwargs: object, embed: object = EMBED) -> str:
    return base64.b64encode(json.dumps([args, kwargs, embed]).encode()).decode()


def control(**kwargs: Any) -> dict[str, Any]:
    """A wish as another service sends it by Celery alone."""
    message = element()
    message["headers"] |= {"task": "celery_agents.submit", "id": "3b1f-of-a-service", "ignore_result": False}
    message["body"] = encoded([], {"agent": "a", "message": "the prompt", "webhook": "https://x/?token=1", **kwargs})
    return message


def refused(message: dict[str, Any]) -> str:
    with pytest.raises(InvalidMessage) as raised:
        admit(check_message(message))
    return str(raised.value)


@pytest.mark.parametrize(
    "ref",
    [StepRef("s", "e", 1), StepRef("s", "e", 7), StepRef("s", "e", 7, retries=3), StepRef("a." + "0" * 32, "e", 12)],
)
def test_what_our_publishers_write_is_taken(ref: StepRef) -> None:
    message = element(ref)
    before = json.loads(json.dumps(message))
    admit(check_message(message))
    before["properties"]["reply_to"] = ""
    assert message == before
    _, text = record_message(APP, STEP, message_options(SETTINGS, ref, 17))
    admit(check_message(json.loads(text)))


@pytest.mark.parametrize("suffix", ["", ".r1", ".w4", ".r12.w3"])
def test_an_id_that_follows_from_the_step_is_taken(suffix: str) -> None:
    message = element()
    message["headers"]["id"] = f"nothing.2{suffix}"
    admit(check_message(message))


@pytest.mark.parametrize(
    "task_id",
    [
        "victim.2",
        "nothing.1",
        "nothing.22",
        "nothing.2.r",
        "nothing.2x",
        "nothing",
        "nothing.2.r1.r2",
        "nothing.2\n",
        "",
    ],
)
def test_a_step_under_the_id_of_another_step_is_refused(task_id: str) -> None:
    message = element()
    message["headers"]["id"] = task_id
    assert "id=" in refused(message)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("expires", "2001-01-01T00:00:00+00:00"), ("eta", "2099-01-01T00:00:00+00:00"), ("timelimit", [1, None]),
        ("timelimit", [None, 0.5]), ("compression", "application/x-gzip"), ("shadow", "another.name"),
        ("callbacks", [{"task": "os.system"}]), ("errbacks", [1]), ("chain", [1]), ("chord", {"task": "x"}),
        ("is_eager", True), ("called_directly", True), ("update", "x"), ("delivery_info", {}), ("hostname", "w"),
        ("stamped_headers", ["x"]), ("stamps", {"x": "y"}), ("group", "g"), ("loglevel", 1), ("kwargs", {}),
    ],
)  # fmt: skip
def test_a_header_that_makes_celery_do_more_than_the_step_is_refused(name: str, value: object) -> None:
    message = element()
    message["headers"][name] = value
    assert f"{name}=" in refused(message)


@pytest.mark.parametrize("value", ["x", [["x"]], [{}], ["x", 1], {"x": 1}])
def test_the_names_of_stamps_are_texts(value: object) -> None:
    """Celery looks them up in a dict once a stamp was revoked: another value would raise in the consumer."""
    message = control()
    message["headers"] |= {"stamped_headers": value, "stamps": {"x": "y"}}
    assert "stamped_headers=" in refused(message)


@pytest.mark.parametrize("name", [*EMBED, "group_index"])
def test_callbacks_in_the_body_are_refused(name: str) -> None:
    for message in (element(), control()):
        args, kwargs, _ = json.loads(base64.b64decode(message["body"]))
        message["body"] = encoded(args, kwargs, {**EMBED, name: [{"task": "celery.group"}]})
        assert f"{name}=" in refused(message)


@pytest.mark.parametrize("embed", [[], 7, "x", True])
def test_the_place_of_callbacks_holds_nothing_else(embed: object) -> None:
    message = element()
    args, kwargs, _ = json.loads(base64.b64decode(message["body"]))
    message["body"] = encoded(args, kwargs, embed)
    assert "callbacks" in refused(message)


@pytest.mark.parametrize(
    "task", ["celery.chord_unlock", "celery.group", "celery.backend_cleanup", "proj.greet", 7, None]
)
def test_a_task_that_is_not_ours_is_refused_on_our_queues(task: object) -> None:
    message = element()
    message["headers"]["task"] = task
    assert "unknown task" in refused(message)


def test_no_result_of_a_step_goes_to_the_senders_address() -> None:
    message = element()
    message["properties"]["reply_to"] = "celery_agents.steps"
    message["headers"] |= {"ignore_result": False, "kwargsrepr": "{'session_id': 'victim'}", "argsrepr": "('x',)"}
    admit(check_message(message))
    assert (message["properties"]["reply_to"], message["headers"]["ignore_result"]) == ("", True)
    assert message["headers"]["kwargsrepr"] == "{'session_id': 'nobody', 'execution_id': 'nothing', 'step': 2}"
    assert message["headers"]["argsrepr"] == "()"


def test_headers_of_tracing_libraries_are_left_alone() -> None:
    message = element()
    more = {"traceparent": "00-1-2-03", "headers": {"sentry-trace": "1"}, "my-header": [1]}
    message["headers"] |= more
    admit(check_message(message))
    assert more.items() <= message["headers"].items()


# --- wishes by name ---------------------------------------------------------------------------------------------------


def test_flower_does_not_see_prompt_and_webhook_of_a_job_submitted_by_name() -> None:
    message = control(session_id="order-1")
    message["headers"]["kwargsrepr"] = "{'message': 'the prompt'}"
    admit(check_message(message))
    shown = message["headers"]["kwargsrepr"]
    assert shown == "{'agent': 'a', 'message': '(hidden)', 'webhook': '(hidden)', 'session_id': 'order-1'}"


@pytest.mark.parametrize("task_id", ["victim.2", "victim.17.r2", "victim.1.w3", "a.b.3"])
def test_a_wish_under_the_id_of_a_step_is_refused(task_id: str) -> None:
    message = control()
    message["headers"] |= {"id": task_id, "expires": "2001-01-01T00:00:00+00:00"}
    assert "form of a step's id" in refused(message)


def test_a_wish_may_wait_for_a_retry_and_no_longer() -> None:
    for seconds, is_taken in ((30, True), (3600, False)):
        for moment in (datetime.now(UTC), datetime.now(UTC).replace(tzinfo=None)):
            message = control()
            message["headers"]["eta"] = (moment + timedelta(seconds=seconds)).isoformat()
            if is_taken:
                admit(check_message(message))
            else:
                assert "eta=" in refused(message)
    large = control(message="x" * LARGEST_LATER_BYTES)
    admit(check_message(large))
    large["headers"]["eta"] = datetime.now(UTC).isoformat()
    assert "eta=" in refused(large)


def test_the_retry_of_a_wish_is_taken_whatever_its_size_and_the_clock_of_its_worker() -> None:
    """A worker had taken it: an outage of the store must not lose it."""
    now = datetime.now(UTC)
    large = control(message="x" * LARGEST_LATER_BYTES)
    large["headers"] |= {"retries": 1, "eta": (now + timedelta(seconds=30)).isoformat()}
    admit(check_message(large))
    assert datetime.fromisoformat(large["headers"]["eta"]) == now + timedelta(seconds=30)
    far = control()
    far["headers"] |= {"retries": 3, "eta": (now + timedelta(hours=3)).isoformat()}
    admit(check_message(far))
    assert now + LATEST_ETA <= datetime.fromisoformat(far["headers"]["eta"]) <= datetime.now(UTC) + LATEST_ETA


# --- what kombu keeps of messages ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "entry", [None, 7, "x", {}, [], [{}, "a", "b"], ["x", "a", "b"], [None] * 3, [1, 2], "message with a list as key"]
)
def test_a_record_of_an_unacknowledged_message_is_three_parts(entry: object) -> None:
    check_unacked([element(), "exchange", "key"])
    with pytest.raises(InvalidMessage):
        check_unacked([element(), "exchange", ["key"]] if entry == "message with a list as key" else entry)


def test_a_value_that_kombu_cannot_decode_is_refused_before_celery_reads_it() -> None:
    message = control(session_id={"__type__": "uuid", "__value__": "x"})
    assert "cannot be read" in refused(message)
    admit(check_message(control(metadata={"at": {"__type__": "datetime", "__value__": "2001-01-01T00:00:00"}})))
