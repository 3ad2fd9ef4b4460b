"""Celery's own ways in: a service's own app, tasks sent by name, an existing project that installs agents."""

from __future__ import annotations

import json
import socket
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from celery import Celery
from celery.beat import ScheduleEntry, Scheduler
from celery.schedules import schedule

from celery_agents import AgentClient
from celery_agents.config.celery import GREENLETS
from celery_agents.tasks.app import create_app

from support.processes import Process, free_port
from support.projects import AGENTS, EXISTING, SERVICE, Project
from support.redis_server import RedisServer
from support.wait import wait_until
from support.worker_process import WorkerProcess

QUEUES = "celery,celery_agents.steps,celery_agents.control"


@pytest.fixture
def service(tmp_path: Path, redis_url: str) -> Project:
    return Project(tmp_path / "service", SERVICE, {"CELERY_AGENTS_REDIS_URL": redis_url})


@pytest.fixture
def running() -> Iterator[Callable[..., Process]]:
    """Starts a process that ends with the test, and waits for a text of its log."""
    started: list[Process] = []

    def start(process: Process, ready: str = "ready.") -> Process:
        started.append(process)
        process.start()
        process.wait_for_text(ready, 30)
        return process

    yield start
    for process in started:
        process.end(patience=2.0)


@pytest.fixture
def clerk(new_worker: Callable[..., WorkerProcess], tmp_path: Path) -> WorkerProcess:
    """A worker of ours with the agent `clerk`."""
    (tmp_path / "clerks.py").write_text(AGENTS, encoding="utf-8")
    return new_worker(agents="clerks", env={"PYTHONPATH": str(tmp_path), "CELERY_AGENTS_CONTROL_TASKS": "all"})


def ended(client: AgentClient, session_id: str, status: str = "completed") -> None:
    wait_until(
        lambda: client.header(session_id).status == status, f"{session_id} is {status}", 20, ignoring=(Exception,)
    )


def test_a_service_with_its_own_tasks_and_config_uses_the_client(service: Project, clerk: WorkerProcess) -> None:
    said = service.python(
        "import json, tasks, config\n"
        "from celery_agents import AgentClient\n"
        "job = AgentClient().submit('clerk', 'look it up', idempotency_key='order-1')\n"
        "again = AgentClient().submit('clerk', 'look it up', idempotency_key='order-1')\n"
        "result = job.result(timeout=20)\n"
        "print(json.dumps([tasks.add(1, 2), config.NAME, result.final_response, again.session_id == job.session_id]))\n"
    )
    assert json.loads(said) == [3, "a service", "found: AGENTS", True]


def test_submit_retry_and_stop_are_sent_by_name_from_any_celery_app(
    service: Project, clerk: WorkerProcess, redis_url: str
) -> None:
    def send(name: str, **kwargs: Any) -> None:
        service.python(
            "from shop import app\n"
            f"app.send_task('celery_agents.{name}', kwargs={kwargs!r}, queue='celery_agents.control')\n"
        )

    client = AgentClient(redis_url)
    send("submit", agent="clerk", message="look it up", session_id="order-2")
    send("submit", agent="clerk", message="slow", session_id="order-3")
    ended(client, "order-2")
    wait_until(lambda: client.header("order-3").status == "in_progress", "order-3 runs", 10)
    send("stop", session_id="order-3")
    ended(client, "order-3", "stopped")

    send("submit", agent="clerk", message="fail", idempotency_key="order-4")
    (failed,) = wait_until(lambda: client.list(status="failed").items, "one has failed", 20)
    send("retry", session_id=failed.session_id)
    wait_until(
        lambda: sum(e.type == "execution_failed" for e in client.store.sessions.events(failed.session_id)) == 2,
        "it was tried again", 20,
    )  # fmt: skip


def test_a_submit_without_a_name_for_its_session_fails_and_says_so(service: Project, clerk: WorkerProcess) -> None:
    service.python(
        "from shop import app\n"
        "app.send_task('celery_agents.submit', kwargs={'agent': 'clerk', 'message': 'x'}, queue='celery_agents.control')"
    )
    clerk.wait_for_text("idempotency_key", 15)
    assert "session_id" in clerk.text()


