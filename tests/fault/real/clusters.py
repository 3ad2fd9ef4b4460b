"""A cluster of three primaries with a replica each loses nodes, moves slots and grows, under load.

As with Sentinels, a replica that takes over may lack what was acknowledged last, unless replicas confirm; without that,
nothing may be lost.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from celery_agents.worker.store.redis.topology import slot_of

from .failovers import ENV, SLOTS, act_all_the_while, first_step, judge_acts, submit_of_each_kind
from support.cluster import CLUSTER_MISSING, can_cluster
from support.cluster_lab import ClusterLab
from support.redis_keys import shard_of_session
from support.serve_process import ServeProcess
from support.verdict import Verdict
from support.wait import wait_until

_JOBS = 200  # of each kind
_STOPPED_SECONDS = 27.0


def disturb_cluster(directory: Path, fault: str, *, replicas: int = 0) -> Verdict:
    """One fault while jobs are under way, with clients that act all the while. Faults are named as in `_FAULTS`.

    Args:
        replicas: `CELERY_AGENTS_REPLICAS`. From 1 on, an acknowledged act that is lost is a violation at each fault.
    """
    if not can_cluster():
        pytest.skip(CLUSTER_MISSING)
    verdict = Verdict()
    env = {**ENV, "CELERY_AGENTS_REPLICAS": str(replicas)}
    with ClusterLab(directory, agents="support.waiting_agents", env=env) as lab:
        workers = [lab.worker() for _ in range(2)]
        more = {**lab.settings_env, "CELERY_AGENTS_BROKER_URL": lab.broker_url}
        serve = ServeProcess(lab.directory / "serve", lab.store_url, more)
        lab._closing.append(serve.end)
        serve.start()
        with act_all_the_while(lab, serve) as (acting, reading):
            submit_of_each_kind(lab, _JOBS)
            verdict.recoveries += _FAULTS[fault](lab)
            lab.group.wait_until_whole()
            lab.connect_again()
            lab.wait_for_jobs(180)
        loses = fault in _LOSING
        judge_acts(lab, acting, reading, verdict, forgets=loses and not replicas, most_paid=SLOTS if loses else 0)
        verdict.counts["faults"] += 1
        ended = [process.name for process in (*workers, serve) if not process.alive]
        verdict.counts["processes_ended"] += len(ended)
        verdict.expect(not ended, "processes", f"{ended} have ended")
    return verdict


def _busy_slot(lab: ClusterLab) -> int:
    """The slot of a session that has work."""
    return slot_of(shard_of_session(lab.jobs[-1].session_id).due)


def _kill(lab: ClusterLab) -> list[float]:
    slot = _busy_slot(lab)
    killed = lab.group.primary_of(slot)
    killed.kill()
    wait_until(lambda: lab.group.primary_of(slot) is not killed, "a replica takes over", 30)
    lab.connect_again()
    first = first_step(lab)
    killed.start()
    return [first]


def _stop(lab: ClusterLab) -> list[float]:
    """A primary stands still and wakes up as one that is none any more."""
    slot, began = _busy_slot(lab), time.monotonic()
    stopped = lab.group.primary_of(slot)
    stopped.pause()
    wait_until(lambda: lab.group.primary_of(slot) is not stopped, "a replica takes over", 30)
    lab.connect_again()
    first = first_step(lab)
    time.sleep(max(0.0, _STOPPED_SECONDS - (time.monotonic() - began)))
    stopped.resume()
    return [first]


def _move(lab: ClusterLab) -> list[float]:
    """A slot with work moves key by key, and back."""
    slot = _busy_slot(lab)
    home = lab.group.primary_of(slot)
    elsewhere = next(node for node in lab.group.primaries if node is not home)
    for target in (elsewhere, home):
        lab.group.move_slot(slot, target, each=lambda: time.sleep(0.02))
    return [first_step(lab)]


def _add(lab: ClusterLab) -> list[float]:
    """A node joins with a replica, and the slots of a dozen shards move to it."""
    node = lab.group.add_node(replicas=1)
    sessions = [job.session_id for job in lab.jobs[-60:]]
    for slot in sorted({slot_of(shard_of_session(each).due) for each in sessions})[:12]:
        lab.group.move_slot(slot, node)
    return [first_step(lab)]


_FAULTS: dict[str, Callable[[ClusterLab], list[float]]] = {"kill": _kill, "stop": _stop, "move": _move, "add": _add}
# A primary is lost: without confirmations, what was acknowledged last may be lost with it.
_LOSING = frozenset({"kill", "stop"})
