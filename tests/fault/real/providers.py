"""A provider that refuses, fails, hangs, and takes the money without giving the answer."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from support.http_service import ServiceProcess
from support.lab import Lab
from support.provider import Provider, calls, tool_call
from support.redis_keys import session_keys
from support.verdict import Verdict

_FAULTS = (
    {"fault": "status", "code": 429, "retry_after": 0.3},
    {"fault": "status", "code": 500},
    {"fault": "status", "code": 529},
    {"fault": "cut"},
    {"fault": "truncate"},
    {"fault": "malformed"},
    {"fault": "wrong_types"},
    {"fault": "empty"},
    {"fault": "hang"},
)


def failing_provider(directory: Path, jobs: int, seed: int) -> Verdict:
    """Every fault again and again, among the requests of many jobs.

    An answer that could be used is never asked for again; a job whose provider hung until the deadline is retried.
    """
    chance = random.Random(seed)
    env = {"OPENAI_API_KEY": "sk-test-0123456789abcdef", "CELERY_AGENTS_RETRY_LATER_SECONDS": "1"}
    service = ServiceProcess("support.provider", directory.parent / f"{directory.name}-provider")
    with service:
        provider = Provider(service, "fire")
        env["TEST_PROVIDER_URL"] = provider.base_url
        with Lab(directory, agents="support.buyer_agents", env=env) as lab:
            worker = lab.worker()
            lab.client.wait_for_agent("buyer")
            verdict, asked = Verdict(), {}
            for start in range(0, jobs, 50):
                requests = len(provider.ledger())
                count = min(50, jobs - start)
                places = chance.sample(range(requests + 1, requests + 1 + count), 2 * len(_FAULTS))
                faults = [{**fault, "on": places[2 * i : 2 * i + 2]} for i, fault in enumerate(_FAULTS)]
                work = calls(tool_call("keyed", {"work": "a"}), tool_call("unsafe", {"work": "b"}))
                provider.plan(work, "done", faults=faults)
                first = len(lab.jobs)
                for number in range(start, start + count):
                    lab.say("buyer", f"job-{number}.", ("keyed", "unsafe"))
                lab.wait_for_jobs(120, lab.jobs[first:])
                for job in lab.jobs[first:]:
                    if lab.client.header(job.session_id).status == "failed":  # its provider hung until the deadline
                        verdict.counts["retried"] += 1
                        lab.client.retry(job.session_id).result(timeout=60)
                asked |= _asked(lab, first)
            verdict.add(lab.verdict(planned=False))
            verdict.expect(worker.alive, "workers", "the worker has ended")
            _judge_payments(verdict, provider, asked)
            text = worker.text()
            verdict.expect(env["OPENAI_API_KEY"] not in text, "I10", "the key is in the log")
            for name in lab.redis.scan_iter("ca:*"):
                held = str(lab.redis.dump(name)) if lab.redis.type(name) != "none" else ""
                verdict.expect(env["OPENAI_API_KEY"] not in held, "I10", f"the key is in {name}")
    return verdict


def _asked(lab: Lab, first: int) -> dict[tuple[str, int], int]:
    """How often each step of the jobs from there on was asked for: claims without an answer, and attempts that failed.

    It is in the journals, which are gone a minute after their steps; then it is 0.
    """
    found: dict[tuple[str, int], int] = {}
    for number, job in enumerate(lab.jobs[first:], first):
        session = session_keys(job.session_id)
        for turn in (0, 1):
            fields = lab.redis.hkeys(session.journal(job.execution_id, turn + 1))
            found[f"job-{number}.", turn] = sum(name.startswith(("try:", "err:")) for name in fields)  # type: ignore[union-attr]
    return found


def _judge_payments(verdict: Verdict, provider: Provider, asked: Mapping[tuple[str, int], int]) -> None:
    usable: Counter[tuple[str, int]] = Counter()
    for entry in provider.ledger():
        job = next(m["content"] for m in entry["request"]["messages"] if m["role"] == "user")
        fault = entry["fault"]["fault"] if entry["fault"] else None
        if fault:
            verdict.counts[f"fault_{fault}"] += 1
            verdict.counts["paid_in_vain"] += entry["billed"]
        else:
            usable[str(job), entry["turn"]] += 1
    verdict.counts["usable_answers"] = usable.total()
    for (job, turn), count in usable.items():
        # An answer may come too late for the step's deadline; that attempt is recorded.
        verdict.counts["too_late"] += count - 1
        verdict.expect(count <= max(asked[job, turn], 1), "I4", f"turn {turn} of {job!r} was answered {count} times")