def test_the_worker_starts_with_celerys_own_command(
    tmp_path: Path, redis_url: str, running: Callable[..., Process]
) -> None:
    env = {"CELERY_AGENTS_REDIS_URL": redis_url, "CELERY_AGENTS_AGENTS": "clerks"}
    folder = Project(tmp_path / "plain", {"clerks.py": AGENTS, "tasks.py": "", "config.py": ""}, env)
    worker = running(folder.process("plain", "celery", "-A", "celery_agents.tasks", "worker", "-c", "3", "-l", "INFO"))
    client = AgentClient(redis_url)
    client.wait_for_agent("clerk")
    assert client.submit("clerk", "look it up").result(timeout=20).final_response == "found: AGENTS"
    assert [facts["slots"] for facts in client.store.registry.workers().values()] == [3]
    worker.terminate()
    assert worker.wait(20) == 0


def test_a_worker_without_agents_says_how_to_name_them(tmp_path: Path, redis_url: str) -> None:
    folder = Project(tmp_path / "plain", {}, {"CELERY_AGENTS_REDIS_URL": redis_url})
    worker = folder.process("plain", "celery", "-A", "celery_agents.tasks", "worker")
    worker.start()
    try:
        assert worker.wait(20) != 0
    finally:
        worker.end()
    assert "CELERY_AGENTS_AGENTS" in worker.text()


@pytest.mark.parametrize("pool", ["threads", pytest.param("custom", marks=pytest.mark.long)])
def test_an_existing_project_runs_agents_beside_its_tasks_with_its_settings_unchanged(
    tmp_path: Path, redis_url: str, running: Callable[..., Process], pool: str
) -> None:
    env = {"PROJ_BROKER": redis_url, "CELERY_AGENTS_REDIS_URL": redis_url}
    env |= {"CELERY_CUSTOM_WORKER_POOL": GREENLETS} if pool == "custom" else {}
    project = Project(tmp_path / "existing", EXISTING, env)
    assert project.python("from proj.celery import BEFORE, AFTER; print(BEFORE == AFTER)") == "True\n"

    running(
        project.process("proj", "celery", "-A", "proj", "worker", "-P", pool, "-c", "4", "-l", "INFO", "-Q", QUEUES)
    )
    client = AgentClient(redis_url)
    client.wait_for_agent("clerk")
    assert [facts["pool"] for facts in client.store.registry.workers().values()] == [
        pool.replace("custom", "greenlets")
    ]
    project.python("from proj.tasks import greet; greet.delay('world')")
    assert client.submit("clerk", "look it up").result(timeout=20).final_response == "found: AGENTS"
    wait_until((project.folder / "greeted").exists, "the project's own task has run", 10)
    assert (project.folder / "greeted").read_text() == "hello world"
    project.python(
        "from proj.celery import app\n"
        "app.send_task('celery_agents.submit', kwargs=dict(agent='clerk', message='look', session_id='mine'))"
    )
    ended(client, "mine")
    assert [facts["slots"] for facts in client.store.registry.workers().values()] == [4]


LONG = [pytest.param(name, marks=pytest.mark.long) for name in ("threads", "solo", "custom")]
POOLS = ["prefork", *LONG]


def _start_in_pool(project: Project, pool: str, queues: str = QUEUES) -> Process:
    """A worker of a project in a pool; our own pool is chosen by the environment, as Celery wants it."""
    if pool == "custom":
        project.env["CELERY_CUSTOM_WORKER_POOL"] = GREENLETS
    return project.celery("-A", "proj", "worker", "-P", pool, "-c", "4", "-l", "INFO", "-Q", queues)


@pytest.mark.parametrize("pool", POOLS)
def test_the_redis_broker_of_a_project_is_the_store_and_agents_are_found_in_the_working_folder(
    tmp_path: Path, redis_url: str, running: Callable[..., Process], pool: str
) -> None:
    project = Project(tmp_path / "existing", EXISTING, {"PROJ_BROKER": redis_url})
    running(_start_in_pool(project, pool))
    client = AgentClient(redis_url)
    client.wait_for_agent("clerk")
    project.python("from proj.tasks import greet; greet.delay('world')")
    assert client.submit("clerk", "look it up").result(timeout=20).final_response == "found: AGENTS"
    wait_until((project.folder / "greeted").exists, "the project's own task has run", 10)


