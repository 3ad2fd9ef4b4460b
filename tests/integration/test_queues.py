"""Workers with different agents on one Redis: queues of agents, sessions that wait for a worker, and how fast it is."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from typer.testing import CliRunner

from celery_agents import AgentClient
from celery_agents.tasks.cli.program import program
from celery_agents.tasks.cli.session_views import session_lines
from celery_agents.tasks.observability.doctor.checks import examine
from celery_agents.tasks.observability.waiting_reasons import waiting_reason

from support.lab import QUICK
from support.redis_server import RedisServer
from support.wait import wait_until
from support.worker_process import WorkerProcess

pytestmark = [pytest.mark.timeout(180), pytest.mark.filterwarnings("ignore:no worker has registered")]

NewWorker = Callable[..., WorkerProcess]
QUEUE_AGENTS = "support.queue_agents"


def pids(client: AgentClient, agent: str, jobs: int = 10) -> set[int]:
    """The processes in which jobs of an agent have run."""
    submitted = [client.submit(agent, "go") for _ in range(jobs)]
    return {int(job.result(timeout=20).final_response) for job in submitted}


# --- a queue of its own -----------------------------------------------------------------------------------------------


def test_an_agent_with_a_queue_runs_where_its_queue_is_taken(new_worker: NewWorker, redis_url: str) -> None:
    common = new_worker(agents=QUEUE_AGENTS, env={"CELERY_AGENTS_QUEUES": "default"})
    gpu = new_worker(agents=QUEUE_AGENTS, env={"CELERY_AGENTS_QUEUES": "gpu"})
    client = AgentClient(redis_url)
    assert pids(client, "painter") == {gpu.pid}
    assert pids(client, "clerk") == {common.pid}
    facts = {entry["pid"]: entry for entry in client.store.registry.workers().values()}
    assert sorted(facts[gpu.pid]["agents"]) == ["painter"]
    assert [queue for queue in facts[gpu.pid]["queues"] if not queue.startswith("@")] == ["gpu"]
    told = {finding.name: finding.what for finding in examine(client.settings)}
    assert any(what.endswith("painter; takes queue gpu") for what in told.values()), told
    assert told["queue gpu"] == "0 messages"
    listed = CliRunner().invoke(program, ["workers", "--redis-url", redis_url]).output.splitlines()
    assert [line.split()[-2:] for line in listed[1:] if "painter" in line] == [["gpu", "painter"]]


def test_a_worker_without_a_restriction_takes_the_queues_of_all_its_agents(
    new_worker: NewWorker, redis_url: str
) -> None:
    worker = new_worker(agents=QUEUE_AGENTS)
    client = AgentClient(redis_url)
    assert pids(client, "painter") == pids(client, "clerk") == {worker.pid}


def test_the_option_queues_restricts_a_worker_and_wins_over_the_environment(
    new_worker: NewWorker, redis_url: str
) -> None:
    env = {"CELERY_AGENTS_QUEUES": "default"}
    gpu = new_worker(agents=QUEUE_AGENTS, env=env, arguments=("--queues", "gpu"))
    client = AgentClient(redis_url)
    facts = next(entry for entry in client.store.registry.workers().values() if entry["pid"] == gpu.pid)
    assert sorted(facts["agents"]) == ["painter"]


def test_a_queue_that_no_agent_has_keeps_a_worker_from_starting(new_worker: NewWorker) -> None:
    worker = new_worker(agents=QUEUE_AGENTS, env={"CELERY_AGENTS_QUEUES": "gpu,tpu"}, wait=False)
    assert worker.wait(30) != 0
    assert "o agent here has the queue 'tpu'" in worker.text()


@pytest.mark.leaves_keys("the broker is a database of its own")
def test_a_queue_of_its_own_works_with_a_broker_elsewhere(new_worker: NewWorker, redis_server: RedisServer) -> None:
    store, broker = redis_server.url(), redis_server.url(1)
    env = {"CELERY_AGENTS_BROKER_URL": broker, **QUICK}
    worker = new_worker(agents=QUEUE_AGENTS, env=env)
    client = AgentClient(store, broker_url=broker)
    assert pids(client, "painter") == {worker.pid}


def test_a_lost_message_of_an_agents_queue_is_published_to_it_again(
    new_worker: NewWorker, redis_url: str, redis_client: Any
) -> None:
    redis_client.hset("ca:agents", "painter", '{"hash": "h", "queue": "gpu"}')
    client = AgentClient(redis_url)
    job = client.submit("painter", "go")
    assert redis_client.delete("celery_agents.steps.gpu") == 1
    new_worker(agents=QUEUE_AGENTS, env=dict(QUICK))
    assert job.result(timeout=10).status == "completed"


# --- two services -----------------------------------------------------------------------------------------------------


@pytest.mark.alone
@pytest.mark.long
def test_two_services_on_one_redis_run_at_full_speed(
    new_worker: NewWorker, new_redis: Callable[[], RedisServer], redis_url: str
) -> None:
    another_url = new_redis().url()
    alone, shared = AgentClient(another_url), AgentClient(redis_url)
    new_worker(another_url, agents="support.alpha_agents")
    new_worker(agents="support.alpha_agents")
    new_worker(agents="support.beta_agents")
    loads = {"alone": (alone, ["alpha"]), "beside": (shared, ["alpha"]), "both": (shared, ["alpha", "beta"])}
    seconds = dict.fromkeys(loads, math.inf)
    for _ in range(12):  # in turn, so that what else the machine does is in each
        for name, (client, agents) in loads.items():
            seconds[name] = min(seconds[name], slowest_of_a_hundred(client, agents))
    print("slowest of 100 two-step jobs:", seconds)
    assert max(seconds["beside"], seconds["both"]) < 1.5 * seconds["alone"]


def slowest_of_a_hundred(client: AgentClient, agents: Sequence[str]) -> float:
    """Seconds from the first submit to the last end of a hundred jobs that are submitted at once."""
    began = time.monotonic()
    jobs = [client.submit(agents[number % len(agents)], "go") for number in range(100)]
    for job in jobs:
        assert job.result(timeout=60).step_count == 2
    return time.monotonic() - began


def test_a_session_that_came_to_the_wrong_worker_stays_with_the_right_one(
    new_worker: NewWorker, redis_url: str
) -> None:
    new_worker(agents="support.alpha_agents", env={"CELERY_AGENTS_STICKY_SECONDS": "0"})
    right = new_worker(agents="support.beta_agents", env={"CELERY_AGENTS_STICKY_SECONDS": "0"})
    client = AgentClient(redis_url)
    assert pids(client, "beta", jobs=30) == {right.pid}
    for header in client.list(limit=100).items:
        events = [event.type for event in client.store.sessions.events(header.session_id)]
        assert events.count("step_committed") == 2
        assert not {"parked", "waiting_for_worker", "step_recovered"} & set(events)


def test_sessions_in_the_queue_of_a_group_that_is_no_more_go_on_and_the_queue_is_deleted(
    new_worker: NewWorker, redis_url: str, redis_client: Any
) -> None:
    redis_client.hset("ca:agents", "beta", '{"hash": "h", "queue": "@0badf00d"}')
    client = AgentClient(redis_url)
    job = client.submit("beta", "go")
    assert redis_client.llen("celery_agents.steps.@0badf00d") == 1
    new_worker(agents="support.beta_agents", env=dict(QUICK))
    assert job.result(timeout=15).status == "completed"
    wait_until(lambda: not redis_client.exists("celery_agents.steps.@0badf00d"), "the queue is deleted", 5)


# --- nobody offers the agent ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("others", [(), ("support.alpha_agents",)], ids=["nobody before", "another service before"])
@pytest.mark.parametrize("after", [False, True], ids=["", "another service after"])
def test_a_job_submitted_before_its_workers_first_start_completes_within_two_seconds_of_it(
    new_worker: NewWorker, redis_url: str, others: Sequence[str], after: bool
) -> None:
    for module in others:
        new_worker(agents=module)
    client = AgentClient(redis_url)
    job = client.submit("beta", "go")
    if after:
        new_worker(agents="support.alpha_agents")
        client.submit("alpha", "go").result(timeout=10)
    worker = new_worker(agents="support.beta_agents", wait=False)
    worker.wait_for_text("ready.", 30)
    ready_at = time.monotonic()
    assert job.result(timeout=10).status == "completed"
    assert time.monotonic() - ready_at < 2.0


def test_a_job_that_waits_on_a_redis_that_has_just_started_begins_with_its_worker(
    new_worker: NewWorker, new_redis: Callable[[], RedisServer]
) -> None:
    url = new_redis().url()
    with AgentClient(url) as client:
        job = client.submit("beta", "go")
        new_worker(url, agents="support.beta_agents", wait=False).wait_for_text("ready.", 30)
        ready_at = time.monotonic()
        assert job.result(timeout=10).status == "completed"
    assert time.monotonic() - ready_at < 2.0


def test_a_job_waits_visibly_while_its_service_is_down_and_another_one_runs(
    new_worker: NewWorker, redis_url: str
) -> None:
    env = {**QUICK, "CELERY_AGENTS_AGENTS_SEEN_SECONDS": "3"}
    beta = new_worker(agents="support.beta_agents", env=env)
    assert beta.stop() == 0
    new_worker(agents="support.alpha_agents", env=env)
    client = AgentClient(redis_url)
    job = client.submit("beta", "go")
    wait_until(lambda: client.header(job.session_id).unoffered_since_ms, "it waits for a worker", 10)
    stored, header = client.show(job.session_id), client.header(job.session_id)
    reason = waiting_reason(client.store, header)
    assert "no live worker offers agent 'beta'" in reason
    assert any(reason in line for line in session_lines(header, stored.state, reason))
    (warned,) = [finding for finding in examine(client.settings) if finding.name == "sessions of agent beta"]
    assert warned.what.startswith("1 waiting")
    new_worker(agents="support.beta_agents", env=env)
    assert job.result(timeout=5).status == "completed"
    assert client.store.housekeeping.count_unoffered() == {}


def test_a_session_is_parked_after_the_grace_period_and_comes_back_with_its_worker(
    new_worker: NewWorker, redis_url: str
) -> None:
    env = {**QUICK, "CELERY_AGENTS_AGENT_GRACE_SECONDS": "0.5"}
    new_worker(agents="support.alpha_agents", env=env)
    client = AgentClient(redis_url)
    job = client.submit("beta", "go")
    wait_until(lambda: client.header(job.session_id).status == "parked", "the grace period is over", 20)
    worker = new_worker(agents="support.beta_agents", env=env, wait=False)
    worker.wait_for_text("ready.", 30)
    ready_at = time.monotonic()
    assert job.result(timeout=10).status == "completed"
    assert time.monotonic() - ready_at < 2.0


def test_metrics_tell_the_length_of_each_queue_and_who_waits_for_a_worker(
    new_worker: NewWorker, redis_url: str
) -> None:
    from urllib.request import urlopen

    from support.processes import free_port

    pytest.importorskip("prometheus_client")
    port = free_port()
    new_worker(agents=QUEUE_AGENTS, env={"CELERY_AGENTS_METRICS_PORT": str(port)})
    client = AgentClient(redis_url)
    client.submit("beta", "go")
    with urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        lines = answer.read().decode().splitlines()
    assert 'celery_agents_queue_length{queue="celery_agents.steps.gpu"} 0.0' in lines
    assert 'celery_agents_queue_length{queue="celery_agents.steps"} 0.0' in lines
    assert 'celery_agents_unoffered_sessions{agent="beta"} 1.0' in lines
