"""Erasing by a label: afterwards nothing in Redis has a word of what was said, whatever ran, and whoever was killed."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from celery_agents.worker.errors import InvalidInput

from support.agents import call, plan
from support.lab import Lab
from support.tree_agents import delegate
from support.wait import wait_until

pytestmark = [pytest.mark.timeout(240), pytest.mark.filterwarnings("ignore:no worker has registered")]

NEEDLE = "the needle of user 42"
LABEL = {"user": "42"}
ERASE = "import sys; from celery_agents import AgentClient; AgentClient(sys.argv[1]).erase(label={'user': '42'})"


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    # Plain entries, so that a word of them can be looked for.
    env = {"CELERY_AGENTS_COMPRESSION": "false"}
    with Lab(tmp_path / "lab", agents="support.agents,support.tree_agents", env=env) as started:
        started.worker()
        yield started


def keys_with(lab: Lab, word: str) -> list[bytes]:
    """The keys with a word in their name or their value, as Redis dumps it uncompressed."""
    with redis.Redis.from_url(lab.store_url) as database:
        database.config_set("rdbcompression", "no")
        return [key for key in database.scan_iter("*") if word.encode() in key + (database.dump(key) or b"")]


def submitted(lab: Lab, number: int) -> str:
    """A session with a child, of which everything that is said has the needle."""
    child = plan([call("keyed", work=f"below {number}: {NEEDLE}")], answer=NEEDLE)
    steps = [[delegate(child)], [call("keyed", work=f"{number}: {NEEDLE}")]]
    return lab.client.submit("node", plan(*steps, answer=NEEDLE), labels=LABEL).session_id


def wait_for(lab: Lab, sessions: list[str], status: str) -> None:
    for session in sessions:
        wait_until(lambda session=session: lab.client.header(session).status == status, f"{session} is {status}", 60)


def test_nothing_that_was_said_is_left_and_others_keep_everything(lab: Lab) -> None:
    ended = [submitted(lab, number) for number in range(3)]
    wait_for(lab, ended, "completed")
    other = lab.client.submit("planned", plan(answer="of another user"), labels={"user": "421"}).session_id
    wait_for(lab, [other], "completed")
    fork = lab.client.fork(ended[0])
    lab.client.label(fork, {"user": None})  # it is a fork all the same
    again = lab.client.fork(fork)
    failed = lab.client.submit("planned", plan([call("failing", text=NEEDLE)]), labels=LABEL).session_id
    running = lab.client.submit(
        "planned", plan([call("keyed", work="gated", gate="held")], answer=NEEDLE), labels=LABEL
    )
    wait_until(lambda: any(each.get("work") == "gated" for each in lab.ledger.entries()), "it runs", 30)
    assert keys_with(lab, NEEDLE)
    lab.ledger.open("held")
    erased = lab.client.erase(label=LABEL, by="ann", timeout=60)
    below = [each for each in erased.sessions if each.split(".")[0] in ended]
    assert {*ended, fork, again, failed, running.session_id} <= set(erased.sessions)
    assert len(below) == 3 + 3 + 2, "each with its child, and two forks"
    assert erased.left == {}
    assert keys_with(lab, NEEDLE) == []
    assert lab.client.show(other).state.final_response == "of another user"
    assert lab.client.erase(label=LABEL).sessions == ()


def test_an_erasure_that_was_killed_is_finished_by_the_next(lab: Lab) -> None:
    for kill_after in (1, 3, 6):
        sessions = [submitted(lab, number) for number in range(8)]
        wait_for(lab, sessions, "completed")
        process = subprocess.Popen([sys.executable, "-c", ERASE, lab.store_url])
        wait_until(lambda: len(keys_of(lab, sessions)) <= len(sessions) - kill_after, "some are erased", 30)  # noqa: B023
        process.kill()
        process.wait()
        lab.client.erase(label=LABEL)
        assert keys_with(lab, NEEDLE) == []


def keys_of(lab: Lab, sessions: list[str]) -> list[str]:
    """Those of the sessions that are still there."""
    there = {header.session_id for header in lab.client.list(label=LABEL, limit=1000)}
    return [each for each in sessions if each in there]


def test_what_gets_the_label_meanwhile_is_erased_too(lab: Lab) -> None:
    first = submitted(lab, 1)
    wait_for(lab, [first], "completed")
    delete, late = lab.client.delete, list[str]()

    def delete_and_submit(session: str, **options: object) -> bool:
        if not late:
            late.append(submitted(lab, 2))
        return delete(session, **options)  # type: ignore[arg-type]

    lab.client.delete = delete_and_submit  # type: ignore[method-assign]
    assert {first, *late} <= set(lab.client.erase(label=LABEL, timeout=60).sessions)
    assert keys_with(lab, NEEDLE) == []


@pytest.mark.parametrize("label", [{}, None, {"user": None}, {"a=b": "1"}, "user=42"])
def test_an_erasure_names_its_sessions(lab: Lab, label: object) -> None:
    with pytest.raises(InvalidInput, match="label"):
        lab.client.erase(label=label)  # type: ignore[arg-type]