@pytest.mark.parametrize(
    ("pool", "options"),
    [
        ("threads", ()),
        pytest.param("custom", ("--disable-prefetch",), marks=pytest.mark.long),
        pytest.param("custom", (), marks=pytest.mark.long),
        pytest.param("threads", ("--disable-prefetch",), marks=pytest.mark.long),
    ],
)  # fmt: skip
def test_a_project_whose_slots_are_all_taken_by_steps_still_runs_its_own_tasks(
    tmp_path: Path, redis_url: str, running: Callable[..., Process], pool: str, options: tuple[str, ...]
) -> None:
    agents = """
import time

from celery_agents import Agent, tool
from celery_agents.testing import CallTool, script


@tool(effect="pure")
def work() -> str:
    '''Take a moment.'''
    time.sleep(0.1)
    return "worked"


busy = Agent("busy", driver=script(*[CallTool("work")] * 60, "done"), tools=[work])
"""
    project = Project(
        tmp_path / "existing", {**EXISTING, "proj/agents.py": agents},
        {"PROJ_BROKER": redis_url, "CELERY_AGENTS_STICKY_SECONDS": "0"},
    )  # fmt: skip
    if pool == "custom":
        project.env["CELERY_CUSTOM_WORKER_POOL"] = GREENLETS
    running(project.celery("-A", "proj", "worker", "-P", pool, "-c", "2", "-l", "INFO", "-Q", QUEUES, *options))
    client = AgentClient(redis_url)
    client.wait_for_agent("busy")
    jobs = [client.submit("busy", "go") for _ in range(8)]
    wait_until(lambda: all(client.show(job.session_id).state.step_count > 1 for job in jobs), "all are at work", 30)
    project.python("from proj.tasks import greet; greet.delay('world')")
    wait_until((project.folder / "greeted").exists, "the project's own task has run", 10)
    assert any(client.header(job.session_id).status == "in_progress" for job in jobs)


def test_commands_and_clients_of_an_existing_project_use_its_redis(
    tmp_path: Path, redis_url: str, running: Callable[..., Process]
) -> None:
    """The environment names no Redis: what `install` was given counts."""
    project = Project(tmp_path / "existing", EXISTING, {"PROJ_BROKER": redis_url})
    running(_start_in_pool(project, "threads"))
    AgentClient(redis_url).wait_for_agent("clerk")
    command = [sys.executable, "-m", "celery_agents", "--app", "proj"]
    said = project.run([*command, "submit", "clerk", "look it up", "--wait"])
    assert "found: AGENTS" in said
    (line,) = project.run([*command, "list", "--json"]).splitlines()
    assert json.loads(line)["agent"] == "clerk"
    script = (
        "from proj.celery import app; from celery_agents import AgentClient; "
        "print(AgentClient(app=app).submit('clerk', 'look it up').result(timeout=20).final_response)"
    )
    assert project.python(script).strip() == "found: AGENTS"


def test_a_command_that_starts_processes_of_its_own_refuses_an_existing_app(
    tmp_path: Path, running: Callable[..., Process]
) -> None:
    project = Project(tmp_path / "existing", EXISTING, {"PROJ_BROKER": "redis://127.0.0.1:1/0"})
    running(project.process("worker", "celery_agents", "--app", "proj", "worker"), "celery -A MODULE worker")


def test_doctor_tells_with_which_options_the_workers_of_a_project_run(
    tmp_path: Path, redis_url: str, running: Callable[..., Process]
) -> None:
    project = Project(tmp_path / "existing", EXISTING, {"PROJ_BROKER": redis_url})
    running(project.celery("-A", "proj", "worker", "-P", "threads", "-c", "4", "-l", "INFO"))
    AgentClient(redis_url).wait_for_agent("clerk")
    said = project.run([sys.executable, "-m", "celery_agents", "doctor", "--app", "proj"])
    assert "pool threads, 0 of 4 slots busy" in said
    assert "worker_pool" not in said, "that of the app is not the one with which its worker was started"


@pytest.mark.parametrize("pool", POOLS)
def test_a_store_that_is_away_stops_no_other_task_and_agents_run_when_it_is_there(
    tmp_path: Path,
    redis_url: str,
    new_redis: Callable[..., RedisServer],
    running: Callable[..., Process],
    pool: str,
) -> None:
    store = new_redis()
    store.stop()
    env = {"PROJ_BROKER": redis_url, "CELERY_AGENTS_REDIS_URL": store.url()}
    project = Project(tmp_path / "existing", EXISTING, env)
    worker = running(_start_in_pool(project, pool))
    worker.wait_for_text("agents wait for their store", 10)
    project.python("from proj.tasks import greet; greet.delay('world')")
    wait_until((project.folder / "greeted").exists, "the project's own task has run", 10)

    store.start()
    client = AgentClient(store.url(), broker_url=redis_url)
    client.wait_for_agent("clerk", 20)
    assert client.submit("clerk", "look it up").result(timeout=20).final_response == "found: AGENTS"
    (project.folder / "greeted").unlink()
    project.python("from proj.tasks import greet; greet.delay('again')")
    wait_until((project.folder / "greeted").exists, "the project's own task has run again", 10)
    worker.terminate()
    assert worker.wait(20) == 0


