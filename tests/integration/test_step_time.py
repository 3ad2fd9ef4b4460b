"""Model calls that take longer than their step may, by real workers over a stand-in provider whose book says what was paid."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from datetime import timedelta

import pytest

from fault.real.provider_jobs import Stage, stage
from support.wait import wait_until

pytestmark = [pytest.mark.timeout(120), pytest.mark.filterwarnings("ignore:no worker has registered")]

STEP_SECONDS = 2.0
KINDS = {"within_8h": "response", "within_24h": "batch", "claude": "messages_batch", "gemini": "google_batch"}


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with stage(tmp_path_factory.mktemp("step_time"), CELERY_AGENTS_STEP_TIMEOUT_SECONDS=str(STEP_SECONDS)) as made:
        made.lab.worker()
        yield made


def created(played: Stage, text: str) -> list[str]:
    return [str(line["id"]) for line in played.provider.book.created() if line["text"] == text]


def asked_after(played: Stage, response: str, seconds: float) -> bool:
    """Whether a response was looked at or attached to so long behind its beginning."""
    (begun,) = [line["at"] for line in played.provider.book.created() if line["id"] == response]
    asked = [*played.provider.book.lines("poll"), *played.provider.book.lines("attach")]
    return any(line["id"] == response and line["at"] > begun + seconds for line in asked)


def paid(played: Stage, text: str) -> int:
    ids = created(played, text)
    return sum(line["id"] in ids for line in played.provider.book.paid())


@pytest.mark.parametrize(
    ("agent", "watched"),
    [
        pytest.param("chat", "from its beginning", marks=pytest.mark.long),
        pytest.param("chat", "later", marks=pytest.mark.long),
        ("chat", "never"),
        pytest.param("teller", "from its beginning", marks=pytest.mark.long),
        ("teller", "later"),
    ],
)
def test_an_answer_in_the_background_is_attached_to_until_it_is_there(played: Stage, agent: str, watched: str) -> None:
    text = f"{agent} writes longer than its step may take, watched {watched}"
    played.provider.control("plan", contains=text, held=True, held_after=7)
    job = played.lab.client.submit(agent, text, delay=timedelta(seconds=1))
    shown, readers = list[str](), list[threading.Thread]()

    def read() -> None:
        for item in job.stream(timeout=60):
            shown.append(item.text if item.delta is None else item.delta.text)

    def watch() -> None:
        readers.append(threading.Thread(target=read))
        readers[0].start()

    if watched == "from its beginning":
        watch()
    begun = wait_until(lambda: created(played, text), "it is begun", 20)
    wait_until(lambda: asked_after(played, begun[0], STEP_SECONDS), "the next step asks", 20)
    if watched == "later":
        watch()
    wait_until(lambda: asked_after(played, begun[0], 2 * STEP_SECONDS), "the third one asks", 20)
    played.provider.control("release", id=begun[0])
    assert job.result(timeout=20).final_response == text
    for each in readers:
        each.join(20)
    assert not readers or text in "".join(shown)
    assert (created(played, text), paid(played, text)) == (begun, 1)
    assert not [line for line in played.provider.book.lines("cancel") if line["id"] == begun[0]]


@pytest.mark.parametrize("agent", ["within_8h", "gemini"])
def test_a_look_costs_nothing(played: Stage, agent: str) -> None:
    text = f"looked at slowly by {agent}"
    played.provider.control("plan", contains=text, seconds=0.5)
    played.provider.control("fault", on=f"{KINDS[agent]}.retrieve", fault="slow", seconds=STEP_SECONDS + 1, times=1)
    assert played.lab.client.submit(agent, text).result(timeout=30).final_response == text
    assert (len(created(played, text)), paid(played, text)) == (1, 1)


@pytest.mark.parametrize("agent", ["within_24h", "claude", "gemini"])
def test_a_batch_whose_creation_takes_so_long_is_found(played: Stage, agent: str) -> None:
    text = f"created slowly by {agent}"
    played.provider.control("fault", on=f"{KINDS[agent]}.create", fault="slow", seconds=STEP_SECONDS + 1, times=1)
    assert played.lab.client.submit(agent, text).result(timeout=30).final_response == text
    assert (len(created(played, text)), paid(played, text)) == (1, 1)


@pytest.mark.parametrize("agent", ["plain", "within_8h"])
def test_what_nobody_can_attach_to_fails_and_is_not_asked_again(played: Stage, agent: str) -> None:
    text = f"nobody can attach to {agent}"
    played.provider.control("fault", on="response.create", fault="slow", seconds=STEP_SECONDS + 1, times=1)
    job = played.lab.client.submit(agent, text)
    result = job.result(timeout=30)
    assert (result.status, result.stop_reason) == ("failed", "time_limit")
    assert len(created(played, text)) == 1
    if agent == "plain":
        played.lab.client.retry(job.session_id)
        assert job.result(timeout=30).final_response == text
        assert len(created(played, text)) == 2, "only who asks for it pays again"


@pytest.mark.parametrize("is_late", [True, False], ids=["late", "never"])
def test_a_plain_function_that_goes_on_behind_its_step_is_not_called_again(played: Stage, is_late: bool) -> None:
    text = f"asked by a plain function, late {is_late}"
    seconds = STEP_SECONDS + (1.5 if is_late else 8)
    played.provider.control("fault", on="response.create", fault="slow", seconds=seconds, times=1)
    job = played.lab.client.submit("caller", text)
    result = job.result(timeout=30)
    assert (result.status, result.stop_reason) == ("failed", "time_limit")
    assert len(created(played, text)) == 1
    if is_late:
        journal = played.lab.client.store.context.session(job.session_id).keys.journal(job.execution_id, 1)
        wait_until(lambda: played.lab.redis.hget(journal, "llm"), "its answer is there", 20)
    played.lab.client.retry(job.session_id)
    result = job.result(timeout=30)
    assert result.final_response == text, result
    assert len(created(played, text)) == (1 if is_late else 2), "a retry takes the answer that has come meanwhile"


def test_a_step_whose_hook_does_not_return_goes_on_elsewhere(played: Stage) -> None:
    text = "answered, and its hook hangs"
    job = played.lab.client.submit("hooked", text)
    assert job.result(timeout=20).final_response == text
    assert (len(created(played, text)), paid(played, text)) == (1, 1)
