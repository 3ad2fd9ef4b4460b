"""Redis stops, dies, stalls, drops connections or is full, under load."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from pathlib import Path

from celery_agents.worker.errors import StoreFull
from celery_agents.worker.store import keys
from celery_agents.worker.store.shards import NEW

from support.agents import call, driver_key
from support.lab import Lab
from support.redis_keys import due_sessions, session_keys
from support.verdict import Verdict
from support.wait import wait_until

_JOBS = 15


def storm(directory: Path, faults: list[str], seed: int, *, append_only: str = "always", quick: bool = True) -> Verdict:
    """One fault after another, each while jobs are under way. Faults are named as in `_FAULTS`."""
    chance = random.Random(seed)
    with Lab(directory, quick=quick, redis_options={"append_only": append_only}) as lab:
        workers = [lab.worker(), lab.worker()]
        for fault in faults:
            first = len(lab.jobs)
            for _ in range(_JOBS):
                lab.submit(
                    ["keyed", "unsafe"],
                    [call("keyed_async", work="x", after=0.3)],
                    after=chance.choice([0.1, 0.3, 0.6]),
                )
            before = lab.ledger.deliveries().total()
            wait_until(lambda before=before: lab.ledger.deliveries().total() > before + 5, "the work is under way", 30)
            _FAULTS[fault](lab)
            lab.wait_for_jobs(90, lab.jobs[first:])
        verdict = lab.verdict()
        for fault in faults:
            verdict.counts[f"fault_{fault}"] += 1
        verdict.expect(all(worker.alive for worker in workers), "workers", "a worker has ended")
    return verdict


def _stopped_for(seconds: float) -> Callable[[Lab], None]:
    def fault(lab: Lab) -> None:
        lab.server.stop()
        time.sleep(seconds)
        lab.server.start()

    return fault


def _killed(lab: Lab) -> None:
    lab.server.kill()
    lab.server.start()


def _stalled(lab: Lab) -> None:
    lab.server.pause()
    time.sleep(3)
    lab.server.resume()


def _disconnected(lab: Lab) -> None:
    for _ in range(5):
        with lab.server.client() as client:
            client.client_kill_filter(_type="normal", skipme=True)
        time.sleep(0.1)


_FAULTS: dict[str, Callable[[Lab], None]] = {
    "stop_1": _stopped_for(1),
    "stop_6": _stopped_for(6),
    "stop_12": _stopped_for(12),
    "kill": _killed,
    "stall": _stalled,
    "disconnect": _disconnected,
}


def full(directory: Path) -> Verdict:
    """Out of memory at submit, journal, begin, result, commit and sweep: a paid answer is kept, and all goes on later."""
    with Lab(directory) as lab:
        worker = lab.worker()
        lab.submit(["keyed"])
        lab.wait_for_jobs(30)
        asked = lab.submit(["keyed", "unsafe"], gate="answer")
        working = lab.submit([call("unsafe", work="w", gate="result")], ["keyed"])
        unclaimed = [lab.submit(["keyed"], before=1.0) for _ in range(3)]
        wait_until(
            lambda: lab.ledger.deliveries()[driver_key(asked.execution_id, 1)]
            and any(entry.get("gate") == "result" for entry in lab.ledger.entries()),
            "an answer and a result are under way", 30,
        )  # fmt: skip
        lab.redis.config_set("maxmemory", 1)
        verdict = Verdict()
        try:
            lab.submit(["keyed"])
        except StoreFull as error:
            verdict.counts["submit_refused"] += "memory" in str(error)
        lab.ledger.open("answer")
        lab.ledger.open("result")
        session = session_keys(asked.session_id)
        journal = session.journal(asked.execution_id, 1)
        wait_until(lambda: lab.redis.hexists(journal, "llm"), "the paid answer is journaled although Redis is full", 20)
        work = session_keys(working.session_id).journal(working.execution_id, 1)
        wait_until(lambda: lab.redis.hexists(work, "t0:r"), "the result is journaled although Redis is full", 20)
        verdict.counts["journaled_when_full"] += 2
        time.sleep(3)  # longer than a lease: nobody may take anything over for want of memory
        lab.redis.config_set("maxmemory", 0)
        lab.wait_for_jobs(60)
        found = lab.verdict()
        verdict.add(found)
        verdict.expect(worker.alive, "workers", "the worker has ended")
        verdict.expect(found.counts["outcome_unknown"] == 0, "I5", "a result was lost")
        verdict.expect(len(unclaimed) == 3, "lab", "jobs")
    return verdict


def cut_files(directory: Path, cuts: int, seed: int) -> Verdict:
    """The append-only file cut at its last records and inside of them: what is left is whole and goes on."""
    chance = random.Random(seed)
    verdict = Verdict()
    with Lab(directory, redis_options={"append_only": "always", "config": {"auto-aof-rewrite-percentage": "0"}}) as lab:
        worker = lab.worker()
        jobs = [lab.submit(["keyed", "pure"], ["keyed"]) for _ in range(20)]
        wait_until(lambda: sum(map(lab.ended, jobs)) >= 5, "some jobs have ended", 30)
        worker.kill()
        lab.server.stop()
        file = lab.server.append_only_files()[-1]
        whole = file.read_bytes()
        places = _record_starts(whole)[-200:]
        chosen = chance.sample(places, min(cuts, len(places)))
        for number, place in enumerate(sorted(chosen, reverse=True)):
            inside = place + (chance.randrange(1, 40) if number % 2 else 0)
            file.write_bytes(whole[:inside])
            lab.server.start()
            lab.client = lab.new_client()
            _check_whole(lab, verdict)
            verdict.counts["cuts_inside" if number % 2 else "cuts_between"] += 1
            if number < len(chosen) - 1:
                lab.server.stop()
        lab.worker()
        known = [job for job in jobs if lab.redis.exists(session_keys(job.session_id).session)]
        lab.wait_for_jobs(60, known)
        for job in known:
            status = lab.client.header(job.session_id).status
            verdict.expect(status == "completed", "I2", f"{job.session_id} is {status} after the cut")
            verdict.counts["jobs_after_a_cut"] += 1
        verdict.counts["jobs"] = len(known)
    return verdict


def lose_the_last(directory: Path, times: int, seed: int) -> Verdict:
    """Redis dies with the machine it runs on: what it wrote last is gone, and workers elsewhere have seen it."""
    chance = random.Random(seed)
    verdict = Verdict()
    with Lab(directory, redis_options={"config": {"auto-aof-rewrite-percentage": "0"}, "append_only": "always"}) as lab:
        workers = [lab.worker(), lab.worker()]
        for _ in range(times):
            jobs = [lab.submit(*[["keyed"], ["pure"]] * 10, after=0.02) for _ in range(20)]
            before = lab.ledger.deliveries().total()
            wait_until(lambda before=before: lab.ledger.deliveries().total() > before + 20, "steps are under way", 30)
            file = lab.server.append_only_files()[-1]
            kept = file.stat().st_size
            time.sleep(chance.uniform(0.05, 1.0))
            lab.server.kill()
            verdict.counts["bytes_lost"] += file.stat().st_size - kept
            with file.open("r+b") as written:
                written.truncate(kept)
            lab.server.start()
            lab.client = lab.new_client()
            lab.wait_for_jobs(90, jobs)
            for job in jobs:
                stored = lab.client.show(job.session_id).state
                execution = stored.execution
                assert execution is not None
                ended = (execution.status, execution.step_count, len(stored.store.section().messages))
                verdict.expect(ended == ("completed", 21, 42), "I2", f"{job.session_id} after the loss: {ended}")
                verdict.counts["jobs_after_a_loss"] += 1
        verdict.counts["losses"] += times
        verdict.expect(all(worker.alive for worker in workers), "workers", "a worker has ended")
    return verdict


def _record_starts(data: bytes) -> list[int]:
    """Where commands begin in an append-only file."""
    found, position = [], data.find(b"*")
    while 0 <= position < len(data):
        found.append(position)
        end = data.index(b"\r\n", position)
        count, position = int(data[position + 1 : end]), end + 2
        for _ in range(count):
            end = data.index(b"\r\n", position)
            position = end + 2 + int(data[position + 1 : end]) + 2
    return found


def _check_whole(lab: Lab, verdict: Verdict) -> None:
    """Every session can be read, and is due exactly when it is runnable (invariant D)."""
    due = set(due_sessions(lab.redis))
    for session_id in (name for shard in keys.shard_keys(NEW) for name in lab.redis.zrange(shard.sessions, 0, -1)):  # type: ignore[union-attr]
        state = lab.client.show(session_id).state
        execution = state.execution
        assert execution is not None
        runnable = not execution.status.is_terminal()
        verdict.expect(
            runnable == (session_id in due), "D", f"{session_id} is {execution.status} and due: {session_id in due}"
        )
        verdict.counts["sessions_read"] += 1