def test_agents_whose_metrics_cannot_be_served_stay_off_until_they_can(
    tmp_path: Path, redis_url: str, new_redis: Callable[..., RedisServer], running: Callable[..., Process]
) -> None:
    store = new_redis()
    store.stop()
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        env = {"PROJ_BROKER": redis_url, "CELERY_AGENTS_REDIS_URL": store.url()}
        project = Project(tmp_path / "existing", EXISTING, {**env, "CELERY_AGENTS_METRICS_PORT": str(port)})
        worker = running(_start_in_pool(project, "custom"))
        worker.wait_for_text("agents wait for their store", 10)
        store.start()
        worker.wait_for_text("agents stay off: metrics cannot listen", 20)
        client = AgentClient(store.url(), broker_url=redis_url)
        with pytest.warns(UserWarning, match="no worker has registered"):
            job = client.submit("clerk", "look it up")
        project.python("from proj.tasks import greet; greet.delay('world')")
        wait_until((project.folder / "greeted").exists, "the project's own task has run", 10)
        assert not client.store.registry.workers()
    assert job.result(timeout=20).final_response == "found: AGENTS"
    worker.terminate()
    assert worker.wait(20) == 0


def test_a_worker_that_was_told_one_queue_of_an_agent_takes_this_queue_only(
    tmp_path: Path, redis_url: str, running: Callable[..., Process]
) -> None:
    agents = EXISTING["proj/agents.py"] + "painter = Agent('painter', driver=answer, tools=[look_up], queue='gpu')\n"
    project = Project(tmp_path / "existing", {**EXISTING, "proj/agents.py": agents}, {"PROJ_BROKER": redis_url})
    running(_start_in_pool(project, "threads", "celery_agents.steps.gpu"))
    client = AgentClient(redis_url)
    client.wait_for_agent("painter")
    (facts,) = client.store.registry.workers().values()
    assert sorted(facts["agents"]) == ["painter"]
    assert client.submit("painter", "look it up").result(timeout=20).final_response == "found: AGENTS"


def test_workers_of_an_existing_project_that_consume_its_queues_only_leave_agents_alone(
    tmp_path: Path, redis_url: str, running: Callable[..., Process]
) -> None:
    env = {"PROJ_BROKER": redis_url, "CELERY_AGENTS_REDIS_URL": redis_url}
    project = Project(tmp_path / "existing", EXISTING, env)
    running(
        project.process(
            "proj", "celery", "-A", "proj", "worker", "-P", "threads", "-c", "2", "-l", "INFO", "-Q", "celery"
        )
    )
    project.python("from proj.tasks import greet; greet.delay('world')")
    wait_until((project.folder / "greeted").exists, "the project's own task has run", 10)
    assert not AgentClient(redis_url).store.registry.workers()


@pytest.mark.leaves_keys("the project's prefix stands before the broker's own keys")
def test_a_project_with_prefix_and_priorities_runs_its_steps_once(
    tmp_path: Path, redis_url: str, redis_client: Any, running: Callable[..., Process]
) -> None:
    changed = EXISTING["proj/celery.py"].replace(
        "timezone=", "broker_transport_options={'global_keyprefix': 'proj:'}, task_default_priority=5, timezone="
    )
    env = {"PROJ_BROKER": redis_url, "CELERY_AGENTS_REDIS_URL": redis_url}
    project = Project(tmp_path / "existing", {**EXISTING, "proj/celery.py": changed}, env)
    worker = running(
        project.process("proj", "celery", "-A", "proj", "worker", "-P", "threads", "-c", "2", "-l", "INFO")
    )
    AgentClient(redis_url).wait_for_agent("clerk")
    said = project.python(
        "from proj.celery import app\n"
        "from celery_agents import AgentClient\n"
        "job = AgentClient(app=app).submit('clerk', 'look it up')\n"
        "print(job.result(timeout=20).final_response)"
    )
    assert said == "found: AGENTS\n"
    assert "published again" not in worker.text()
    assert redis_client.keys("celery_agents.*") == []


