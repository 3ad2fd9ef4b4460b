"""A primary with two replicas and three Sentinels is lost in several ways, under load.

Replication is behind the replies of Redis, so a failover without confirmations may forget what was acknowledged. How much it
forgot is counted; that every job it knows ends, that no process ends and that no keyed effect is doubled is judged. With
confirmations, nothing that was acknowledged may be forgotten.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from support.acting_clients import ActingClient, ReadingClient
from support.failover_lab import FailoverLab
from support.hosts import HOSTS_MISSING, can_make_hosts
from support.lab import Lab
from support.redis_keys import session_key
from support.sentinels import MASTER, SENTINEL_MISSING, find_sentinel
from support.serve_process import ServeProcess
from support.verdict import Submitted, Verdict
from support.wait import wait_until
from support.waiting_agents import TOKEN_SECRET

_KINDS = ("keyed", "unsafe")
_JOBS = 200  # of each kind
_STOPPED_SECONDS = 27.0
_PARTED_SECONDS = 20.0
# Longer than the Sentinels need to agree on a failover that they have begun.
_NOTICED_SECONDS = 4.0
TOKEN = "token-of-failovers-0123456789"
ENV = {
    "CELERY_AGENTS_TOKEN_SECRET": TOKEN_SECRET,
    "CELERY_AGENTS_HTTP_TOKEN_SECRETS": f"{TOKEN}:admin",
}
# What a failover without confirmations may do, by a text of the judge: effects of a part of history that it forgot.
_FORGOTTEN = {
    "I3: unsafe ": "unsafe_doubled",
    "had an effect that the history does not know": "effects_forgotten",
    "I4: ": "answers_paid_again",
}
# With confirmations: an answer that was journaled and not confirmed by a call with effects.
_PAID_AGAIN = {"I4: ": "answers_paid_again"}
SLOTS = 200  # of both workers
_ACTS_LOST = ("jobs_lost", "submits_lost", "answers_lost", "stops_lost", "deletions_undone")


def lose_primaries(directory: Path, fault: str, times: int = 1, *, replicas: int = 0) -> Verdict:
    """The same fault several times, each while jobs are under way. Faults are named as in `_FAULTS`.

    Args:
        replicas: `CELERY_AGENTS_REPLICAS`. From 1 on, an acknowledged act that is lost is a violation.
    """
    verdict = Verdict()
    apart = fault in _APART
    if find_sentinel() is None:
        pytest.skip(SENTINEL_MISSING)
    if apart and not can_make_hosts():
        pytest.skip(HOSTS_MISSING)
    env = {**ENV, **({"CELERY_AGENTS_REPLICAS": str(replicas)} if replicas else {})}
    with FailoverLab(directory, apart=apart, agents="support.waiting_agents", env=env) as lab:
        hosts = [lab.hosts.prefix(1), ()] if lab.hosts is not None else [(), ()]
        workers = [lab.worker(wait=False, prefix=prefix) for prefix in hosts]
        for worker in workers:
            wait_until(worker._is_registered, "it has registered", 60, details=worker.tail)
        serve = ServeProcess(lab.directory / "serve", lab.store_url, lab.settings_env)
        lab._closing.append(serve.end)
        serve.start()
        with act_all_the_while(lab, serve) as (acting, reading):
            for _ in range(times):
                submit_of_each_kind(lab, _JOBS // times)
                verdict.recoveries += _FAULTS[fault](lab)
                lab.group.wait_until_settled()
                lab.connect_again()  # one that was idle meanwhile may lead to the former primary
                lab.wait_for_jobs(180, _known(lab, lab.jobs))
        most_paid = None if apart else len(verdict.recoveries) * SLOTS  # who is cut off asks the model all the while
        judge_acts(lab, acting, reading, verdict, forgets=not replicas, most_paid=most_paid)
        verdict.counts["faults"] += times
        ended = [process.name for process in (*workers, serve) if not process.alive]
        verdict.counts["processes_ended"] += len(ended)
        verdict.expect(not ended, "processes", f"{ended} have ended")
    return verdict


@contextmanager
def act_all_the_while(lab: Lab, serve: ServeProcess) -> Iterator[tuple[list[ActingClient], ReadingClient]]:
    """Clients that act all the while: one at each place where a worker is, and one of the HTTP interface."""
    acting = [ActingClient("outside", lab.new_client)]
    hosts = lab.hosts if isinstance(lab, FailoverLab) else None
    if hosts is not None:
        acting.append(ActingClient("inside", lab.new_client, lambda: hosts.enter(1)))
    else:
        acting.append(ActingClient("second", lab.new_client))
    with ExitStack() as stack:
        reading = ReadingClient(stack.enter_context(serve.http(TOKEN)))
        for client in (*acting, reading):
            client.start()
            stack.callback(client.close)
        yield acting, reading


def submit_of_each_kind(lab: Lab, count: int) -> None:
    """Submit so many jobs of each kind, and wait until they are under way."""
    before = lab.ledger.deliveries().total()
    for _ in range(count):
        for kind in _KINDS:
            lab.submit([kind], [kind], ["pure"], agent="asking", after=0.5)
    wait_until(lambda: lab.ledger.deliveries().total() > before + count, "the work is under way", 60)


def _known(lab: Lab, jobs: Sequence[Submitted]) -> list[Submitted]:
    return [job for job in jobs if lab.redis.exists(session_key(job.session_id))]


def judge_acts(
    lab: Lab,
    acting: Sequence[ActingClient],
    reading: ReadingClient,
    verdict: Verdict,
    *,
    forgets: bool,
    most_paid: int | None = 0,
) -> None:
    """Look for everything that was acknowledged.

    Args:
        forgets: What was acknowledged may be lost, and is counted.
        most_paid: Most answers that may be paid again where nothing is forgotten. None: any number.
    """
    lost: Counter[str] = Counter()
    for client in acting:
        lost += client.count_lost(lab.client)
        verdict.counts["acts"] += client.acknowledged
        verdict.counts.update({f"acts_{name}": count for name, count in client.acted.items()})
        verdict.violations += [f"clients: {problem}" for problem in client.problems[:5]]
    known = _known(lab, lab.jobs)
    lost["jobs_lost"] += len(lab.jobs) - len(known)
    gone = [session for session in reading.submitted if not lab.redis.exists(session_key(session))]
    lost["submits_lost"] += len(gone)
    verdict.counts["acts"] += len(reading.submitted)
    verdict.counts.update({f"http_{status}": count for status, count in reading.replies.items()})
    verdict.expect(not {500, 502} & set(reading.replies), "http", f"replies by status: {dict(reading.replies)}")
    verdict.expect(not lost.pop("never_ended", 0), "I2", "a session of the clients has not ended")
    wait_until(lambda: lab.client.store.housekeeping.backlog()[0] == 0, "all have ended", 60)
    verdict.counts.update(lost)
    verdict.counts["acts_lost"] += sum(lost[name] for name in _ACTS_LOST if name != "deletions_undone")
    found = lab.verdict(jobs=known)
    for violation in list(found.violations):
        name = next(
            (name for text, name in (_FORGOTTEN if forgets else _PAID_AGAIN).items() if text in violation), None
        )
        if name is not None:
            found.violations.remove(violation)
            found.counts[name] += 1
    if not forgets:
        verdict.expect(not lost.total(), "I8", f"acknowledged and lost: {dict(lost)}")
    if not forgets and most_paid is not None:
        paid = found.counts["answers_paid_again"]
        verdict.expect(
            paid <= most_paid, "I4", f"{paid} answers paid again, and {most_paid} steps can have been under way"
        )
    verdict.add(found)


def first_step(lab: Lab) -> float:
    """Seconds until a call is made, from now on: the Sentinels have just chosen."""
    began, before = time.monotonic(), lab.ledger.deliveries().total()
    wait_until(
        lambda: lab.ledger.deliveries().total() > before, "the first step behind the failover", 10, interval=0.02
    )
    return time.monotonic() - began


def _first_step_outside(lab: FailoverLab) -> float:
    """Seconds until the worker on this side begins a step: the one on the other side may do steps all the while."""
    began, worker = time.monotonic(), lab.workers[1]
    since = len(worker.text())
    worker.wait_for_text("received", 30, since=since)
    return time.monotonic() - began


def _kill(lab: FailoverLab) -> list[float]:
    killed = lab.kill_primary()
    first = first_step(lab)
    killed.start()
    return [first]


def _stop(lab: FailoverLab) -> list[float]:
    """The primary stands still and wakes up as a primary that is none any more."""
    before, began = lab.group.primary, time.monotonic()
    before.pause()
    lab.group.wait_for_failover(before)
    first = first_step(lab)
    time.sleep(max(0.0, _STOPPED_SECONDS - (time.monotonic() - began)))
    before.resume()
    return [first]


def _three(lab: FailoverLab) -> list[float]:
    """Three primaries in a row, each as soon as a replica follows it."""
    found: list[float] = []
    for _ in range(3):
        found += _kill(lab)
        lab.group.wait_for_replicas()
    return found


def _restart(lab: FailoverLab) -> list[float]:
    """The primary is back at once. Where the Sentinels have begun a failover, it is demoted seconds later."""
    primary = lab.group.primary
    primary.kill()
    primary.start()
    first = first_step(lab)
    time.sleep(_NOTICED_SECONDS)
    return [first]


def _planned(lab: FailoverLab) -> list[float]:
    """An operator asks a Sentinel for another primary, and the present one goes on until it is told."""
    before = lab.group.primary
    with lab.group.sentinel_client() as client:
        client.execute_command("SENTINEL", "FAILOVER", MASTER)
    lab.group.wait_for_failover(before)
    first = first_step(lab)
    time.sleep(_NOTICED_SECONDS)
    return [first]


def _replica_first(lab: FailoverLab) -> list[float]:
    """A replica is killed, then the primary; the replica that is left takes over."""
    replica = lab.group.replicas[0]
    replica.kill()
    time.sleep(1)
    found = _kill(lab)
    replica.start()
    return found


def _part_primary(lab: FailoverLab) -> list[float]:
    """The primary is cut off, with one worker and one client; the others choose another one."""
    assert lab.hosts is not None
    before, began = lab.group.primary, time.monotonic()
    lab.hosts.part(1)
    lab.group.wait_for_failover(before)
    lab.connect_again()
    first = _first_step_outside(lab)
    time.sleep(max(0.0, _PARTED_SECONDS - (time.monotonic() - began)))
    lab.hosts.join()
    return [first]


def _part_pair(lab: FailoverLab) -> list[float]:
    """Primary and replica are cut off together, with their Sentinels, one worker and one client: nothing is chosen."""
    assert lab.hosts is not None
    lab.hosts.part(1, 2)
    time.sleep(_PARTED_SECONDS)
    lab.hosts.join()
    lab.connect_again()
    return [_first_step_outside(lab)]


_FAULTS: dict[str, Callable[[FailoverLab], list[float]]] = {
    "kill": _kill,
    "stop": _stop,
    "three": _three,
    "restart": _restart,
    "planned": _planned,
    "replica-first": _replica_first,
    "part-primary": _part_primary,
    "part-pair": _part_pair,
}
_APART = frozenset({"part-primary", "part-pair"})
