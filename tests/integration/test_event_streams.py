"""A stream of events over HTTP ends with the latest execution of its session, wherever its reader begins."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest

from celery_agents.worker.store.event_records import EXECUTION_ENDS

from support.agents import call, plan
from support.lab import Lab
from support.serve_process import ServeProcess, parse_events

pytestmark = [pytest.mark.timeout(120), pytest.mark.filterwarnings("ignore:no worker has registered")]


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    with Lab(tmp_path_factory.mktemp("streams") / "lab", agents="support.waiting_agents,support.agents") as started:
        started.worker()
        yield started


@pytest.fixture(scope="module")
def http(lab: Lab) -> Iterator[httpx.Client]:
    process = ServeProcess(lab.directory / "serve", lab.store_url)
    process.start()
    with process.http() as client:
        yield client
    process.end()


def read(http: httpx.Client, session: str, after: str | None = None) -> list[str]:
    """Ids of the events of a stream that ends with the execution."""
    headers = {} if after is None else {"Last-Event-ID": after}
    path = f"/v1/sessions/{session}/events?until=end"
    with http.stream("GET", path, headers=headers, timeout=10) as response:
        return [each for each, _, _ in parse_events(response.iter_lines())]


def stored(lab: Lab, session: str) -> list[str]:
    """Ids of the events of a session up to the end of its latest execution."""
    events = lab.client.store.sessions.events(session)
    ends = [place for place, event in enumerate(events) if event.type in EXECUTION_ENDS]
    assert len(ends) == 2
    return [event.id for event in events[: ends[-1] + 1]]


def test_a_stream_of_a_session_with_two_executions_has_both(http: httpx.Client, lab: Lab) -> None:
    job = lab.client.submit("planned", plan([call("pure", work="a")]))
    assert job.result(timeout=30).status == "completed"
    assert lab.client.submit("planned", "And then?", session_id=job.session_id).result(timeout=30)
    assert read(http, job.session_id) == stored(lab, job.session_id)


def test_a_stream_of_a_retried_execution_has_both_ends(http: httpx.Client, lab: Lab) -> None:
    job = lab.client.submit("asking", plan([call("approved", work="b")]))
    lab.client.stop(job.session_id)
    lab.client.retry(job.session_id)
    lab.client.stop(job.session_id)
    assert read(http, job.session_id) == stored(lab, job.session_id)


def test_a_reader_that_was_cut_off_behind_the_end_is_told_that_it_has_all(http: httpx.Client, lab: Lab) -> None:
    job = lab.client.submit("planned", plan([call("pure", work="c")]))
    assert job.result(timeout=30).status == "completed"
    ids = read(http, job.session_id)
    assert read(http, job.session_id, after=ids[-1]) == []
    assert read(http, job.session_id, after=ids[0]) == ids[1:]


def test_the_stream_of_a_fork_that_never_ran_ends_at_once(http: httpx.Client, lab: Lab) -> None:
    job = lab.client.submit("planned", plan())
    assert job.result(timeout=30).status == "completed"
    fork = lab.client.fork(job.session_id)
    assert read(http, fork)[1:] == [event.id for event in lab.client.store.sessions.events(fork)]  # behind a snapshot