def test_a_worker_that_waits_for_redis_ends_when_it_is_told_to(new_worker: Callable[..., WorkerProcess]) -> None:
    worker = new_worker(f"redis://127.0.0.1:{free_port()}/0", wait=False)
    worker.wait_for_text("waiting for Redis", 30)
    assert worker.stop() == 0


def test_a_prefork_worker_writes_json_in_its_children_and_stops_what_is_revoked(
    new_worker: Callable[..., WorkerProcess], tmp_path: Path, redis_url: str
) -> None:
    (tmp_path / "clerks.py").write_text(AGENTS, encoding="utf-8")
    env = {"PYTHONPATH": str(tmp_path), "CELERY_AGENTS_LOG_FORMAT": "json"}
    worker = new_worker(agents="clerks", env=env, arguments=("--pool", "prefork", "-c", "2"))
    client = AgentClient(redis_url)
    job = client.submit("clerk", "slow")
    wait_until(lambda: client.header(job.session_id).status == "in_progress", "it runs", 20)
    create_app(client.settings).control.revoke(f"{job.execution_id}.1", terminate=True)
    assert job.result(timeout=10).status == "stopped"
    worker.wait_for_text("succeeded in")
    told = [json.loads(line) for line in worker.text().splitlines() if "succeeded in" in line]
    assert [job.execution_id in line["message"] for line in told] == [True]


def test_time_limits_of_a_projects_tasks_are_in_no_message_and_the_soft_one_ends_no_step(
    tmp_path: Path, redis_url: str, running: Callable[..., Process]
) -> None:
    limits = "task_time_limit=60, task_soft_time_limit=1, timezone="
    files = {
        "proj/agents.py": AGENTS.replace("sleep(30)", "sleep(2)"),
        "proj/celery.py": EXISTING["proj/celery.py"].replace("timezone=", limits),
    }
    project = Project(tmp_path / "existing", {**EXISTING, **files}, {"PROJ_BROKER": redis_url})
    project.env["CELERY_AGENTS_STICKY_SECONDS"] = "0"
    running(project.celery("-A", "proj", "worker", "-P", "prefork", "-c", "1", "-l", "INFO", "-Q", QUEUES))
    client = AgentClient(redis_url)
    client.wait_for_agent("clerk")
    said = project.python(
        "from celery_agents import AgentClient; from proj.celery import app\n"
        "client = AgentClient(app=app)\n"
        "jobs = [client.submit('clerk', text) for text in ('look it up', 'slow')]\n"
        "app.tasks['celery_agents.submit']\n"  # Celery takes the options of a task that it knows
        "app.send_task('celery_agents.submit', ('clerk', 'look'), {'session_id': 'by-name'})\n"
        "print([str(job.result(timeout=20).status) for job in jobs])\n"
    )
    assert said.strip() == "['completed', 'completed']"
    ended(client, "by-name")
    assert client.store.housekeeping.list_dead(5) == []


def test_each_message_of_an_entry_of_beat_makes_one_job_and_a_refused_entry_is_in_the_dead_list(
    clerk: WorkerProcess, redis_url: str
) -> None:
    """Sent by the scheduler of Celery beat, whose clock a test cannot wait for."""
    app = Celery("nightly", broker=redis_url)
    scheduler = Scheduler(app=app, lazy=True)

    def fire(**more: Any) -> None:
        entry = ScheduleEntry(
            name="report",
            task="celery_agents.submit",
            schedule=schedule(60, app=app),
            kwargs={"agent": "clerk", "message": "look it up", **more},
            options={"queue": "celery_agents.control"},
            app=app,
        )
        scheduler.apply_async(entry, advance=False)

    client = AgentClient(redis_url)
    for _ in range(3):
        fire()
    wait_until(lambda: len(client.list(status="completed").items) == 3, "each message made a job", 20)
    for _ in range(2):
        fire(session_id="daily")

    def said() -> int:  # the second may join the execution of the first
        return sum(message.role == "user" for message in client.show("daily").state.messages)

    wait_until(lambda: said() == 2, "both went into the session", 20, ignoring=(Exception,))
    fire(idempotency_key="report")
    (entry,) = wait_until(lambda: client.store.housekeeping.list_dead(10), "the entry is in the dead list", 20)
    assert "runs once and never again; leave it out" in entry["reason"]
    assert "'clerk'" in entry["reason"]
    assert len(client.list().items) == 4
